"""Results as text, for a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from tidemill.bench.arrivals import Closed, Gamma
from tidemill.bench.measures import LATENCIES, SHARES, Summary
from tidemill.bench.resources import Resources
from tidemill.bench.result import Result
from tidemill.bench.scenario import Scenario, Starts
from tidemill.bench.starts import Start, medians
from tidemill.bench.statistics import LEVEL, Estimate
from tidemill.bench.traces import TraceFile
from tidemill.bench.workload import Lengths, LogNormal, Shape, Uniform

_PHASE_NAMES = {
    "mapped": "model mapped", "listening": "listening", "ready": "ready",
    "first_token": "first token",
    "second": "(TTFT of the second request)",
}  # fmt: skip


def text(result: Result) -> str:
    """All of a result; several lines."""
    lines = [_title(result), *_figures(result), *(f"  note: {n}" for n in result.notes)]
    if result.id:
        lines.append(f"  kept as {result.id}" + (f" ({result.name})" if result.name else ""))
    return "\n".join(lines)


def _title(result: Result) -> str:
    target = result.target
    who = f"{target.engine} {target.version}" if target.engine else target.url
    machine = f"{result.machine.cores} cores of {result.machine.cpu}"
    threads = f"{target.threads} threads, " if target.threads else ""
    where = f"{threads}{machine}" if target.engine else f"asked from {machine}"
    if target.arguments:
        where += f" · with {shlex.join(target.arguments)}"
    return f"{result.scenario.name} · {who} · {target.model} · {where}"


def _figures(result: Result) -> Iterator[str]:
    if result.starts:
        yield from _starts(result.starts)
    summary = result.summary
    if summary is None:
        return
    bursts = ""
    if summary.variation is not None and not isinstance(result.scenario.load, Closed):
        bursts = f", gaps with a coefficient of variation of {summary.variation:.1f}"
    yield f"  load: {load_words(result.scenario.load)}{bursts}, {summary.seconds:.0f} s measured"
    yield from _latencies(summary)
    yield f"  {_rates(summary)}"
    if result.resources is not None:
        yield from (f"  {line}" for line in resource_lines(result.resources))
    if result.slo is not None and summary.attained is not None:
        yield (
            f"  SLO {result.slo}: met by {percent(summary.attained)} of {summary.requests} "
            f"requests; goodput {summary.goodput:.2f} requests/s"
        )
    yield f"  {errors_line(summary)}"
    if summary.verdicts:
        yield f"  {_verdicts(summary)}"
    for name, part in result.by_shape.items():
        yield f"  {name}: {shape_line(part)}"
    verdict = f"INVALID: {summary.invalid}" if summary.invalid else "valid"
    yield (
        f"  load generator: sent {1000 * summary.delay_p99:.1f} ms late at p99, "
        f"{summary.client_share:.1%} of a core; {verdict}"
    )


def _latencies(summary: Summary) -> Iterator[str]:
    if not summary.latency:
        return
    yield "        " + "".join(f"{share:>24}" for share in SHARES) + f"   ({LEVEL:.0%} intervals)"
    for name in LATENCIES:
        if (found := summary.latency.get(name)) is not None:
            cells = (f"{estimate(found[share]):>24}" for share in SHARES)
            yield f"  {name.upper():6}{''.join(cells)}"


def _rates(summary: Summary) -> str:
    cached = ""
    if summary.cached_share is not None:
        cached = f", {summary.cached_share:.0%} of prompts from a cache"
    return (
        f"output {summary.output_rate:.1f} tokens/s, prompts {summary.prompt_rate:.0f} "
        f"tokens/s, {summary.request_rate:.2f} requests/s; on average "
        f"{summary.mean_prompt_tokens:.0f} -> {summary.mean_output_tokens:.0f} tokens{cached}"
    )


def resource_lines(found: Resources) -> Iterator[str]:
    """What the engine took, in words; what is not known, with why, at the end."""
    if found.cpu_seconds is not None:
        used = (
            f"{found.cpu_share:.0%} of {found.cores} cores" if found.cpu_share else "all its cores"
        )
        yield f"CPU: {found.cpu_seconds:.1f} s, {used}"
    if (memory := found.memory) is not None:
        yield (
            f"memory: {size(memory.peak)} at most, {size(memory.mean)} on average ({memory.kind})"
        )
    for gpu in found.gpus:
        busy = "" if gpu.busy is None else f", busy {gpu.busy:.0%} of the time"
        watts = "" if gpu.watts is None else f", {gpu.watts:.0f} W"
        yield f"GPU {gpu.name}: {size(gpu.memory)} of {size(gpu.memory_total)}{busy}{watts}"
    if (energy := found.energy) is not None:
        yield (
            f"energy: {energy.joules:.0f} J, {energy.watts:.1f} W on average "
            f"({energy.origin}: {energy.source})"
        )
    density = found.density
    rates = {
        "core given": density.per_core_given, "core used": density.per_core_used,
        "GPU": density.per_gpu, "watt": density.per_watt,
    }  # fmt: skip
    if words := [f"{rate:.2f} per {what}" for what, rate in rates.items() if rate is not None]:
        yield f"output tokens/s: {', '.join(words)}"
    if (cost := found.cost) is not None:
        prices = {"output": cost.output, "input": cost.input, "both": cost.both}
        words = [f"{price:.4g} by {what}" for what, price in prices.items() if price is not None]
        yield (
            f"cost of a million tokens: {', '.join(words) or 'none came'} "
            f"({cost.hour:.4g} an hour: {cost.includes})"
        )
    reasons: dict[str, list[str]] = {}
    for name, why in found.unknown.items():
        reasons.setdefault(why, []).append(name.replace("_", " "))
    for why, names in reasons.items():
        yield f"not known: {', '.join(names)}: {why}"


def size(count: int) -> str:
    """Bytes."""
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"


def errors_line(summary: Summary) -> str:
    """How many answers were good, and what went wrong with the others."""
    if not summary.errors:
        return f"{summary.good} good answers, no errors"
    kinds = "; ".join(
        f"{count} {kind} ({summary.examples[kind]})" for kind, count in summary.errors.items()
    )
    return f"{summary.good} good answers, errors: {kinds}"


def _verdicts(summary: Summary) -> str:
    checked = sum(summary.verdicts.values())
    parts = ", ".join(f"{summary.verdicts.get(v, 0)} {v}" for v in ("right", "wrong", "malformed"))
    return f"answers checked: {checked}: {parts}"


def shape_line(summary: Summary) -> str:
    """One shape's figures in a line."""
    latency = "  ".join(
        f"{name.upper()} p50 {seconds(found['p50'].value)}, p99 {seconds(found['p99'].value)}"
        for name in ("ttft", "tpot")
        if (found := summary.latency.get(name)) is not None
    )
    attained = "" if summary.attained is None else f"  SLO met by {percent(summary.attained)}"
    failed = sum(summary.errors.values())
    return f"{summary.requests} requests, {failed} failed  {latency}{attained}"


