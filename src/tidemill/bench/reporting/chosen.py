"""Which runs a report is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemill.bench.compare.sides import runs_of
from tidemill.bench.result import Measurement, Result
from tidemill.bench.store import Store


def choose(store: Store, which: Sequence[str]) -> list[Measurement]:
    """By id (or the beginning of one), name, or file of results; each once. Without any, the newest
    of each scenario and target. Raises CompareError and StoreError, and OSError if a file cannot be
    read."""
    if not which:
        newest_ones = newest(store.results())
        return [Measurement(result, store.recording(result.id)) for result in newest_ones]
    found: dict[str, Measurement] = {}
    for text in which:
        for i, run in enumerate(runs_of(text, store)):
            found.setdefault(run.result.id or f"{text} {i}", run)
    return list(found.values())


def newest(results: Sequence[Result]) -> Iterator[Result]:
    """Of each scenario and target the newest run, with those that belong to it: repeats of one
    name, and the other points of a curve. ``results`` are from new to old."""
    first: dict[tuple[object, ...], Result] = {}
    for result in results:
        target = result.target
        place = (result.scenario.name, target.whom, target.model, bool(result.series))
        leader = first.setdefault(place, result)
        if result is leader or (_belongs(result) == _belongs(leader) != (None, None)):
            yield result


def _belongs(result: Result) -> tuple[str | None, str | None]:
    return result.name, result.series
