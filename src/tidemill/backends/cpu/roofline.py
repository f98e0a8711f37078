"""Where the time of forward steps goes, held against what this machine could do at most.

The bound of an operation is the roofline model's (Williams, Waterman and Patterson 2009): the
longer of the time that its bytes take at the measured memory bandwidth and the time that its
products take at the measured rate of the vector units for that weight format.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tidemill import _native
from tidemill.backends.base import Batch
from tidemill.backends.cpu.runner import CpuRunner
from tidemill.hardware import measure_bandwidth
from tidemill.models import Model
from tidemill.program.analysis import weights_of
from tidemill.program.cost import BatchShape, OpCost, SequenceShape, Stored, cost
from tidemill.program.ops import Attention, ExpertLinear, Linear
from tidemill.weights.base import TensorType

_KV_ELEMENT_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 1.0625}


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What ``threads`` threads together reach here: bytes per second of a streaming read, and
    products (multiply-adds) per second of each weight format's bare arithmetic."""

    threads: int
    bytes_per_second: float
    products_per_second: Mapping[TensorType, float]


def measure_ceilings(
    types: Iterable[TensorType], threads: int, *, seconds: float = 0.3
) -> Ceilings:
    """Measure this machine, about ``seconds`` for the memory and for each type. Attention counts
    as ``F32``, which is always measured."""
    rates = {
        type_: _native.peak_products(int(type_), threads, seconds)
        for type_ in sorted({*types, TensorType.F32})
    }
    return Ceilings(threads, measure_bandwidth(seconds, threads).bytes_per_second, rates)


@dataclass(slots=True)
class Line:
    """One kind of operation over all layers and steps. ``seconds`` as one thread saw them, with
    its waiting for the others. ``products``: multiply-adds; ``bytes``: weights and KV, as stored.
    ``bound``: seconds that the machine needs at least; 0 for small operations, which have none.
    """

    name: str
    seconds: float = 0.0
    products: float = 0.0
    bytes: float = 0.0
    memory_bound: float = 0.0
    product_bound: float = 0.0
    bound: float = 0.0

    def add(self, part: OpCost, type_: TensorType, ceilings: Ceilings) -> None:
        moved = part.weight_bytes + part.kv_bytes
        memory = moved / ceilings.bytes_per_second
        arithmetic = part.flops / 2 / ceilings.products_per_second[type_]
        self.products += part.flops / 2
        self.bytes += moved
        self.memory_bound += memory
        self.product_bound += arithmetic
        self.bound += max(memory, arithmetic)

    @property
    def bound_by(self) -> str:
        if self.bound == 0.0:
            return ""
        return "memory" if self.memory_bound >= self.product_bound else "arithmetic"


@dataclass(slots=True)
class Profile:
    """The steps of a runner that ran while it was watched."""

    batches: list[BatchShape] = field(default_factory=list)
    timings: list[tuple[str, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.timings)

    @property
    def tokens(self) -> int:
        return sum(batch.tokens for batch in self.batches)

    def lines(self, model: Model, ceilings: Ceilings) -> list[Line]:
        """Kinds of operations, those that took longest first."""
        sources = model.weights.sources
        kinds: dict[str, Line] = {}
        of_weight: dict[str, Line] = {}
        for name, seconds in self.timings:
            kind = kind_of(name)
            line = kinds.setdefault(kind, Line(kind))
            line.seconds += seconds
            of_weight.update((weight, line) for weight in name.split("+"))
        for batch, times in _counted(self.batches).items():
            for part in cost(model.program, sources, batch):
                line_of = _attribute(part, sources, of_weight)
                if line_of is not None:
                    line, type_ = line_of
                    line.add(_times(part, times), type_, ceilings)
        return sorted(kinds.values(), key=lambda line: -line.seconds)


@contextmanager
def watch(runner: CpuRunner) -> Iterator[Profile]:
    """Time the instructions of every step of ``runner`` inside the block; the profile is complete
    behind it. One at a time."""
    profile = Profile()
    element = _KV_ELEMENT_BYTES[runner.kv.dtype]

    def note(batch: Batch) -> None:
        profile.batches.append(_shape(batch, element))

    runner.on_batch = note
    runner.profile(True)
    try:
        yield profile
    finally:
        profile.timings = runner.timings()
        runner.profile(False)
        runner.on_batch = None


def uniform_batch(
    tokens: npt.NDArray[np.int32], n: int, past: int, block_size: int, blocks_each: int
) -> Batch:
    """``n`` sequences that share ``tokens`` evenly, each behind ``past`` others and with
    ``blocks_each`` KV blocks of its own; logits of the last token of each."""
    new = len(tokens) // n
    if n * new != len(tokens) or past + new > blocks_each * block_size:
        raise ValueError(f"{len(tokens)} tokens for {n} sequences of {blocks_each} blocks each")
    return Batch(
        tokens=tokens.astype(np.int32),
        positions=np.tile(np.arange(past, past + new, dtype=np.int32), n),
        query_starts=np.arange(0, len(tokens) + 1, new, dtype=np.int32),
        context_lens=np.full(n, past + new, np.int32),
        block_tables=np.arange(n * blocks_each, dtype=np.int32).reshape(n, -1),
        logit_rows=np.arange(new - 1, len(tokens), new, dtype=np.int32),
    )


def weight_types(model: Model) -> set[TensorType]:
    """The types of the matrices that a model's products read."""
    sources = model.weights.sources
    return {
        sources[name].type
        for op in model.program.ops
        if isinstance(op, Linear | ExpertLinear)
        for name in weights_of(op)
        if len(sources[name].shape) > 1
    }


def kind_of(instruction: str) -> str:
    """An instruction's name without its layer."""
    return re.sub(r"blk\.\d+\.|\.weight", "", instruction)


def _shape(batch: Batch, element: float) -> BatchShape:
    new = (batch.query_starts[1:] - batch.query_starts[:-1]).tolist()
    contexts = batch.context_lens.tolist()
    # In order: the same sequences in another order cost the same.
    sequences = sorted(zip(new, contexts, strict=True))
    return BatchShape(
        tuple(SequenceShape(n, context) for n, context in sequences),
        len(batch.logit_rows),
        element,
    )


def _counted(batches: list[BatchShape]) -> dict[BatchShape, int]:
    counts: dict[BatchShape, int] = defaultdict(int)
    for batch in batches:
        counts[batch] += 1
    return counts


def _attribute(
    part: OpCost, sources: Mapping[str, Stored], of_weight: Mapping[str, Line]
) -> tuple[Line, TensorType] | None:
    """The line that an operation's cost belongs to, and what its products count as."""
    op = part.op
    if isinstance(op, Attention):
        line = of_weight.get(f"blk.{op.layer}.attention")
        return None if line is None else (line, TensorType.F32)
    if not isinstance(op, Linear | ExpertLinear):
        return None
    name = weights_of(op)[0]
    line = of_weight.get(name)
    return None if line is None else (line, sources[name].type)


def _times(part: OpCost, n: int) -> OpCost:
    return OpCost(
        part.op, part.weight_bytes * n, part.kv_bytes * n, part.read_bytes * n,
        part.written_bytes * n, part.flops * n,
    )  # fmt: skip
