"""Bytes and operations of each step of a program, counted from shapes alone.

The counts are what an ideal machine must do: each weight, activation and KV entry moved once per
operation that uses it. They carry no measured figure; divide them by a machine's bandwidth and
rate to get a bound on time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tidemill.program.analysis import reads, weights_of, writes
from tidemill.program.ops import (
    Activation,
    AddRmsNorm,
    Attention,
    Combine,
    Embed,
    ExpertLinear,
    Gated,
    Linear,
    Op,
    Program,
    Reshape,
    RmsNorm,
    Rope,
    Route,
    SelectRows,
    Slice,
    Softcap,
)
from tidemill.records import dataclass
from tidemill.weights.base import TensorType


class Stored(Protocol):
    """A weight's storage type and shape, which is all that costs are counted from."""

    @property
    def type(self) -> TensorType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class SequenceShape:
    """One sequence of a batch: ``new`` tokens that end a context of ``context`` tokens."""

    new: int
    context: int

    def __post_init__(self) -> None:
        if not 1 <= self.new <= self.context:
            raise ValueError(f"{self.new} new tokens in a context of {self.context}")


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What costs depend on: the sequences, the logit rows, and bytes per KV element
    (4 for f32, 2 for f16, 1.0625 for q8_0)."""

    sequences: tuple[SequenceShape, ...]
    logit_rows: int
    kv_element_bytes: float = 2.0

    @property
    def tokens(self) -> int:
        return sum(sequence.new for sequence in self.sequences)

    def rows(self, kind: str) -> int:
        return self.tokens if kind == "tokens" else self.logit_rows


@dataclass(frozen=True, slots=True)
class OpCost:
    """Of one operation: weight bytes in storage type, KV bytes read and written, activation
    bytes read and written (float32), and floating-point operations (a multiply-add is two)."""

    op: Op
    weight_bytes: float
    kv_bytes: float
    read_bytes: int
    written_bytes: int
    flops: float

    @property
    def bytes(self) -> float:
        """All bytes moved."""
        return self.weight_bytes + self.kv_bytes + self.read_bytes + self.written_bytes


# Operations per element of the result, for what is neither a product nor attention.
_FLOPS_PER_ELEMENT: dict[type[Op], int] = {
    RmsNorm: 4,
    AddRmsNorm: 5,
    Rope: 3,
    Softcap: 3,
    Activation: 4,
    Gated: 5,
    Slice: 0,
    Reshape: 0,
    SelectRows: 0,
}


def cost(program: Program, weights: Mapping[str, Stored], batch: BatchShape) -> list[OpCost]:
    """The cost of each operation, in order.

    ``weights`` may be a model's ``weights.sources``, which tells types and shapes without
    touching data. For a mixture of experts, weight bytes are the mean over routers that choose
    all experts equally often.
    """
    return [_cost(op, program, weights, batch) for op in program.ops]


def _cost(op: Op, program: Program, weights: Mapping[str, Stored], batch: BatchShape) -> OpCost:
    def nbytes(value: int) -> int:
        v = program.values[value]
        return 4 * v.width * batch.rows(v.rows)

    moves = not isinstance(op, (Slice, Reshape))  # views move nothing
    out = program.values[writes(op)[-1]]
    rows = batch.rows(out.rows)
    stored = (weights[name] for name in weights_of(op))
    weight_bytes = float(sum(weight.type.nbytes(weight.shape) for weight in stored))
    kv_bytes = 0.0
    read_bytes = sum(nbytes(value) for value in reads(op)) if moves else 0
    flops = float(_FLOPS_PER_ELEMENT.get(type(op), 1) * out.width * rows)
    match op:
        case Embed():
            table = weights[op.weight]
            distinct = min(rows, table.shape[0])
            weight_bytes = weight_bytes * distinct / table.shape[0]
        case Linear():
            flops = 2.0 * rows * out.width * program.values[op.x].width
        case ExpertLinear():
            k, width = out.shape
            n_experts = weights[op.weights[0]].shape[0]
            missed = (1 - k / n_experts) ** rows
            weight_bytes *= 1 - missed
            flops = 2.0 * rows * k * width * program.values[op.x].shape[-1]
        case Attention():
            kv_bytes, flops = _attention(op, program, batch)
        case Route():
            flops = 5.0 * rows * program.values[op.x].width
        case Combine():
            flops = 2.0 * rows * program.values[op.x].width
    written_bytes = sum(nbytes(value) for value in writes(op)) if moves else 0
    return OpCost(op, weight_bytes, kv_bytes, read_bytes, written_bytes, flops)


def _attention(op: Attention, program: Program, batch: BatchShape) -> tuple[float, float]:
    n_heads, head_dim = program.values[op.q].shape
    kv = program.kv[op.layer]
    token_bytes = 2 * kv.n_kv_heads * kv.head_dim * batch.kv_element_bytes
    kv_bytes = flops = 0.0
    for sequence in batch.sequences:
        first = sequence.context - sequence.new  # position of the first new token
        window = op.window if op.window is not None else sequence.context
        # The token at position p sees min(p + 1, window) keys; full is where the window fills.
        full = min(max(window, first), sequence.context)
        growing = full - first
        pairs = growing * (first + 1 + full) // 2 + (sequence.context - full) * window
        oldest = max(0, first + 1 - window)
        kv_bytes += token_bytes * (sequence.context - oldest + sequence.new)
        flops += pairs * n_heads * (4 * head_dim + 5)
    return kv_bytes, flops
