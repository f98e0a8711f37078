"""A technique on and off in interleaved rounds, and the arithmetic of what it gains."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

from techniques.setup import Bench

Kind = Literal["rate", "time", "size"]


@dataclass(frozen=True)
class Figure:
    """Something measured. The gain in a ``rate`` is with / without, in a ``time`` without / with,
    in a ``size`` the share that is saved, 1 - with / without; so is the field's ``promise``."""

    name: str
    unit: str
    kind: Kind = "rate"
    promise: float | None = None

    def gain(self, on: float, off: float) -> float:
        match self.kind:
            case "rate":
                return on / off
            case "time":
                return off / on
            case "size":
                return 1 - on / off

    def show(self, gain: float) -> str:
        return f"{gain:.0%} less" if self.kind == "size" else f"{gain:.2f}x"


@dataclass(frozen=True)
class Measured:
    """One side of a round: figures by name and, where the technique must not change them, the
    tokens that came out."""

    figures: Mapping[str, float]
    outputs: Sequence[Sequence[int]] | None = None


Measure = Callable[[bool], Measured]
"""Measures once, with the technique or without."""


@dataclass(frozen=True)
class Technique:
    """``without`` says what is done instead. ``open`` loads what both sides need."""

    title: str
    without: str
    figures: tuple[Figure, ...]
    open: Callable[[Bench], AbstractContextManager[Measure]]


@dataclass
class Rounds:
    """What a figure was in each round."""

    figure: Figure
    on: list[float] = field(default_factory=list)
    off: list[float] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """Medians, and the gain taken within each round: its median, lowest and highest."""
        gains = [self.figure.gain(on, off) for on, off in zip(self.on, self.off, strict=True)]
        return {
            "figure": self.figure.name, "unit": self.figure.unit, "kind": self.figure.kind,
            "with": statistics.median(self.on), "without": statistics.median(self.off),
            "gain": statistics.median(gains), "lowest": min(gains), "highest": max(gains),
            "promise": self.figure.promise, "rounds_with": self.on, "rounds_without": self.off,
        }  # fmt: skip


def compare(measure: Measure, figures: Sequence[Figure], rounds: int) -> list[dict[str, Any]]:
    """Both sides in each round, in an order that turns round. Raises SystemExit if the outputs
    differ: then the two sides have not done the same work."""
    found = [Rounds(figure) for figure in figures]
    for number in range(rounds):
        sides = {}
        for on in (True, False) if number % 2 == 0 else (False, True):
            sides[on] = measure(on)
        if sides[True].outputs != sides[False].outputs:
            raise SystemExit("the technique changed what came out: there is nothing to compare")
        for each in found:
            each.on.append(sides[True].figures[each.figure.name])
            each.off.append(sides[False].figures[each.figure.name])
    return [each.row() for each in found]


def lines(technique: Technique, found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The block of a technique in the table."""
    text = [f"{technique.title} (against {technique.without})"]
    for figure, row in zip(technique.figures, found, strict=True):
        show = figure.show
        promise = "" if figure.promise is None else f"   promised: {show(figure.promise)}"
        text.append(
            f"  {figure.name + ' (' + figure.unit + ')':38}{_number(row['with']):>9}"
            f"{_number(row['without']):>9}  {show(row['gain']):>9}"
            f" ({show(row['lowest'])}, {show(row['highest'])}){promise}"
        )
    return text


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"
