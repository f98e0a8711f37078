"""A histogram as Prometheus has it: counts of values by upper bounds."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import field

from tidemill.records import dataclass


@dataclass(slots=True)
class Histogram:
    """``counts[i]`` values were at most ``bounds[i]`` and above the bound before it, the last of
    ``counts`` above all bounds; ``total`` is the sum of the values."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        # A fraction of a microsecond, where a metric of prometheus_client takes several: it is
        # done for every token.
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        return Histogram(self.bounds, self.counts.copy(), self.total)
