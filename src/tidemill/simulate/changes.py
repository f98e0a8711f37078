"""What changes a cluster while it runs: replicas that die, and replicas that are added and removed
as the load is."""

from __future__ import annotations

import math

from tidemill.records import dataclass

_SHORTEST_LIFE = 1.0
"""Seconds: who dies more often never does anything."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Replica ``replica`` dies at ``at`` and is repaired after ``seconds``; infinity: never."""

    at: float
    replica: int
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.at < math.inf) or self.replica < 0 or not self.seconds >= 0:
            raise ValueError(f"a failure has a time, a replica and seconds from 0 on, not {self}")


@dataclass(frozen=True, slots=True)
class Failures:
    """When replicas die, beside those of which it is ``planned``: each after seconds of an
    exponential distribution with the mean ``mtbf`` (None: never), to be repaired after such with
    the mean ``mttr``. Then it starts, which takes ``start`` seconds. What it was computing is sent
    to others, ``retries`` times at most, and begins again there; then it is lost."""

    mtbf: float | None = None
    mttr: float = 0.0
    start: float = 30.0
    retries: int = 1
    planned: tuple[Failure, ...] = ()

    def __post_init__(self) -> None:
        if self.mtbf is not None and not _SHORTEST_LIFE <= self.mtbf < math.inf:
            raise ValueError(
                f"the mean time between failures must be {_SHORTEST_LIFE:g} s at least, not "
                f"{self.mtbf}"
            )
        for name in ("mttr", "start"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be seconds from 0 on, not {getattr(self, name)}")
        if self.retries < 0:
            raise ValueError(f"retries must be at least 0, not {self.retries}")


@dataclass(frozen=True, slots=True)
class Autoscale:
    """Keeps between ``least`` and ``most`` replicas, as many as it takes for ``target`` outstanding
    requests for each place (of ``ReplicaSpec.max_sequences``): beyond 1 they queue. It looks every
    ``interval`` seconds. A new one takes ``start`` seconds until it is there; none is removed
    until ``cooldown`` seconds after the last change, and then only once its requests have ended."""

    least: int
    most: int
    target: float = 0.7
    interval: float = 15.0
    start: float = 60.0
    cooldown: float = 300.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"1 <= least <= most must hold, not {self.least} and {self.most}")
        if not (0 < self.target < math.inf and 0 < self.interval < math.inf):
            raise ValueError("target and interval must be positive")
        if not (0 <= self.start < math.inf and 0 <= self.cooldown < math.inf):
            raise ValueError("start and cooldown must be seconds from 0 on")

    def wanted(self, outstanding: int, places: float) -> int:
        """Replicas of so many ``places`` each for so many requests."""
        return min(max(math.ceil(outstanding / (self.target * places)), self.least), self.most)
