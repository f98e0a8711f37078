"""The end of a report: what its figures mean, where they are from, and how to get them again."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence

import msgspec

from tidemill.bench import scenario as known
from tidemill.bench.arrivals import Closed, Gamma
from tidemill.bench.measures import MAX_DELAY
from tidemill.bench.report import load_words, size
from tidemill.bench.reporting import comparing, words
from tidemill.bench.reporting.comparing import Comparisons
from tidemill.bench.reporting.document import (
    Block,
    Bullets,
    Cell,
    Commands,
    Paragraph,
    Section,
    Table,
)
from tidemill.bench.reporting.runs import Group, Shown
from tidemill.bench.result import Result
from tidemill.bench.scenario import Scenario
from tidemill.bench.statistics import LEVEL, RESAMPLES
from tidemill.bench.workload import Shape

_DEFINITIONS = (
    ("TTFT", "first piece of text − when the request was due"),
    ("TPOT", "(E2E − TTFT) / (tokens − 1), one value for each request, as vLLM; AIPerf calls it "
             "ITL, and GuideLLM's TPOT has the first token in it"),
    ("ITL", "gaps between pieces of text, those of all requests together, as vLLM"),
    ("E2E", "last piece of text − when the request was due"),
    ("p50, p90, p99", "the time within which that share of the requests (ITL: of the gaps) was"),
    ("SLO met", "share of the requests that keep all limits; those that failed do not"),
    ("Goodput", "requests that keep all limits of the SLO / seconds"),
    ("Output tokens/s", "tokens of answers that arrived in the measured window / its seconds; "
                        "tokens of prompts do not count"),
    ("Per core given", "output tokens/s / threads that the engine was started with"),
    ("Speed for a user", "1 / TPOT: tokens a second, as one user sees them come"),
    ("Effect", "Cliff's delta: how often a request of the one took longer than one of the other, "
               "less how often it took less, from −1 to 1"),
    ("Interval", f"where the value lies with a confidence of {LEVEL:.0%}"),
    ("Invalid", f"the load generator sent 1 % of the requests more than {1000 * MAX_DELAY:g} ms "
                "late: the figures say more of it than of the engine"),
)  # fmt: skip


def definitions(compared: Sequence[Comparisons]) -> Section:
    rows = tuple((Cell(name), Cell(meaning)) for name, meaning in _DEFINITIONS)
    return Section(
        "definitions", "What the figures mean",
        (
            Paragraph(
                "Latency counts from when a request was due, not from when it was sent, so that a "
                "server cannot hide a queue in the client."
            ),
            Table("Definitions", ("Figure", "Meaning"), rows, frozenset({1})),
            *_reading(compared),
        ),
    )  # fmt: skip


def _reading(compared: Sequence[Comparisons]) -> Iterator[Block]:
    notes = comparing.notes(compared)
    if notes:
        yield Paragraph("Of what is compared:")
        yield Bullets(tuple(f"{note[0].upper()}{note[1:]}." for note in notes))


def sources(groups: Sequence[Group]) -> Section:
    results = [one.result for group in groups for one in group.every]
    rows = tuple(tuple(map(Cell, row)) for row in _sources(results))
    blocks: list[Block] = [Table("Sources", ("Figure", "Is", "How"), rows, frozenset({1, 2}))]
    unknown: dict[str, dict[str, None]] = {}
    for result in results:
        for name, why in (result.resources.unknown if result.resources else {}).items():
            unknown.setdefault(why, {})[name.replace("_", " ")] = None
    blocks += [
        Paragraph(f"Not known: {words.listed(list(names))}: {words.clean(why, longest=300)}.")
        for why, names in unknown.items()
    ]
    blocks.append(Paragraph("Nothing here is simulated, or from a data sheet."))
    return Section("sources", "Where the figures are from", tuple(blocks))


def _sources(results: Sequence[Result]) -> Iterator[tuple[str, str, str]]:
    yield (
        "Latencies, rates, errors", "measured", "by a load generator in a process of its own, over "
        "HTTP, as a user of the server sees it",
    )  # fmt: skip
    yield (
        "Intervals, verdicts", "computed", f"from what was measured: {RESAMPLES} bootstrap samples "
        "of a run, or Student's of repeated runs",
    )  # fmt: skip
    yield "Numbers of tokens", *_counting(results)
    yield (
        "Lengths and rates asked for", "assumed or published",
        "by the scenario, which says which: see its section",
    )  # fmt: skip
    if any(result.starts for result in results):
        yield "Starts", "measured", "from the start of the process, as its phases come"
    resources = [result.resources for result in results if result.resources is not None]
    if any(found.cpu_seconds is not None or found.memory is not None for found in resources):
        yield (
            "CPU and memory", "measured", "of all processes of the engine, as the operating system "
            "counts them, the same for each engine",
        )  # fmt: skip
    for energy in sorted({(e.origin, e.source) for found in resources if (e := found.energy)}):
        yield "Energy", energy[0], words.clean(energy[1], longest=200)
    for includes in sorted({found.cost.includes for found in resources if found.cost}):
        yield "Cost", "computed", f"from prices that were given: {words.clean(includes)}"


def _counting(results: Sequence[Result]) -> tuple[str, str]:
    counted = {result.summary.counted for result in results if result.summary is not None}
    if counted == {False}:
        return "estimate", "each piece of text counts as a token: no endpoint told its usage"
    if counted == {True, False}:
        return (
            "measured, or estimate",
            "as the endpoints' usage says; where one told none each "
            "piece of text counts as a token (see Tokens counted)",
        )
    return "measured", "as the endpoints' usage says"


# ---- again


def reproduction(groups: Sequence[Group]) -> Section:
    every = [one for group in groups for one in group.every]
    lines = dict.fromkeys(command(one.result) for one in every)
    blocks: list[Block] = [
        Table(
            "Who was measured, on which machine",
            ("", "Version", "Model", "Threads", "Engine arguments", "Machine", "In every request",
             "Bench"),
            tuple(_whom(every)), frozenset(range(1, 8)),
        ),
        Table(
            "The runs",
            ("", "Of", "When (UTC)", "Load", "Window", "SLO", "Seed"),
            tuple(_run(group, one) for group in groups for one in group.every),
            frozenset(range(1, 6)),
        ),
        Paragraph(
            "To measure again, one line for each run. A model is a name or a file of the machine "
            "that was measured on."
        ),
        Commands(tuple(lines)),
    ]  # fmt: skip
    engines = dict.fromkeys(
        words.clean(shlex.join(one.result.target.command), longest=1000)
        for one in every
        if one.result.target.command
    )
    if engines:
        blocks += [Paragraph("What was started for it:"), Commands(tuple(engines))]
    changed = sorted(
        {one.result.scenario.name for one in every if _options(one.result.scenario) is None}
    )
    if changed:
        blocks.append(
            Paragraph(
                f"{words.listed(changed)}: not as this version of Tidemill has it. The scenario as "
                "it was run is in the result: tidemill bench results --json."
            )
        )
    return Section("reproduce", "How to reproduce it", tuple(blocks))


def _whom(every: Sequence[Shown]) -> Iterator[tuple[Cell, ...]]:
    said = set()
    for one in every:
        target, machine = one.result.target, one.result.machine
        memory = "" if machine.memory is None else f", {size(machine.memory)}"
        extra = msgspec.json.encode(target.extra).decode() if target.extra else words.NONE
        row = (
            one.label,
            words.clean(target.version or "not known"),
            words.model(one.result),
            str(target.threads or "not known"),
            words.clean(shlex.join(target.arguments), longest=300) or words.NONE,
            words.clean(
                f"{'' if target.engine else 'asked from '}{machine.cores} cores of {machine.cpu}"
                f"{memory}, {machine.system}, {machine.architecture}",
                longest=200,
            ),
            words.clean(extra),
            words.clean(one.result.bench),
        )
        if row not in said:
            said.add(row)
            yield tuple(map(Cell, row))


def _run(group: Group, one: Shown) -> tuple[Cell, ...]:
    result = one.result
    row = (
        words.clean(result.id) or "not kept",
        f"{group.scenario}, {one.title}",
        words.moment(result.when),
        load_words(result.scenario.load),
        words.NONE if result.summary is None else f"{result.summary.seconds:.0f} s",
        words.limits(result.slo),
        str(result.seed),
    )
    return tuple(map(Cell, row))


def command(result: Result) -> str:
    """What measures it again."""
    target = result.target
    parts = ["tidemill", "bench", "run", "--target"]
    if target.engine:
        parts.append(f"{target.engine}:{target.model}" if target.model else target.engine)
        parts += ["--threads", str(target.threads)] if target.threads else []
        if target.command and target.engine != "tidemill":  # which is started as it is here
            parts += ["--binary", target.command[0]]
        if target.arguments:
            parts += ["--engine-args", shlex.join(target.arguments)]
    else:
        parts += [target.url, "--model", target.model]
    options = _options(result.scenario)
    parts += ["--scenario", result.scenario.name + (".toml" if options is None else "")]
    parts += options or []
    if result.slo is not None and result.slo != result.scenario.slo:
        parts += ["--slo", str(result.slo)]
    parts += ["--seed", str(result.seed)]
    return shlex.join(words.clean(part, longest=1000) for part in parts)


def _options(scenario: Scenario) -> list[str] | None:
    """Those that make it of the scenario of that name; None if none do."""
    if scenario.name not in known.names() or not scenario.shapes:
        return None  # a file of the user's, or a trace
    base = known.load(scenario.name)
    options = []
    if scenario.shapes != base.shapes:
        factor = _factor(base, scenario)
        if factor is None:
            return None
        base = base.scaled(factor)
        options += ["--scale", f"{factor:g}"]
    for name in ("seconds", "timeout"):
        value = getattr(scenario, name)
        if value != getattr(base, name):
            options += [f"--{name}", f"{value:g}"]
    load = scenario.load
    if load != base.load and isinstance(load, Gamma):
        options += ["--rate", f"{load.rate:g}"]
        load = base.arrivals.at(load.rate)
    elif load != base.load and isinstance(load, Closed):
        options += ["--concurrency", str(load.concurrency)]
    again = msgspec.structs.replace(
        base, seconds=scenario.seconds, timeout=scenario.timeout, load=load
    )
    return options if again == scenario else None


def _factor(base: Scenario, scenario: Scenario) -> float | None:
    """By which all lengths were multiplied: of those that give the same the shortest to write."""
    for of in _LENGTHS:
        lengths = of(base.shapes[0]), of(scenario.shapes[0])
        if min(lengths) <= 0 or lengths[0] == lengths[1]:
            continue
        ratio = lengths[1] / lengths[0]
        digits = max(0, 2 - math.floor(math.log10(ratio)))
        for factor in (*(round(ratio, n) for n in range(digits + 2)), ratio):
            if factor > 0 and base.scaled(factor).shapes == scenario.shapes:
                return factor
    return None


# Not all of them grow: the answer to a task is as long as it is.
_LENGTHS: tuple[Callable[[Shape], float], ...] = (
    lambda shape: shape.output.most,
    lambda shape: shape.input.most if shape.input is not None else 0,
    lambda shape: shape.prefix,
)
