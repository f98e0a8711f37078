"""Rewrites that make a recorded program cheaper to run, each giving the same results.

A pass takes a program and returns another; ``optimise`` applies them in order. Passes only look
at the operations: which storage types a merged matrix has is for backends to sort out.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tidemill.program.analysis import reads, writes
from tidemill.program.ops import (
    Activation,
    Add,
    AddRmsNorm,
    Attention,
    ExpertLinear,
    Gated,
    Linear,
    Mul,
    Op,
    Program,
    Reshape,
    RmsNorm,
    Slice,
    Value,
    ValueId,
)

Pass = Callable[[Program], Program]
_OpT = TypeVar("_OpT", bound=Op)


def merge_linears(program: Program) -> Program:
    """Linears of the same input become one, its result sliced: Q, K and V; gate and up."""
    groups: dict[ValueId, list[Linear]] = defaultdict(list)
    for op in _ops_of(program.ops, Linear):
        groups[op.x].append(op)
    values = list(program.values)
    replacements: dict[ValueId, list[Op]] = {}
    for x, group in groups.items():
        if len(group) < 2:
            continue
        widths = [values[op.out].width for op in group]
        merged = Value(len(values), (sum(widths),), values[group[0].out].rows)
        values.append(merged)
        weights = tuple(name for op in group for name in op.weights)
        biases = tuple(b for op in group for b in op.biases or (None,) * len(op.weights))
        if not any(biases):
            biases = ()
        slices: list[Op] = []
        start = 0
        for op, width in zip(group, widths, strict=True):
            slices.append(Slice(merged.id, op.out, start, start + width))
            start += width
        replacements[group[0].out] = [Linear(x, merged.id, weights, biases), *slices]
        replacements.update((op.out, []) for op in group[1:])
    return _replaced(program, replacements, values)


def fold_reshapes(program: Program) -> Program:
    """A reshape of a slice is a slice of another shape, a reshape of a reshape one reshape."""
    made_by = _makers(program)
    replacements: dict[ValueId, list[Op]] = {}
    for op in _ops_of(program.ops, Reshape):
        source = made_by.get(op.x)
        while isinstance(source, Reshape):
            replacements[op.out] = [Reshape(source.x, op.out)]
            source = made_by.get(source.x)
        if isinstance(source, Slice):
            replacements[op.out] = [Slice(source.x, op.out, source.start, source.stop)]
    return _replaced(program, replacements)


def fuse_gates(program: Program) -> Program:
    """act(y[:f]) * y[f:] of a row y of width 2f becomes one ``Gated``."""
    made_by, uses = _makers(program), _use_counts(program)
    replacements: dict[ValueId, list[Op]] = {}
    for op in _ops_of(program.ops, Mul):
        act = made_by.get(op.x)
        if not isinstance(act, Activation) or uses[act.out] > 1:
            continue
        gate, up = made_by.get(act.x), made_by.get(op.y)
        if not isinstance(gate, Slice) or not isinstance(up, Slice) or gate.x != up.x:
            continue
        whole, half = program.values[gate.x], gate.stop - gate.start
        is_halves = (gate.start, up.start, up.stop) == (0, half, 2 * half)
        if is_halves and whole.shape == (2 * half,) and program.values[op.out].shape == (half,):
            replacements[op.out] = [Gated(gate.x, op.out, act.kind)]
    return _replaced(program, replacements)


def fuse_expert_gates(program: Program) -> Program:
    """act(gate_j(x)) * up_j(x) of the same experts becomes one ``ExpertLinear`` and a ``Gated``."""
    made_by, uses = _makers(program), _use_counts(program)
    values = list(program.values)
    replacements: dict[ValueId, list[Op]] = {}
    for op in _ops_of(program.ops, Mul):
        act = made_by.get(op.x)
        if not isinstance(act, Activation) or uses[act.out] > 1:
            continue
        gate, up = made_by.get(act.x), made_by.get(op.y)
        if not isinstance(gate, ExpertLinear) or not isinstance(up, ExpertLinear):
            continue
        if (gate.x, gate.ids) != (up.x, up.ids) or uses[gate.out] > 1 or uses[up.out] > 1:
            continue
        k, half = values[gate.out].shape
        merged = Value(len(values), (k, 2 * half), values[gate.out].rows)
        values.append(merged)
        replacements[op.out] = [
            ExpertLinear(gate.x, gate.ids, merged.id, gate.weights + up.weights),
            Gated(merged.id, op.out, act.kind),
        ]
    return _replaced(program, replacements, values)


def fuse_add_norms(program: Program) -> Program:
    """A residual sum and the norm of it become one ``AddRmsNorm``."""
    norms: dict[ValueId, RmsNorm] = {}
    for norm in _ops_of(program.ops, RmsNorm):
        if len(program.values[norm.x].shape) == 1:
            norms.setdefault(norm.x, norm)
    replacements: dict[ValueId, list[Op]] = {}
    for op in _ops_of(program.ops, Add):
        if op.out in norms:
            norm = norms[op.out]
            fused = AddRmsNorm(op.x, op.y, op.out, norm.out, norm.weight, norm.eps)
            replacements[op.out] = [fused]
            replacements[norm.out] = []
    return _replaced(program, replacements)


def drop_dead(program: Program) -> Program:
    """Without operations whose results nobody reads.

    Attention stays whatever happens to its result: it fills the KV cache. Of a fused operation
    both results stay if one is read.
    """
    live = {program.logits, program.hidden}
    kept: list[Op] = []
    for op in reversed(program.ops):
        if live.intersection(writes(op)) or isinstance(op, Attention):
            live.update(reads(op))
            live.update(writes(op))
            kept.append(op)
    return dataclasses.replace(program, ops=tuple(reversed(kept)))


PASSES: tuple[Pass, ...] = (
    merge_linears,
    fold_reshapes,
    fuse_gates,
    fuse_expert_gates,
    fuse_add_norms,
    drop_dead,
)


def optimise(program: Program, passes: tuple[Pass, ...] = PASSES) -> Program:
    """The program that compiled backends run."""
    for apply in passes:
        program = apply(program)
    return program


def _ops_of(ops: Iterable[Op], kind: type[_OpT]) -> Iterator[_OpT]:
    return (op for op in ops if isinstance(op, kind))


def _makers(program: Program) -> dict[ValueId, Op]:
    return {value: op for op in program.ops for value in writes(op)}


def _use_counts(program: Program) -> dict[ValueId, int]:
    counts: dict[ValueId, int] = defaultdict(int)
    for value in (program.logits, program.hidden):
        counts[value] += 1
    for op in program.ops:
        for value in reads(op):
            counts[value] += 1
    return counts


def _replaced(
    program: Program, replacements: dict[ValueId, list[Op]], values: list[Value] | None = None
) -> Program:
    """The operation that writes value v gives way to ``replacements[v]``, at its place."""
    if not replacements:
        return program
    ops: list[Op] = []
    for op in program.ops:
        for value in writes(op):
            if value in replacements:
                ops += replacements[value]
                break
        else:
            ops.append(op)
    return dataclasses.replace(
        program, ops=tuple(ops), values=program.values if values is None else tuple(values)
    )
