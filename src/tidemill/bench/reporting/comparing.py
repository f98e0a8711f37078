"""Targets of one scenario against each other, with the verdicts of ``bench/compare``."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidemill.bench.compare import Comparison, Side, compare
from tidemill.bench.compare.words import row
from tidemill.bench.reporting import words
from tidemill.bench.reporting.document import Block, Bullets, Cell, Table, Tone
from tidemill.bench.reporting.runs import Group, Shown
from tidemill.bench.statistics import LEVEL

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
        for a, b in itertools.combinations(labels, 2):
            if a == labels[0] or len(labels) <= _ALL_PAIRS:
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
    found: dict[str, list[Cell]] = {}
    for i, pair in enumerate(pairs):
        for figure in pair.figures:
            title, _, _, change, verdict, effect = row(figure)
            cells = found.setdefault(title, [Cell(words.NONE)] * len(pairs))
            if figure.verdict is None:
                verdict = f"no verdict ({figure.why})"
            said = f"{change} {verdict}{f', effect {effect}' if effect else ''}"
            cells[i] = Cell(said, _TONES.get(figure.verdict, "quiet"))
    columns = ("", *(f"{pair.b.label} / {pair.a.label}" for pair in pairs))
    yield Table(
        f"Against each other: ratio (or difference) with its {LEVEL:.0%} interval, and verdict",
        columns, tuple((Cell(title), *cells) for title, cells in found.items()),
        frozenset(range(1, len(columns))),
    )  # fmt: skip
    remarks = dict.fromkeys(
        f"{_who(pair)}: {words.clean(remark, longest=400)}."
        for pair in pairs
        for remark in (*pair.warnings, *pair.answers)
    )
    if remarks:
        yield Bullets(tuple(remarks))


def alarms(comparisons: Comparisons) -> Iterator[str]:
    """What makes a comparison unfair, or void."""
    for pair in comparisons.pairs():
        for alarm in pair.alarms:
            yield f"{pair.scenario}, {_who(pair)}: {words.clean(alarm, longest=400)}."


def notes(every: Iterable[Comparisons]) -> list[str]:
    """How to read what is compared, once for all."""
    return list(dict.fromkeys(n for one in every for pair in one.pairs() for n in pair.notes))


def _who(pair: Comparison) -> str:
    return f"A {pair.a.label}, B {pair.b.label}"
