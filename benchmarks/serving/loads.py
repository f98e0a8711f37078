"""What servers are asked: prompts by kind, and how fast they come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.bench.arrivals import Closed, Gamma
from tidemill.bench.workload import Shape, Uniform, Workload

CONTEXT = 1536
STREAMS = 64
"""Most sequences at once, and the most tokens of one, over all loads."""

_CHAT = Shape("chat", Uniform(32, 160), Uniform(32, 96))
SHAPES: Mapping[str, tuple[Shape, ...]] = {
    "chat": (_CHAT,),
    # Eight long beginnings, such as system prompts or documents, and many questions about each.
    "shared": (Shape("shared", Uniform(16, 64), Uniform(32, 96), prefix=512, prefixes=8),),
    # Short questions that are to be answered at once, among long prompts.
    "mixed": (_CHAT, Shape("long", Uniform(700, 1200), Uniform(16, 48), weight=0.2)),
}


@dataclass(frozen=True)
class ClosedLoad:
    """``streams`` requests at any time."""

    shapes: str
    streams: int

    @property
    def name(self) -> str:
        return f"{self.shapes}/{self.streams}"


@dataclass(frozen=True)
class OpenLoad:
    """Requests by the clock, at a ``share`` of the rate of ``whose`` requests ended in the closed
    loop of 32 streams in the same round: its "own", or that of the "slowest" server, which is
    the same rate for all."""

    shapes: str
    share: float
    whose: str

    @property
    def name(self) -> str:
        return f"{self.shapes}/{self.whose}-{self.share:.0%}"


CLOSED = [
    *(ClosedLoad("chat", streams) for streams in (1, 4, 8, 16, 32, 64)),
    ClosedLoad("shared", 32),
    ClosedLoad("mixed", 32),
]
OPEN = [
    OpenLoad("mixed", 0.8, "slowest"),
    *(OpenLoad("mixed", share, "own") for share in (0.6, 0.9, 1.1)),
]
Load = ClosedLoad | OpenLoad
LOADS: dict[str, Load] = {load.name: load for load in (*CLOSED, *OPEN)}


def workload(load: Load, round_: int) -> Workload:
    """The prompts of a load in a round; no two loads or rounds have any in common."""
    return Workload(SHAPES[load.shapes], seed=1000 * round_ + list(LOADS).index(load.name))


def arrivals(load: Load, capacity: float) -> Closed | Gamma:
    """``capacity``: requests a second of whoever the load is relative to."""
    if isinstance(load, ClosedLoad):
        return Closed(load.streams)
    return Gamma(load.share * capacity)
