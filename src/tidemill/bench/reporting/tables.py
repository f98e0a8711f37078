"""Figures of runs as tables: a row for each figure, a column for each run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tidemill.bench.measures import LATENCIES, SHARES, Summary
from tidemill.bench.report import load_words, seconds, size
from tidemill.bench.reporting import words
from tidemill.bench.reporting.document import Cell, Table
from tidemill.bench.reporting.runs import Shown
from tidemill.bench.reporting.starting import PHASES, phases
from tidemill.bench.resources import Resources
from tidemill.bench.starts import medians
from tidemill.bench.statistics import LEVEL

Row = tuple[str, Callable[[Shown, Summary], Cell | str]]


def figures(runs: Sequence[Shown]) -> Table:
    """All that is known of runs of requests; rows that nobody has anything for are left out."""
    kept = [(one, one.result.summary) for one in runs if one.result.summary is not None]
    rows = []
    for title, of in _rows():
        cells = [found if isinstance(found := of(*pair), Cell) else Cell(found) for pair in kept]
        if any(cell.text != words.NONE for cell in cells):
            rows.append((Cell(title), *cells))
    return Table(
        f"Figures of each run; latencies with their {LEVEL:.0%} intervals",
        ("", *(one.title for one, _ in kept)), tuple(rows),
    )  # fmt: skip


def _rows() -> Iterator[Row]:
    yield "Valid", _validity
    yield "Load", lambda one, _: load_words(one.result.scenario.load)
    yield "Requests in the window", lambda _, s: f"{s.requests}"
    yield "Failed", _failed
    for name in LATENCIES:
        for share in SHARES:
            yield f"{name.upper()} {share}", _latency(name, share)
    yield "SLO met by", lambda _, s: words.share(s.attained)
    yield "Goodput, requests/s that meet the SLO", lambda _, s: words.rate(s.goodput)
    yield "Requests/s answered", lambda _, s: words.rate(s.request_rate)
    yield "Output tokens/s", lambda _, s: words.rate(s.output_rate)
    yield "Output tokens/s per core given", lambda one, _: words.rate(one.result.per_core)
    yield "Output tokens/s per core used", _resource(lambda r: words.rate(r.density.per_core_used))
    yield "Output tokens/s per GPU", _resource(lambda r: words.rate(r.density.per_gpu))
    yield "Output tokens/s per watt", _resource(_per_watt)
    yield "Prompt tokens/s", lambda _, s: words.rate(s.prompt_rate)
    yield "Tokens of a prompt, mean", lambda _, s: words.rate(s.mean_prompt_tokens)
    yield "Tokens of an answer, mean", lambda _, s: words.rate(s.mean_output_tokens)
    yield "Prompt tokens from a cache", lambda _, s: words.share(s.cached_share)
    yield "Answers right", _right
    yield "CPU used, of the cores given", _resource(lambda r: words.share(r.cpu_share))
    yield "Memory, at most", _resource(_memory)
    yield "Cost of a million output tokens", _resource(_cost)
    yield "Tokens counted", lambda _, s: "by the endpoint" if s.counted else "as pieces of text"
    yield "Sent late by, p99", lambda _, s: seconds(s.delay_p99)
    yield "Load generator, of a core", lambda _, s: words.share(s.client_share)


def _validity(one: Shown, summary: Summary) -> Cell:
    return Cell("INVALID", "bad") if summary.invalid else Cell("yes")


def _failed(one: Shown, summary: Summary) -> Cell:
    count = sum(summary.errors.values())
    return Cell(str(count), "bad" if count else "")


def _latency(name: str, share: str) -> Callable[[Shown, Summary], str]:
    return lambda _, summary: words.interval(summary.latency.get(name, {}).get(share))


def _resource(of: Callable[[Resources], str]) -> Callable[[Shown, Summary], str]:
    return lambda one, _: words.NONE if (found := one.result.resources) is None else of(found)


def _per_watt(resources: Resources) -> str:
    energy = resources.energy
    if energy is None:
        return words.NONE
    return (
        f"{words.rate(resources.density.per_watt)} ({energy.origin}: {words.clean(energy.source)})"
    )


def _memory(resources: Resources) -> str:
    memory = resources.memory
    return words.NONE if memory is None else f"{size(memory.peak)} ({memory.kind})"


def _cost(resources: Resources) -> str:
    cost = resources.cost
    return (
        words.NONE if cost is None else f"{words.rate(cost.output)} ({words.clean(cost.includes)})"
    )


def _right(one: Shown, summary: Summary) -> str:
    checked = sum(summary.verdicts.values())
    if not checked:
        return words.NONE
    return f"{summary.verdicts.get('right', 0)} of {checked}"


def errors(runs: Sequence[Shown]) -> Table | None:
    """What failed, and what the endpoint said of it, last."""
    rows = tuple(
        (Cell(one.title), Cell(words.clean(kind)), Cell(str(count)), Cell(_example(summary, kind)))
        for one in runs
        if (summary := one.result.summary) is not None
        for kind, count in sorted(summary.errors.items())
    )
    columns = ("", "Kind", "Requests", "What the endpoint said, last")
    return Table("Requests that failed", columns, rows, frozenset({1, 3})) if rows else None


def _example(summary: Summary, kind: str) -> str:
    return words.clean(summary.examples.get(kind, ""), longest=200)


_FEW = [("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99")]
_BRIEF = ("Requests", "Failed", *(f"{name.upper()} {share}" for name, share in _FEW), "SLO met by")


def _brief(one: Shown, summary: Summary) -> Iterator[Cell]:
    """The columns of ``_BRIEF``."""
    yield Cell(str(summary.requests))
    yield _failed(one, summary)
    for name, share in _FEW:
        found = summary.latency.get(name, {}).get(share)
        yield Cell(words.NONE if found is None else seconds(found.value))
    yield Cell(words.share(summary.attained))


def shapes(runs: Sequence[Shown]) -> Table | None:
    """Figures of each kind of request, where a scenario has several."""
    rows = tuple(
        (Cell(f"{one.title}: {words.clean(name)}"), *_brief(one, part))
        for one in runs
        for name, part in one.result.by_shape.items()
    )
    return Table("By kind of request", ("", *_BRIEF), rows) if rows else None


def points(series: Sequence[Shown]) -> Table:
    """A curve's points, by load."""
    rows = tuple(
        (
            Cell(load_words(one.result.scenario.load)),
            *_brief(one, summary),
            Cell(words.rate(summary.output_rate)),
            _validity(one, summary),
        )
        for one in series
        if (summary := one.result.summary) is not None
    )
    columns = ("Load", *_BRIEF, "Output tokens/s", "Valid")
    return Table(f"{series[0].label} at several loads", columns, rows)


