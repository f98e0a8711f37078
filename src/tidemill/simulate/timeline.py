"""Virtual time: what happens when, in order."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Protocol

Action = Callable[[], None]

# What happens first of all that happens at one time: steps end, which may make requests follow;
# those arrive; then the next steps begin.
_END, _CALL, _BEGIN = range(3)


class Stepping(Protocol):
    """What happens of itself: at ``at`` something ends, if it is ``ending``, or begins."""

    at: float
    ending: bool


class Timeline:
    """Calls ``on_step`` for what steps when its time has come, and actions at theirs."""

    def __init__(self, on_step: Callable[[Stepping], None]) -> None:
        self.now = 0.0
        self._on_step = on_step
        self._order = 0
        self._heap: list[tuple[float, int, int, Stepping | None, Action | None]] = []

    def call(self, at: float, action: Action) -> None:
        """Have ``action`` called at ``at``, after what was asked for before for that time."""
        self._push(at, _CALL, None, action)

    def follow(self, stepping: Stepping) -> None:
        """To be called whenever its ``at`` may be another."""
        if stepping.at < math.inf:
            self._push(stepping.at, _END if stepping.ending else _BEGIN, stepping, None)

    def _push(
        self, at: float, phase: int, stepping: Stepping | None, action: Action | None
    ) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at, phase, self._order, stepping, action))

    def run(self, going: Callable[[], bool]) -> None:
        """Until nothing is to come, or ``going`` is no longer so."""
        heap = self._heap
        while heap and going():
            at, phase, _, stepping, action = heapq.heappop(heap)
            if action is not None:
                self.now = at
                action()
            elif stepping is not None and stepping.at == at and stepping.ending == (phase == _END):
                self.now = at
                self._on_step(stepping)
