"""Which buffer holds which value, so that compiled backends need memory for a few rows only.

A buffer is a matrix with one row per token (or per requested logit row) that one value after
another lives in. ``Slice`` and ``Reshape`` move nothing: their results are views into the row of
the value that they are taken from. An operation never writes into a buffer that it reads from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidemill.program.analysis import reads, writes
from tidemill.program.ops import Program, Reshape, Slice, ValueId


@dataclass(frozen=True, slots=True)
class Buffer:
    """``width`` elements of 4 bytes for each row that a batch may have."""

    width: int
    rows: Literal["tokens", "logits"]
    dtype: Literal["f32", "i32"]


@dataclass(frozen=True, slots=True)
class Place:
    """Row t of a value begins at element ``t * stride + offset`` of its buffer.

    ``stride`` is the width of the value that owns the row: the value itself (then rows are
    contiguous), or for a view, the one that it was sliced from.
    """

    buffer: int
    offset: int
    stride: int


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """``places`` by value id, into ``buffers``."""

    buffers: tuple[Buffer, ...]
    places: tuple[Place, ...]

    def nbytes(self, *, max_tokens: int, max_logit_rows: int) -> int:
        """Bytes of all buffers for batches of at most this many rows."""
        rows = {"tokens": max_tokens, "logits": max_logit_rows}
        return sum(4 * buffer.width * rows[buffer.rows] for buffer in self.buffers)


def assign_buffers(program: Program) -> BufferPlan:
    """Give every value a place; values whose lives do not overlap may share a buffer.

    The program's ``logits`` and ``hidden`` keep theirs to the end.
    """
    roots = _roots(program)
    last_read = _last_reads(program, roots)
    ends: dict[int, list[ValueId]] = {}
    for root, index in last_read.items():
        ends.setdefault(index, []).append(root)

    widths: list[int] = []
    kinds: list[tuple[Literal["tokens", "logits"], Literal["f32", "i32"]]] = []
    free: list[int] = []
    buffer_of: dict[ValueId, int] = {}
    for index, op in enumerate(program.ops):
        for out in writes(op):
            if roots[out][0] != out:
                continue  # a view
            value = program.values[out]
            kind = (value.rows, value.dtype)
            candidates = [b for b in free if kinds[b] == kind]
            if candidates:
                chosen = min(candidates, key=lambda b: _misfit(widths[b], value.width))
                free.remove(chosen)
                widths[chosen] = max(widths[chosen], value.width)
            else:
                chosen = len(widths)
                widths.append(value.width)
                kinds.append(kind)
            buffer_of[out] = chosen
        free.extend(buffer_of[root] for root in ends.get(index, ()))

    places = []
    for value in program.values:
        root, offset = roots.get(value.id, (value.id, 0))
        if root not in buffer_of:
            raise ValueError(f"value {value.id} is never written; drop dead values first")
        places.append(Place(buffer_of[root], offset, program.values[root].width))
    buffers = tuple(Buffer(w, *kind) for w, kind in zip(widths, kinds, strict=True))
    return BufferPlan(buffers, tuple(places))


def _roots(program: Program) -> dict[ValueId, tuple[ValueId, int]]:
    """Value -> (the value that owns its memory, offset within that one's row)."""
    roots: dict[ValueId, tuple[ValueId, int]] = {}
    for op in program.ops:
        if isinstance(op, (Slice, Reshape)):
            root, offset = roots[op.x]
            roots[op.out] = (root, offset + (op.start if isinstance(op, Slice) else 0))
        else:
            roots.update((out, (out, 0)) for out in writes(op))
    return roots


def _last_reads(program: Program, roots: dict[ValueId, tuple[ValueId, int]]) -> dict[ValueId, int]:
    """Root -> index of the last operation that reads it or a view on it (its own if none)."""
    last: dict[ValueId, int] = {}
    for index, op in enumerate(program.ops):
        for value in (*writes(op), *reads(op)):
            last[roots[value][0]] = index
    for result in (program.logits, program.hidden):
        last[roots[result][0]] = len(program.ops)
    return last


def _misfit(width: int, wanted: int) -> tuple[bool, int]:
    """Order buffers: the narrowest that is wide enough, else the widest (it grows least)."""
    return (width < wanted, width - wanted if width >= wanted else wanted - width)
