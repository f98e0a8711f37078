"""Answers that must look in a certain way: which tokens may come next is found out while the
forward step runs, on another thread where there is one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tidemill.engine.base import Aside, Constraint, EngineStats
from tidemill.engine.errors import ConstraintError

Clock = Callable[[], float]


class Constrained:
    """One sequence's constraint, with the mask of what may come after its last token. What both
    cost is added to ``stats``, in the seconds of ``clock``."""

    __slots__ = ("_clock", "_constraint", "_filled", "_mask", "_stats", "_took", "_wait")

    def __init__(
        self, constraint: Constraint, vocab_size: int, stats: EngineStats, clock: Clock
    ) -> None:
        self._constraint = constraint.copy()
        self._mask = np.zeros(-(-vocab_size // 32), np.uint32)
        self._filled = False
        self._wait: Callable[[], None] | None = None
        self._stats = stats
        self._clock = clock
        self._took = 0.0

    def begin(self, aside: Aside) -> None:
        """Begin to fill the mask, beside what the caller does next."""
        if not self._filled and self._wait is None:
            self._wait = aside(self._fill)

    def mask(self) -> npt.NDArray[np.uint32]:
        """A bit for each token that may come next. Raises what the constraint raises."""
        wait, self._wait = self._wait, None
        if wait is None and self._filled:
            return self._mask
        begun = self._clock()
        if wait is not None:
            wait()
        if not self._filled:
            self._fill()
        self._stats.constraint_seconds += self._clock() - begun
        self._stats.mask_seconds.add(self._took)
        return self._mask

    def accept(self, token_id: int) -> bool:
        """Go on by a token that the mask allows; whether the answer is complete with it. Raises
        ConstraintError."""
        begun = self._clock()
        try:
            fits = self._constraint.accept(token_id)
        except Exception as error:
            raise ConstraintError(str(error)) from error
        self._stats.constraint_seconds += self._clock() - begun
        if not fits:
            raise ConstraintError(f"it refuses token {token_id}, which it had allowed")
        self._filled = False
        return self._constraint.complete

    def _fill(self) -> None:
        begun = self._clock()
        self._constraint.fill(self._mask)
        self._took = self._clock() - begun
        self._filled = True
