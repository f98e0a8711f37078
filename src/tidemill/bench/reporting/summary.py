"""The beginning of a report: what a reader takes away, in sentences, and what to be wary of."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from tidemill.bench.arrivals import Closed
from tidemill.bench.measures import Summary
from tidemill.bench.report import load_words, seconds
from tidemill.bench.reporting import curves, words
from tidemill.bench.reporting.comparing import Comparisons, alarms
from tidemill.bench.reporting.document import (
    Block,
    Cell,
    Commands,
    Notice,
    Paragraph,
    Section,
    Table,
    Terms,
)
from tidemill.bench.reporting.runs import Group, Shown
from tidemill.bench.starts import medians
from tidemill.records import dataclass


def nothing() -> tuple[Block, ...]:
    return (
        Paragraph("Measure something first; what is measured is kept, and found here."),
        Commands(("tidemill bench run --target tidemill --scenario short-chat",)),
    )


def blocks(groups: Sequence[tuple[Group, Comparisons]]) -> Iterator[Block]:
    wary = [warning for group, comparisons in groups for warning in _warnings(group, comparisons)]
    if wary:
        yield Notice("Before you use these figures", tuple(wary))
    said = tuple((group.scenario, " ".join(_sentences(group, c))) for group, c in groups)
    yield Section("summary", "Summary", (Terms(said), *_glance([group for group, _ in groups])))


def _warnings(group: Group, comparisons: Comparisons) -> Iterator[str]:
    for one in group.every:
        summary = one.result.summary
        if summary is None:
            continue
        run = f"{group.scenario}, {one.title} ({load_words(one.result.scenario.load)})"
        if summary.invalid:
            yield f"INVALID: {run}: {words.clean(summary.invalid, longest=300)}."
        failed = sum(summary.errors.values())
        if failed:
            yield f"{run}: {failed} of {summary.requests} requests failed."
    yield from alarms(comparisons)


# ---- in sentences


def _sentences(group: Group, comparisons: Comparisons) -> Iterator[str]:
    yield from _curves(group)
    for one in group.runs:
        summary = one.result.summary
        if summary is None:
            continue
        if summary.requests and not summary.good:
            yield f"None of {summary.requests} requests to {one.title} was answered."
        elif summary.invalid:
            yield f"The run of {one.title} is invalid and says nothing."
    if not comparisons.sides:
        return
    runs = [one for side in comparisons.sides.values() for one in side]
    loads = dict.fromkeys(load_words(one.result.scenario.load) for one in runs)
    load = next(iter(loads)) if len(loads) == 1 else "different loads"
    figures: Sequence[_Figure] = (_TTFT, _TPOT)
    if any(one.result.starts for one in runs):
        figures = (_COLD, _WARM)
    elif all(isinstance(one.result.scenario.load, Closed) for one in runs):
        # Where the next request waits for the last one, how many tokens come by is the figure;
        # where they come by the clock, as many come by as are asked for.
        figures = (_OUTPUT, _TTFT, _TPOT)
    ranked = [sentence for figure in figures if (sentence := _ranked(figure, comparisons))]
    yield " ".join(ranked) if figures[0] is _COLD else f"With {load}: {' '.join(ranked)}"
    limits = {str(one.result.slo) for one in runs}
    met = [
        f"{words.share(attained)} of the requests to {one.title}"
        for one in runs
        if one.result.summary is not None and (attained := one.result.summary.attained) is not None
    ]
    if met and len(limits) == 1:
        yield f"The SLO ({words.limits(runs[0].result.slo)}) is met by {words.listed(met)}."


@dataclass(frozen=True, slots=True)
class _Figure:
    """One that runs are ranked by. ``best``: how whoever is first is told, if it is for sure, and
    ``plain`` if not; ``other``: how one of the rest is, by its ratio to the first."""

    name: str
    of: Callable[[Shown], float | None]
    show: Callable[[float], str]
    less_is_better: bool
    best: str
    plain: str
    other: str


def _latency(name: str) -> Callable[[Shown], float | None]:
    def of(one: Shown) -> float | None:
        found = one.result.summary.latency.get(name) if one.result.summary else None
        return None if found is None else found["p50"].value

    return of


def _first_token(*, cold: bool) -> Callable[[Shown], float | None]:
    return lambda one: medians(one.result.starts, cold=cold).get("first_token")


def _output_rate(one: Shown) -> float | None:
    return None if one.result.summary is None else one.result.summary.output_rate


_TTFT = _Figure(
    "ttft p50", _latency("ttft"), seconds, True,
    "{who} gives the first token soonest, after {value} (TTFT p50)",
    "{who} gives the first token after {value} (TTFT p50)",
    "{who} takes {ratio} as long ({value})",
)  # fmt: skip
_TPOT = _Figure(
    "tpot p50", _latency("tpot"), seconds, True,
    "{who} takes least for each further token, {value} (TPOT p50)",
    "{who} takes {value} for each further token (TPOT p50)",
    "{who} takes {ratio} as long ({value})",
)  # fmt: skip
_OUTPUT = _Figure(
    "output rate", _output_rate, words.rate, False,
    "{who} makes the most output tokens, {value} a second",
    "{who} makes {value} output tokens a second",
    "{who} makes {ratio} as many ({value})",
)  # fmt: skip
_COLD, _WARM = (
    _Figure(
        f"{kind} first token", _first_token(cold=kind == "cold"), seconds, True,
        f"{{who}} has its first token soonest from {kind}, {{value}} after it was started",
        f"{{who}} has its first token from {kind} {{value}} after it was started",
        "{who} takes {ratio} as long ({value})",
    )
    for kind in ("cold", "warm")
)  # fmt: skip


def _ranked(figure: _Figure, comparisons: Comparisons) -> str:
    """Sentences on who is first, and how far behind the others are; nothing if nobody has it."""
    having = []
    for label, runs in comparisons.sides.items():
        values = [value for one in runs if (value := figure.of(one) or 0) > 0]
        if values:
            having.append((statistics.geometric_mean(values), label))
    if not having:
        return ""
    having.sort(key=lambda pair: (pair[0] if figure.less_is_better else -pair[0], pair[1]))
    (best, first), *rest = having
    told = [(label, value, comparisons.told(figure.name, first, label)) for value, label in rest]
    # First is who is told apart from all others.
    start = figure.best if rest and all(one.apart for _, _, one in told) else figure.plain
    said = [start.format(who=first, value=figure.show(best))]
    behind = [
        figure.other.format(who=who, value=figure.show(value), ratio=words.ratio(value / best))
        for who, value, one in told
        if one.apart
    ]
    said += [words.listed(behind)] if behind else []
    same = [f"{who} ({figure.show(value)})" for who, value, one in told if one.apart is False]
    if same:
        verb = "is" if len(same) == 1 else "are"
        said.append(f"{words.listed(same)} {verb} not distinguishable from it")
    unknown = [f"{who} ({figure.show(value)})" for who, value, one in told if one.apart is None]
    if unknown:
        why = "; ".join(dict.fromkeys(one.why for _, _, one in told if one.apart is None))
        said.append(f"Whether {words.listed(unknown)} differs from it is not known ({why})")
    return ". ".join(said) + "."


def _curves(group: Group) -> Iterator[str]:
    best = [(curves.highest_rate(points), points[0]) for points in group.series]
    kept = sorted(
        ((rate, one) for rate, one in best if rate is not None),
        key=lambda pair: (-pair[0], pair[1].label),
    )
    if kept:
        (most, first), *rest = kept
        others = "".join(
            f", {words.ratio(most / rate)} as many as {one.label} ({rate:.3g})"
            for rate, one in rest
        )
        yield (
            f"Within the SLO ({words.limits(first.result.slo)}) {first.label} answers {most:.3g} "
            f"requests/s{others} (of the rates that were tried)."
        )
    for rate, one in best:
        if rate is None and one.result.slo is not None and one.recording is not None:
            yield (
                f"{one.label} meets the SLO ({words.limits(one.result.slo)}) at no rate that was "
                "tried."
            )


# ---- at a glance


def _glance(groups: Sequence[Group]) -> Iterator[Table]:
    rows = tuple(
        (
            Cell(f"{group.scenario}, {one.title}"),
            Cell(load_words(one.result.scenario.load)),
            *(
                Cell(_value(summary, name, share))
                for name, share in (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"))
            ),
            Cell(words.rate(summary.output_rate)),
            Cell(words.rate(one.result.per_core)),
            Cell(words.share(summary.attained)),
            Cell("INVALID", "bad") if summary.invalid else Cell("yes", "quiet"),
        )
        for group in groups
        for one in group.runs
        if (summary := one.result.summary) is not None
    )
    columns = (
        "", "Load", "TTFT p50", "TTFT p99", "TPOT p50", "Output tokens/s", "Per core given",
        "SLO met by", "Valid",
    )  # fmt: skip
    if rows:
        yield Table("At a glance", columns, rows, frozenset({1}))


def _value(summary: Summary, name: str, share: str) -> str:
    found = summary.latency.get(name)
    return words.NONE if found is None else seconds(found[share].value)
