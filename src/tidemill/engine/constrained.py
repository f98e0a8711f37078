"""Answers that must look in a certain way: which tokens may come next is found out while the
forward step runs, on another thread where there is one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tidemill.engine.base import Aside, Constraint
from tidemill.engine.errors import ConstraintError


class Constrained:
    """One sequence's constraint, with the mask of what may come after its last token."""

    __slots__ = ("_constraint", "_filled", "_mask", "_wait")

    def __init__(self, constraint: Constraint, vocab_size: int) -> None:
        self._constraint = constraint.copy()
        self._mask = np.zeros(-(-vocab_size // 32), np.uint32)
        self._filled = False
        self._wait: Callable[[], None] | None = None

    def begin(self, aside: Aside) -> None:
        """Begin to fill the mask, beside what the caller does next."""
        if not self._filled and self._wait is None:
            self._wait = aside(self._fill)

    def mask(self) -> npt.NDArray[np.uint32]:
        """A bit for each token that may come next. Raises what the constraint raises."""
        wait, self._wait = self._wait, None
        if wait is not None:
            wait()
        if not self._filled:
            self._fill()
        return self._mask

    def accept(self, token_id: int) -> bool:
        """Go on by a token that the mask allows; whether the answer is complete with it. Raises
        ConstraintError."""
        try:
            fits = self._constraint.accept(token_id)
        except Exception as error:
            raise ConstraintError(str(error)) from error
        if not fits:
            raise ConstraintError(f"it refuses token {token_id}, which it had allowed")
        self._filled = False
        return self._constraint.complete

    def _fill(self) -> None:
        self._constraint.fill(self._mask)
        self._filled = True
