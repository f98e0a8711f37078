"""What a program is lowered to: the instructions of the native executor, as plain data.

Values of the program have become *buffers* (one row per token, or per row that something is wanted
of) and places within them. Offsets, and the barriers between threads, are worked out afterwards
(memory.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Literal

from tidemill.program.ops import ActivationKind, RopeSpec
from tidemill.records import dataclass

Domain = Literal["tokens", "selected", "logits"]
"""What rows stand for: the batch's tokens; those that logits or hidden states are wanted of; those
that logits are wanted of, which are the first of the selected ones."""


def is_gathered(source: Domain, reader: Domain) -> bool:
    """Whether row r of ``reader`` is another row than r of ``source``."""
    return source == "tokens" and reader != "tokens"


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Rows of ``width`` 4-byte elements in shared memory."""

    domain: Domain
    width: int


@dataclass(frozen=True, slots=True)
class Place:
    """Columns ``start`` to ``start + width`` of a buffer."""

    buffer: Buffer
    start: int
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Quantised rows of ``width`` activations. ``replicated``: in a small step each thread
    makes them for itself."""

    domain: Domain
    width: int
    replicated: bool


Memory = Buffer | Blocks


@dataclass(frozen=True, slots=True)
class Access:
    """What an instruction does to a memory. ``by_rows``: every thread touches only the rows
    that it owns in the instruction's domain (None: any row)."""

    memory: Memory
    writes: bool
    by_rows: Domain | None = None


@dataclass(frozen=True, slots=True)
class Rotation:
    """A rotary embedding and the buffer of its cosines and sines, by token."""

    spec: RopeSpec
    angles: Buffer


@dataclass(slots=True)
class Slot:
    """A value inside a row chain; ``place`` is None if it lives there only."""

    width: int
    place: Place | None
    is_input: bool = False
    gather: bool = False


@dataclass(slots=True)
class RowStep:
    """One operation of a row chain; operands are (slot, column)."""

    kind: str  # the name of a native RowOpKind
    x: tuple[int, int]
    out: tuple[int, int] = (0, 0)
    y: tuple[int, int] = (0, 0)
    ids: int = 0
    spare: int = 0
    width: int = 0
    heads: int = 1
    factor: float = 0.0
    activation: ActivationKind = "silu"
    weight: str | None = None
    rope: Rotation | None = None
    blocks: int = 0
    normalise: bool = False


@dataclass(slots=True)
class RowChain:
    """Row-wise operations, one row after another."""

    domain: Domain
    slots: list[Slot] = field(default_factory=list)
    steps: list[RowStep] = field(default_factory=list)
    blocks: list[Blocks] = field(default_factory=list)

    def accesses(self, small: bool) -> Iterator[Access]:
        # Replicated, every thread reads all rows and one writes them.
        rows = None if small and self.blocks else self.domain
        for slot in self.slots:
            if slot.place is not None:
                by_rows = None if slot.gather else rows
                yield Access(slot.place.buffer, writes=not slot.is_input, by_rows=by_rows)
        for step in self.steps:
            if step.rope is not None:
                gathered = is_gathered(step.rope.angles.domain, self.domain)
                yield Access(step.rope.angles, writes=False, by_rows=None if gathered else rows)
        for blocks in self.blocks:
            if not small:
                yield Access(blocks, writes=True, by_rows=rows)


@dataclass(frozen=True, slots=True)
class RopeAngles:
    """The cosines and sines of every token's position."""

    rotation: Rotation

    def accesses(self, small: bool) -> Iterator[Access]:
        yield Access(self.rotation.angles, writes=True, by_rows="tokens")


@dataclass(slots=True)
class EmbedRows:
    weight: str
    out: Place
    scale: float

    def accesses(self, small: bool) -> Iterator[Access]:
        yield Access(self.out.buffer, writes=True, by_rows="tokens")


@dataclass(frozen=True, slots=True)
class Input:
    """What a product reads: quantised rows, float rows, or both for matrices of both kinds."""

    blocks: Blocks | None
    floats: Place | None
    gather: bool

    def accesses(self, small: bool) -> Iterator[Access]:
        if self.blocks is not None and not (small and self.blocks.replicated):
            yield Access(self.blocks, writes=False)
        if self.floats is not None:
            yield Access(self.floats.buffer, writes=False)


@dataclass(frozen=True, slots=True)
class Gate:
    """act(first half) * second half of a product, quantised or as floats."""

    kind: ActivationKind
    width: int
    out: Blocks | Place


@dataclass(slots=True)
class Product:
    """``weights`` side by side; the result goes to ``out``, or through ``gate``."""

    domain: Domain
    weights: tuple[str, ...]
    biases: tuple[str | None, ...]
    x: Input
    out: Place | None
    gate: Gate | None = None
    softcap: float = 0.0

    def accesses(self, small: bool) -> Iterator[Access]:
        yield from self.x.accesses(small)
        if self.out is not None:
            yield Access(self.out.buffer, writes=True)
        if self.gate is not None:
            out = self.gate.out
            yield Access(out if isinstance(out, Blocks) else out.buffer, writes=True)


@dataclass(slots=True)
class ExpertProduct:
    """For every row its k experts' products. ``per_expert``: x holds k rows, not one."""

    domain: Domain
    weights: tuple[str, ...]
    x: Input
    per_expert: bool
    ids: Place
    k: int
    out: Place

    def accesses(self, small: bool) -> Iterator[Access]:
        yield from self.x.accesses(small)
        yield Access(self.ids.buffer, writes=False)
        yield Access(self.out.buffer, writes=True)


@dataclass(frozen=True, slots=True)
class HeadTransform:
    """What queries or keys go through, head by head, when attention reads them."""

    norm: str | None = None
    eps: float = 0.0
    rope: Rotation | None = None


@dataclass(slots=True)
class Attention:
    layer: int
    n_heads: int
    q: Place
    k: Place
    v: Place
    out: Place
    q_transform: HeadTransform
    k_transform: HeadTransform
    scale: float
    softcap: float
    window: int

    def accesses(self, small: bool) -> Iterator[Access]:
        for place in (self.q, self.k, self.v):
            yield Access(place.buffer, writes=False)
        for transform in (self.q_transform, self.k_transform):
            if transform.rope is not None:
                yield Access(transform.rope.angles, writes=False)
        yield Access(self.out.buffer, writes=True)


Instruction = RopeAngles | RowChain | EmbedRows | Product | ExpertProduct | Attention


@dataclass(frozen=True, slots=True)
class Lowered:
    """The instructions of a program, and where its logits and its hidden state end up."""

    instructions: tuple[Instruction, ...]
    logits: Place
    hidden: Place
