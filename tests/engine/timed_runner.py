"""A FakeRunner on a clock of its own: each step takes what a given cost says."""

from __future__ import annotations

from collections.abc import Callable

from engine.fake_runner import FakeRunner
from tidemill.engine.step_time import Work

Cost = Callable[[Work], float]


class TimedRunner(FakeRunner):
    """``clock()`` is the time; forward() lets ``cost(work)`` seconds pass."""

    def __init__(self, cost: Cost, **options) -> None:
        super().__init__(**options)
        self.cost = cost
        self.time = 0.0

    def clock(self) -> float:
        return self.time

    def forward(self, batch):
        n = len(batch.tokens)
        work = Work(n, int(batch.positions.sum()) + n, len(batch.logit_rows))
        self.time += self.cost(work)
        return super().forward(batch)
