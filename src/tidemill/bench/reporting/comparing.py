"""Targets of one scenario against each other, with the verdicts of ``bench/compare.py``."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from tidemill.bench.compare import Comparison, Figure, Side, Unit, compare
from tidemill.bench.report import seconds
from tidemill.bench.reporting import words
from tidemill.bench.reporting.document import Block, Bullets, Cell, Table, Tone
from tidemill.bench.reporting.runs import Group, Shown
from tidemill.bench.statistics import Estimate

_ALL_PAIRS = 3
"""Targets up to which each is compared with each; more are compared with the first."""

_TONES: dict[str | None, Tone] = {"better": "good", "worse": "bad", "different": ""}


class Told(NamedTuple):
    """Whether a figure of one target is told apart from that of another; None: it cannot be known,
    and ``why``."""

    apart: bool | None
    why: str


class Comparisons:
    """Of the targets of a group, each made once. Invalid runs take no part, nor do those in which
    nothing was answered."""

    def __init__(self, group: Group) -> None:
        self.sides: dict[str, list[Shown]] = {}
        """Repeats by target."""
        for one in group.runs:
            summary = one.result.summary
            if one.result.starts or (summary and summary.good and not summary.invalid):
                self.sides.setdefault(one.label, []).append(one)
        self._between = functools.cache(self._compare)

    def pairs(self) -> Iterator[Comparison]:
        labels = list(self.sides)
        if len(labels) <= _ALL_PAIRS:
            pairs = itertools.combinations(labels, 2)
        else:
            pairs = ((labels[0], other) for other in labels[1:])  # type: ignore[assignment]
        for a, b in pairs:
            yield self._between(a, b)

    def told(self, name: str, one: str, other: str) -> Told:
        """Of the figure of that name, which both have."""
        pair = self._between(*sorted((one, other)))
        figure = next(figure for figure in pair.figures if figure.name == name)
        if figure.verdict is None:
            return Told(None, figure.why)
        return Told(figure.verdict != "not distinguishable", "")

    def _compare(self, a: str, b: str) -> Comparison:
        return compare(self._side(a), self._side(b), force=True)

    def _side(self, label: str) -> Side:
        runs = self.sides[label]
        return Side(label, [one.result for one in runs], [one.recording for one in runs])


def blocks(comparisons: Comparisons) -> Iterator[Block]:
    pairs = list(comparisons.pairs())
    if not pairs:
        return
    names = list(dict.fromkeys(figure.name for pair in pairs for figure in pair.figures))
    found = [{figure.name: figure for figure in pair.figures} for pair in pairs]
    rows = tuple(
        (Cell(f"{name[0].upper()}{name[1:]}"), *(_cell(figures.get(name)) for figures in found))
        for name in names
    )
    columns = ("", *(f"{pair.b.label} against {pair.a.label}" for pair in pairs))
    yield Table(
        "Against each other: ratio with its interval, and verdict", columns, rows,
        frozenset(range(1, len(columns))),
    )  # fmt: skip
    remarks = dict.fromkeys(
        f"{_who(pair)}: {words.clean(remark, longest=400)}."
        for pair in pairs
        for remark in (*pair.warnings, *pair.notes)
    )
    if remarks:
        yield Bullets(tuple(remarks))


def alarms(comparisons: Comparisons) -> Iterator[str]:
    """What makes a comparison unfair, or void."""
    for pair in comparisons.pairs():
        for alarm in pair.alarms:
            yield f"{pair.scenario}, {_who(pair)}: {words.clean(alarm, longest=400)}."


def _who(pair: Comparison) -> str:
    return f"{pair.a.label} (A) and {pair.b.label} (B)"


def _cell(figure: Figure | None) -> Cell:
    if figure is None:
        return Cell(words.NONE)
    values = f"{_value(figure.unit, figure.b)} against {_value(figure.unit, figure.a)}"
    verdict = figure.verdict or (f"no verdict: {figure.why}" if figure.why else "no verdict")
    effect = "" if figure.effect is None else f", effect {figure.effect:+.2f}"
    text = f"{_change(figure)} {verdict} ({values}{effect})"
    return Cell(text, _TONES.get(figure.verdict, "quiet"))


def _change(figure: Figure) -> str:
    change = figure.change
    if not isinstance(change, Estimate):
        return words.ratio(change) if figure.is_ratio else _points(change)
    if figure.is_ratio:
        return (
            f"{words.ratio(change.value)} [{words.ratio(change.low)} to {words.ratio(change.high)}]"
        )
    return f"{_points(change.value)} [{_points(change.low)} to {_points(change.high)}]"


def _points(share: float) -> str:
    """A difference of shares."""
    return f"{100 * share:+.1f} points"


def _value(unit: Unit, value: float) -> str:
    match unit:
        case "seconds":
            return seconds(value)
        case "share":
            return words.share(value)
        case "bytes":
            return words.size(round(value))
        case _:
            return words.rate(value)
