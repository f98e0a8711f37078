"""Where the buffers of a lowered program lie, and where its threads must meet.

Buffers live from the first instruction that touches them to the last; those that do not live at
the same time share addresses. An instruction's results never overlap its operands, because the
threads run through it at different speeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tidemill.backends.cpu.instructions import (
    Access,
    Blocks,
    Buffer,
    Lowered,
    Memory,
    RowChain,
)
from tidemill.records import dataclass

_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Sizes:
    """What memory is sized by; ``block_bytes`` are those of 32 quantised activations."""

    max_tokens: int
    max_logits: int
    small_rows: int
    block_bytes: int
    block_width: int

    def row_bytes(self, memory: Memory) -> int:
        if isinstance(memory, Buffer):
            return memory.width * 4
        return memory.width // self.block_width * self.block_bytes

    def shared_bytes(self, memory: Memory) -> int:
        rows = {
            "tokens": self.max_tokens,
            "selected": max(self.max_tokens, self.max_logits),
            "logits": self.max_logits,
        }
        return rows[memory.domain] * self.row_bytes(memory)

    def replica_bytes(self, memory: Memory) -> int:
        if isinstance(memory, Blocks) and memory.replicated:
            return self.small_rows * self.row_bytes(memory)
        return 0


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """Offsets in bytes by memory, the bytes in all, and the barriers before each instruction as
    (in a large step, in a small step)."""

    shared: dict[Memory, int]
    shared_total: int
    replica: dict[Memory, int]
    replica_total: int
    barriers: tuple[tuple[bool, bool], ...]


def map_memory(lowered: Lowered, sizes: Sizes) -> MemoryMap:
    in_large, in_small = (
        [tuple(instruction.accesses(small)) for instruction in lowered.instructions]
        for small in (False, True)
    )
    lifetimes = _lifetimes(lowered, [a + b for a, b in zip(in_large, in_small, strict=True)])
    shared = {memory: sizes.shared_bytes(memory) for memory in lifetimes}
    replica = {m: sizes.replica_bytes(m) for m in lifetimes if sizes.replica_bytes(m)}
    shared_at, shared_total = _place(shared, lifetimes)
    replica_at, replica_total = _place(replica, lifetimes)
    ranges = {m: (at, at + shared[m]) for m, at in shared_at.items()}
    barriers = tuple(zip(_barriers(in_large, ranges), _barriers(in_small, ranges), strict=True))
    return MemoryMap(shared_at, shared_total, replica_at, replica_total, barriers)


def _lifetimes(
    lowered: Lowered, accesses: Iterable[Iterable[Access]]
) -> dict[Memory, tuple[int, int]]:
    """The first and the last instruction that needs each memory; ``accesses`` by instruction."""
    result: dict[Memory, tuple[int, int]] = {}
    for index, (instruction, touched) in enumerate(
        zip(lowered.instructions, accesses, strict=True)
    ):
        # What a replicated chain reads is not reused by the product behind it, so that a small
        # step needs no barrier between the two.
        last = index + 1 if isinstance(instruction, RowChain) and instruction.blocks else index
        for access in touched:
            first, before = result.get(access.memory, (index, index))
            result[access.memory] = (first, max(before, last))
    end = len(lowered.instructions)
    for place in (lowered.logits, lowered.hidden):
        first, _ = result[place.buffer]
        result[place.buffer] = (first, end)
    return result


def _place(
    sizes: dict[Memory, int], lifetimes: dict[Memory, tuple[int, int]]
) -> tuple[dict[Memory, int], int]:
    """Offsets by first fit, the largest first, and the bytes in all."""
    # (begin, end) of what is placed, by the instructions during which it lives.
    taken: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    offsets: dict[Memory, int] = {}
    total = 0
    for memory, size in sorted(sizes.items(), key=lambda item: -item[1]):
        first, last = lifetimes[memory]
        at = 0
        for begin, end in sorted({place for i in range(first, last + 1) for place in taken[i]}):
            if at + size <= begin:
                break
            at = max(at, end)
        stop = -(-(at + size) // _ALIGN) * _ALIGN
        for i in range(first, last + 1):
            taken[i].append((at, stop))
        offsets[memory] = at
        total = max(total, stop)
    return offsets, total


def _barriers(
    accesses: Iterable[tuple[Access, ...]], ranges: dict[Memory, tuple[int, int]]
) -> list[bool]:
    """Whether the threads must meet before each instruction: if it touches what another thread
    may have touched since the last meeting, and one of the two writes."""
    since: tuple[Access, ...] = ()
    result = []
    for touched in accesses:
        needed = any(_conflict(old, new, ranges) for old in since for new in touched)
        result.append(needed)
        since = touched if needed else since + touched
    return result


def _conflict(old: Access, new: Access, ranges: dict[Memory, tuple[int, int]]) -> bool:
    if not (old.writes or new.writes):
        return False
    a, b = ranges[old.memory], ranges[new.memory]
    if a[1] <= b[0] or b[1] <= a[0]:
        return False
    # The same rows of the same buffer stay with the same thread.
    own = old.memory is new.memory and old.by_rows is not None and old.by_rows == new.by_rows
    return not own
