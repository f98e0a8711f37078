"""Embeddings: the hidden states of a prompt pooled to one vector, chunk after chunk."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Pooling = Literal["mean", "last"]
"""The mean over all tokens of the prompt, or the last one's."""


class Pool:
    """What is kept of the hidden states of one prompt: their sum.

    It is added up in float64, one token after the other, so that the result is the same however
    the prompt was cut into chunks.
    """

    __slots__ = ("_count", "_sum", "pooling")

    def __init__(self, pooling: Pooling) -> None:
        self.pooling = pooling
        self.clear()

    def clear(self) -> None:
        """Begin anew, for a prompt that is computed again."""
        self._sum: npt.NDArray[np.float64] | None = None
        self._count = 0

    def wanted(self, n: int, *, complete: bool) -> int:
        """Of how many of the last of ``n`` new tokens the hidden states are needed, where
        ``complete`` says that the prompt ends with them."""
        return n if self.pooling == "mean" else int(complete)

    def add(self, states: npt.NDArray[np.float32]) -> None:
        """Take in the next hidden states (n, d_model)."""
        if self._sum is None:
            self._sum = np.zeros(states.shape[1])
        for state in states:
            self._sum += state
        self._count += len(states)

    def vector(self) -> npt.NDArray[np.float32]:
        """The result, float32 (d_model,)."""
        assert self._sum is not None
        return (self._sum / self._count).astype(np.float32)
