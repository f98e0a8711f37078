"""What is to be met: limits, a load, and how much is kept in reserve."""

from __future__ import annotations

from typing import Literal

from tidemill.bench.measures import Slo
from tidemill.records import dataclass

DAY = 86_400
PEAK = 3.0
"""Of a day's mean rate, where nobody says otherwise: an assumption, which the report repeats."""
SPARE = 1
"""Replicas beyond what the peak needs (N + 1), where nobody says otherwise."""


Kind = Literal["rate", "in flight"]
"""Of a load: requests that come by the clock, so many a second, or so many at any time, each of
which is followed by another one when it ends."""


@dataclass(frozen=True, slots=True)
class Load:
    """At the peak."""

    kind: Kind
    amount: float
    words: str

    @classmethod
    def per_second(cls, rate: float) -> Load:
        return cls("rate", rate, f"{rate:g} requests a second at the peak")

    @classmethod
    def at_once(cls, requests: int) -> Load:
        return cls("in flight", requests, f"{requests:,} requests in flight at the peak")

    @classmethod
    def per_day(cls, requests: float, peak: float) -> Load:
        rate = requests / DAY * peak
        words = (
            f"{requests:,.0f} requests a day, {peak:g} times the mean at the peak: "
            f"{rate:.3g} a second"
        )
        return cls("rate", rate, words)


@dataclass(frozen=True, slots=True)
class Goal:
    """``slo`` is for 99 of 100 requests; ``spare`` replicas may fail without it being missed."""

    slo: Slo
    load: Load
    spare: int = SPARE