def _starts(starts: list[Start]) -> Iterator[str]:
    for cold in (True, False):
        of_kind = [start for start in starts if start.cold == cold]
        if not of_kind:
            continue
        cached = [s.cached for s in of_kind if s.cached is not None]
        share = f", {max(cached):.0%} of the files in the page cache" if cold and cached else ""
        yield f"  {'cold' if cold else 'warm'}: median of {len(of_kind)} starts{share}"
        middle = medians(starts, cold=cold)
        for name, value in middle.items():
            values = [getattr(start, name) for start in of_kind]
            spread = f"{seconds(min(values))} to {seconds(max(values))}"
            yield f"    {_PHASE_NAMES[name]:30} {seconds(value):>10}   ({spread})"


def estimate(found: Estimate) -> str:
    """A latency, with its interval in brackets, in one unit; one value alone has none."""
    if found.low == found.high:
        return seconds(found.value)
    low, high = (_bare(bound, found.value) for bound in (found.low, found.high))
    return f"{seconds(found.value)} ({low}–{high})"


def percent(share: float, digits: int = 1) -> str:
    """All and none are told of what is all and none, and not of what is nearly so."""
    least = 10.0 ** -(digits + 2)
    if 0 < share < 1:
        share = min(max(share, least), 1 - least)
    return f"{share:.{digits}%}"


def seconds(value: float) -> str:
    return f"{_bare(value, value)} {'s' if value >= 1 else 'ms'}"


def _bare(value: float, like: float) -> str:
    """In seconds where ``like`` is one or more, else in milliseconds."""
    if like >= 1:
        return f"{value:.2f}"
    return f"{1000 * value:.0f}" if value >= 0.1 else f"{1000 * value:.1f}"


# ---- scenarios


def load_words(load: Closed | Gamma | TraceFile | Starts) -> str:
    if isinstance(load, Closed):
        return f"{load.concurrency} at a time"
    if isinstance(load, Gamma):
        bursts = "" if load.burstiness == 1 else f" in bursts (burstiness {load.burstiness:g})"
        return f"{load.rate:g} requests/s{bursts}"
    if isinstance(load, Starts):
        return f"{load.repeats} starts cold, {load.repeats} warm"
    faster = "" if load.speed == 1 else f", {load.speed:g} times as fast"
    if load.rate is not None:
        faster = f", at {load.rate:g} requests/s on average"
    return f"the trace {load.file}{faster}"


def describe(scenario: Scenario) -> str:
    """A scenario for ``bench show``."""
    lines = [
        f"{scenario.name}: {scenario.summary}",
        f"  load      {load_words(scenario.load)}",
    ]
    if not isinstance(scenario.load, Starts):
        lines.append(f"  measured  {scenario.seconds:g} s, after {scenario.warmup:g} s of warm-up")
    lines.append(f"  SLO       {scenario.slo or 'none'}")
    if scenario.shapes:
        lines.append(f"  context   {scenario.context} tokens")
    for shape in scenario.shapes:
        lines.append(f"  {shape.name:9} {_shape_words(shape)}")
    return "\n".join([*lines, f"  source    {scenario.source}"])


def _shape_words(shape: Shape) -> str:
    words = []
    if shape.prefix:
        whose = "system prompts" if shape.system else "beginnings"
        words.append(f"one of {shape.prefixes} {whose} of {shape.prefix} tokens")
    if shape.input is not None:
        words.append(_lengths(shape.input))
    if shape.task is not None:
        words.append("a task that is checked")
    text = " + ".join(words) + f" -> {_lengths(shape.output)}"
    if shape.turns > 1:
        text += f"; {shape.turns} turns, {shape.pause:g} s apart"
    if shape.tenant:
        text += f"; tenant {shape.tenant}"
    return text


def _lengths(lengths: Lengths) -> str:
    if isinstance(lengths, LogNormal):
        return f"{lengths.median:g} tokens (p50; p90 {lengths.p90:g}, at most {lengths.high})"
    if isinstance(lengths, Uniform):
        return f"{lengths.low} to {lengths.high} tokens"
    return f"{lengths.tokens} tokens"
