"""What an operation reads, writes and names: the questions every pass and backend asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from tidemill.program.ops import (
    Activation,
    Add,
    AddRmsNorm,
    Attention,
    Combine,
    Embed,
    ExpertLinear,
    Gated,
    Linear,
    Mul,
    Op,
    Program,
    Reshape,
    RmsNorm,
    Rope,
    Route,
    Scale,
    SelectRows,
    Slice,
    Softcap,
    ValueId,
)

# The fields that hold value ids read by an operation, and those it writes.
_READS: dict[type[Any], tuple[str, ...]] = {
    Embed: (),
    Linear: ("x",),
    RmsNorm: ("x",),
    Rope: ("x",),
    Attention: ("q", "k", "v"),
    Add: ("x", "y"),
    Mul: ("x", "y"),
    Scale: ("x",),
    Softcap: ("x",),
    Activation: ("x",),
    Slice: ("x",),
    Reshape: ("x",),
    SelectRows: ("x",),
    Route: ("x",),
    ExpertLinear: ("x", "ids"),
    Combine: ("x", "weights"),
    Gated: ("x",),
    AddRmsNorm: ("x", "y"),
}
_WRITES: dict[type[Any], tuple[str, ...]] = {
    **dict.fromkeys(_READS, ("out",)),
    Route: ("ids", "weights"),
    AddRmsNorm: ("out_sum", "out"),
}


def reads(op: Op) -> tuple[ValueId, ...]:
    """The values that ``op`` reads."""
    return tuple(getattr(op, field) for field in _READS[type(op)])


def writes(op: Op) -> tuple[ValueId, ...]:
    """The values that ``op`` computes."""
    return tuple(getattr(op, field) for field in _WRITES[type(op)])


def weights_of(op: Op) -> tuple[str, ...]:
    """The weights and biases that ``op`` names."""
    match op:
        case Embed() | RmsNorm() | AddRmsNorm():
            return (op.weight,)
        case Linear():
            return op.weights + tuple(name for name in op.biases if name is not None)
        case ExpertLinear():
            return op.weights
        case _:
            return ()


def weight_names(program: Program) -> frozenset[str]:
    """Every weight and bias that a program names."""
    return frozenset(name for op in program.ops for name in weights_of(op))


def with_values(op: Op, rename: Callable[[ValueId], ValueId]) -> Op:
    """``op`` with every value id replaced by ``rename(id)``."""
    fields: Iterable[str] = (*_READS[type(op)], *_WRITES[type(op)])
    renamed: dict[str, Any] = {field: rename(getattr(op, field)) for field in fields}
    return dataclasses.replace(op, **renamed)
