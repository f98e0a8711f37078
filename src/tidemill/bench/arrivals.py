"""When requests begin: as others end (closed loop), or by the clock alone (open loop)."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterator, Sequence

import msgspec

MAX_CONCURRENCY = 100_000
MIN_RATE, MAX_RATE = 1e-9, 1e6
"""Less than one in a lifetime, and beyond what one machine can send."""

MIN_BURSTINESS = 1e-4
"""Gaps then have a coefficient of variation of 100: nothing that was recorded is near to that."""


class Closed(
    msgspec.Struct, frozen=True, tag="closed", tag_field="kind", forbid_unknown_fields=True
):
    """``concurrency`` requests at any time: each that ends is followed by another one."""

    concurrency: int

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise ValueError(f"concurrency must be 1 to {MAX_CONCURRENCY}, not {self.concurrency}")


class Gamma(msgspec.Struct, frozen=True, tag="gamma", tag_field="kind", forbid_unknown_fields=True):
    """``rate`` requests a second on average, with gaps of a gamma distribution.

    ``burstiness`` is its shape: 1 is a Poisson process, below 1 is burstier. The coefficient of
    variation of the gaps is 1 / sqrt(burstiness).
    """

    rate: float
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        for name, least in (("rate", MIN_RATE), ("burstiness", MIN_BURSTINESS)):
            value = getattr(self, name)
            if not least <= value <= MAX_RATE:
                raise ValueError(f"{name} must be {least:g} to {MAX_RATE:g}, not {value}")

    def at(self, rate: float) -> Gamma:
        """The same at another rate."""
        return Gamma(rate, self.burstiness)

    def due(self, rng: random.Random) -> Iterator[float]:
        """Seconds from the start at which requests are due, without end."""
        scale = 1 / (self.rate * self.burstiness)
        return itertools.accumulate(
            rng.gammavariate(self.burstiness, scale) for _ in itertools.count()
        )


class Trace(msgspec.Struct, frozen=True, tag="trace", tag_field="kind", forbid_unknown_fields=True):
    """Requests as they once came: ``timestamps`` in seconds, of which the first is the start;
    ``speed`` times as fast."""

    timestamps: tuple[float, ...]
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not self.timestamps or not all(map(math.isfinite, self.timestamps)):
            raise ValueError("timestamps must be numbers, at least one")
        if any(a > b for a, b in itertools.pairwise(self.timestamps)):
            raise ValueError("timestamps must not go back in time")
        if not (0 < self.speed < math.inf):
            raise ValueError(f"speed must be more than 0, not {self.speed}")

    def due(self, rng: random.Random) -> Iterator[float]:
        """Seconds from the start at which requests are due."""
        first = self.timestamps[0]
        return ((stamp - first) / self.speed for stamp in self.timestamps)


Load = Closed | Gamma | Trace


def variation(timestamps: Sequence[float]) -> float | None:
    """Coefficient of variation of the gaps between requests: 1 of a Poisson process, more of
    bursts. None of fewer than three requests, or if all came at once."""
    gaps = [after - before for before, after in itertools.pairwise(timestamps)]
    if len(gaps) < 2 or not (mean := statistics.fmean(gaps)):
        return None
    return statistics.pstdev(gaps, mean) / mean
