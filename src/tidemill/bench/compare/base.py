"""What a comparison is: two sides, and what each figure says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from tidemill.bench.measures import Summary
from tidemill.bench.records import Recording
from tidemill.bench.result import Result
from tidemill.bench.statistics import Estimate

Verdict = Literal["better", "worse", "different", "not distinguishable"]
Unit = Literal["seconds", "per second", "share", "tokens", "bytes", "joules", "money"]


class CompareError(ValueError):
    """There is nothing to compare: the message says why."""


class Side(msgspec.Struct, frozen=True):
    """One run, or repeats of it. ``recordings``: None where only the figures are known."""

    label: str
    results: list[Result]
    recordings: list[Recording | None]

    @property
    def first(self) -> Result:
        return self.results[0]

    @property
    def summaries(self) -> list[Summary]:
        """Cold starts have none."""
        return [result.summary for result in self.results if result.summary is not None]

    def mean(self, of: Callable[[Summary], float]) -> float:
        """Over its runs; 0 of cold starts."""
        return sum(map(of, self.summaries)) / max(1, len(self.summaries))


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """``change``: B / A, or B - A where one is 0 and for shares (``is_ratio``). ``effect``: Cliff's
    delta of the single values, from -1 (all of B's are below A's) to 1. Without a verdict ``why``
    says what is missing."""

    name: str
    unit: Unit
    a: float
    b: float
    is_ratio: bool
    change: Estimate | float
    verdict: Verdict | None = None
    why: str = ""
    effect: float | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """B against A. ``alarms``: what makes the comparison unfair or void; ``warnings``: what else
    differs, or is not known; ``answers``: how alike those to the same prompts are; ``notes``: how
    to read it."""

    scenario: str
    a: Side
    b: Side
    figures: list[Figure]
    alarms: list[str]
    warnings: list[str]
    answers: list[str]
    notes: list[str]
