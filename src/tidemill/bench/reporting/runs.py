"""Runs as a report takes them: grouped by scenario, each with a name and a look of its own."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import msgspec

from tidemill.bench.records import Recording
from tidemill.bench.report import load_words
from tidemill.bench.reporting import palette
from tidemill.bench.reporting.words import clean, model
from tidemill.bench.result import Measurement, Result
from tidemill.records import dataclass


@dataclass(frozen=True, slots=True)
class Shown:
    """A run under the name and with the look that its target has throughout a report. Without a
    recording there are no distributions and no timeline of it. ``repeat``: which of several runs of
    one name it is, from 1 on; 0 if there is but one."""

    label: str
    look: palette.Look
    result: Result
    recording: Recording | None
    repeat: int = 0

    @property
    def title(self) -> str:
        return f"{self.label} ({self.repeat})" if self.repeat else self.label


@dataclass(frozen=True, slots=True)
class Group:
    """Of one scenario: single runs, and series (the points of one curve), each by load."""

    scenario: str
    runs: tuple[Shown, ...]
    series: tuple[tuple[Shown, ...], ...]

    @property
    def every(self) -> tuple[Shown, ...]:
        return (*self.runs, *(point for points in self.series for point in points))


def who(result: Result) -> str:
    """An engine by its name, anything else by its address."""
    target = result.target
    if target.engine:
        return clean(target.engine)
    parts = urlsplit(target.url)
    return clean(parts.netloc + parts.path.rstrip("/").removesuffix("/v1")) or "an address"


def group(runs: Sequence[Measurement]) -> list[Group]:
    """By scenario, in the order of their names; within one by label."""
    runs = _without_lone_points(runs)
    labels = _labels([run.result for run in runs])
    ordered = sorted(
        zip(labels, runs, strict=True),
        key=lambda pair: (pair[0], pair[1].result.when, pair[1].result.id),
    )
    looks = palette.looks((label, who(run.result)) for label, run in ordered)
    places = [_place(label, run.result) for label, run in ordered]
    shown = [
        Shown(label, looks[label], *run, _repeat(places, i))
        for i, (label, run) in enumerate(ordered)
    ]
    found = []
    for scenario in sorted({one.result.scenario.name for one in shown}):
        ours = [one for one in shown if one.result.scenario.name == scenario]
        curves = dict.fromkeys(_curve(one) for one in ours if one.result.series)
        found.append(
            Group(
                scenario,
                tuple(one for one in ours if not one.result.series),
                tuple(
                    tuple(sorted((one for one in ours if _curve(one) == curve), key=load))
                    for curve in curves
                ),
            )
        )
    return found


def _without_lone_points(runs: Sequence[Measurement]) -> list[Measurement]:
    """A point whose curve has no other is a run like any."""

    def curve(run: Measurement) -> tuple[str | None, ...]:
        result = run.result
        return result.scenario.name, result.series, result.target.whom, result.target.model

    times = Counter(map(curve, runs))
    return [
        run
        if times[curve(run)] > 1
        else run._replace(result=msgspec.structs.replace(run.result, series=None))
        for run in runs
    ]


def _place(label: str, result: Result) -> tuple[str, str | None, str]:
    """What single runs and repeats have but one of."""
    return result.scenario.name, result.series, label


def _repeat(places: Sequence[tuple[str, str | None, str]], i: int) -> int:
    same = places[i][1] is None and places.count(places[i]) > 1
    return places[: i + 1].count(places[i]) if same else 0


def load(one: Shown) -> float:
    """Requests a second, or at a time; 0 of what has neither."""
    load = one.result.scenario.load
    return float(getattr(load, "rate", 0) or getattr(load, "concurrency", 0))


def _curve(one: Shown) -> tuple[str | None, str]:
    return one.result.series, one.label


# What else tells targets apart, from what a reader asks first.
_DIFFERENCES: tuple[Callable[[Result], str], ...] = (
    model,
    lambda result: clean(result.target.version or ""),
    lambda result: f"{result.target.threads} threads" if result.target.threads else "",
    lambda result: clean(shlex.join(result.target.arguments)),
    lambda result: clean(result.machine.cpu),
)


def _labels(results: Sequence[Result]) -> list[str]:
    """Who was measured, with as much more as keeps them apart. A target has the same label in all
    scenarios; what was done twice in one is told apart by load, and by name or id, unless it has
    one name: then those are repeats."""
    names = [who(result) for result in results]
    labels = names
    for difference in _DIFFERENCES:
        values: dict[str, set[str]] = {}
        for result, name in zip(results, names, strict=True):
            values.setdefault(name, set()).add(difference(result))
        labels = [
            f"{label} {difference(result)}".strip() if len(values[name]) > 1 else label
            for result, name, label in zip(results, names, labels, strict=True)
        ]
    for apart, last in _LAST:
        several: dict[tuple[str, str | None, str], set[str]] = {}
        for result, label in zip(results, labels, strict=True):
            several.setdefault(_place(label, result), set()).add(apart(result))
        labels = [
            f"{label} ({clean(last(result))})"
            if not result.series and len(several[_place(label, result)]) > 1
            else label
            for result, label in zip(results, labels, strict=True)
        ]
    return labels


def _load_words(result: Result) -> str:
    return load_words(result.scenario.load)


def _name(result: Result) -> str:
    return result.name or result.id or result.when


# What tells runs of a target in a scenario apart, and what they are then called. Of one name are
# repeats, if all was asked in the same way.
_LAST: tuple[tuple[Callable[[Result], str], Callable[[Result], str]], ...] = (
    (_load_words, _load_words),
    (_name, _name),
    (
        lambda r: repr((r.scenario.load, r.scenario.shapes, r.scenario.api, r.target.whom)),
        lambda r: r.id or r.when,
    ),
)
