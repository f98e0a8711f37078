"""Which row-wise operations run together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidemill import _native
from tidemill.backends.cpu.instructions import Domain
from tidemill.program import ops
from tidemill.program.analysis import writes
from tidemill.program.ops import Op, ValueId

View = ops.Slice | ops.Reshape | ops.SelectRows
"""Operations that compute nothing: their results are places in what they read."""

# An operation brings at most three operands and results, and two slots of its own.
MAX_OPS: int = _native.MAX_CHAIN_SLOTS // 6


class Chains:
    """Consecutive row-wise operations over the same rows; views in between do not part them."""

    def __init__(
        self,
        body: Sequence[Op],
        domain: Callable[[ValueId], Domain],
        is_row_wise: Callable[[Op], bool],
    ) -> None:
        self._chain_of: dict[ValueId, int] = {}
        self._first: set[ValueId] = set()
        chain, size, rows = -1, 0, None
        for op in body:
            if isinstance(op, View):
                continue
            if not is_row_wise(op):
                rows = None
                continue
            out = writes(op)[0]
            if rows != domain(out) or size == MAX_OPS:
                chain, size, rows = chain + 1, 0, domain(out)
                self._first.add(out)
            size += 1
            self._chain_of[out] = chain

    def starts_at(self, op: Op) -> bool:
        return writes(op)[0] in self._first

    def together(self, maker: Op, user: Op) -> bool:
        """Whether two operations run in the same chain."""
        chain = self._chain_of.get(writes(maker)[0])
        return chain is not None and chain == self._chain_of.get(writes(user)[0])
