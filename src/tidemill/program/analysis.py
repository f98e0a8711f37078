"""What an operation reads, writes and names: the questions every pass and backend asks."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
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


def _getter(fields: tuple[str, ...]) -> Callable[[Any], tuple[ValueId, ...]]:
    """The fields of an operation as a tuple; passes ask ten thousand times in a start."""
    if len(fields) == 1:
        get_one = attrgetter(fields[0])
        return lambda op: (get_one(op),)
    return attrgetter(*fields) if fields else lambda op: ()


_GET_READS = {kind: _getter(fields) for kind, fields in _READS.items()}
_GET_WRITES = {kind: _getter(fields) for kind, fields in _WRITES.items()}


def reads(op: Op) -> tuple[ValueId, ...]:
    """The values that ``op`` reads."""
    return _GET_READS[type(op)](op)


def writes(op: Op) -> tuple[ValueId, ...]:
    """The values that ``op`` computes."""
    return _GET_WRITES[type(op)](op)


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