def starts(runs: Sequence[Shown]) -> Table | None:
    """Medians by phase, of cold and warm starts, and the spread of their sum."""
    found = [
        (f"{one.title}, {'cold' if cold else 'warm'}", of_kind, medians(of_kind, cold=cold))
        for one in runs
        for cold in (True, False)
        if (of_kind := [start for start in one.result.starts if start.cold == cold])
    ]
    if not found:
        return None
    known = [phase for phase in PHASES if any(phase in middle for _, _, middle in found)]
    rows = []
    for title, of_kind, middle in found:
        lengths = phases(middle)
        totals = [start.first_token for start in of_kind]
        rows.append(
            (
                Cell(title),
                Cell(str(len(of_kind))),
                *(Cell(seconds(lengths[p]) if p in lengths else words.NONE) for p in known),
                Cell(seconds(middle["first_token"])),
                Cell(f"{seconds(min(totals))} to {seconds(max(totals))}"),
                Cell(seconds(middle["second"])),
            )
        )
    columns = (
        "", "Starts", *(f"{PHASES[phase][0].upper()}{PHASES[phase][1:]}" for phase in known),
        "Start to first token", "Fastest to slowest", "TTFT of a second request",
    )  # fmt: skip
    return Table("Starts: medians of each phase", columns, tuple(rows))
