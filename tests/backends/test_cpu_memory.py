"""Where values lie and where threads meet: checked by a model of the executor that knows nothing
of how either was worked out."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from support.tiny_models import CASES, TinyCase, write_folder
from tidemill.backends.cpu.instructions import (
    Access,
    Attention,
    Blocks,
    Buffer,
    EmbedRows,
    Lowered,
    Place,
    Product,
    RowChain,
    Slot,
)
from tidemill.backends.cpu.lowering import lower
from tidemill.backends.cpu.memory import MemoryMap, Sizes, map_memory
from tidemill.models import load_model
from tidemill.program.passes import optimise
from tidemill.weights import open_checkpoint
from tidemill.weights.base import TensorType, WeightTensor

SIZES = Sizes(max_tokens=8, max_logits=3, small_rows=2, block_bytes=44, block_width=32)


def lowered(case: TinyCase, tmp_path: Path) -> Lowered:
    model = load_model(open_checkpoint(write_folder(case, tmp_path)), max_context=case.max_context)
    return lower(optimise(model.program), model.weights.sources)


def bytes_of(access: Access, where: MemoryMap) -> dict[int, object]:
    """Each 4-byte word that an access may touch, with the thread that may touch it: None for any,
    a row for the owner of that row."""
    memory = access.memory
    row_bytes = SIZES.row_bytes(memory)
    rows = SIZES.max_tokens if memory.domain == "tokens" else SIZES.max_logits
    start = where.shared[memory]
    return {
        start + row * row_bytes + word: (access.by_rows, row) if access.by_rows else None
        for row in range(rows)
        for word in range(0, row_bytes, 4)
    }


@pytest.mark.parametrize("small", [False, True], ids=["large", "small"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_thread_meets_anothers_unfinished_work(
    case: TinyCase, small: bool, tmp_path: Path
) -> None:
    """Walk the instructions and keep, since the last barrier, who read and wrote each word."""
    program = lowered(case, tmp_path)
    where = map_memory(program, SIZES)
    writers: dict[int, set[object]] = defaultdict(set)
    readers: dict[int, set[object]] = defaultdict(set)

    def others(seen: set[object], owner: object) -> bool:
        return any(who is None or who != owner for who in seen)

    for instruction, barriers in zip(program.instructions, where.barriers, strict=True):
        if barriers[small]:
            writers.clear()
            readers.clear()
        accesses = list(instruction.accesses(small))
        for access in accesses:
            for word, owner in bytes_of(access, where).items():
                assert not others(writers[word], owner)
                assert not (access.writes and others(readers[word], owner))
        for access in accesses:
            for word, owner in bytes_of(access, where).items():
                (writers if access.writes else readers)[word].add(owner)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_lie_untouched_until_they_are_read(case: TinyCase, tmp_path: Path) -> None:
    """Play the program: every word read must still belong to the memory that it is read for."""
    program = lowered(case, tmp_path)
    where = map_memory(program, SIZES)
    owner: dict[int, object] = {}
    for instruction in program.instructions:
        accesses = list(instruction.accesses(False))
        for access in accesses:
            if not access.writes:
                assert all(owner[w] is access.memory for w in bytes_of(access, where))
        for access in accesses:
            if access.writes:
                words = bytes_of(access, where)
                assert max(words) + 4 <= where.shared_total
                owner.update(dict.fromkeys(words, access.memory))
        reads = {id(a.memory) for a in accesses if not a.writes}
        written = [a.memory for a in accesses if a.writes]
        for memory in written:
            assert id(memory) not in reads  # threads run through an instruction at different speeds
    logits = Access(program.logits.buffer, writes=False)
    assert all(owner[w] is program.logits.buffer for w in bytes_of(logits, where))


def test_threads_meet_five_times_a_layer(tmp_path: Path) -> None:
    """Four products and attention; in a small step norms and quantising need no meeting."""
    llama = next(case for case in CASES if case.name == "llama")
    model = load_model(open_checkpoint(write_folder(llama, tmp_path)))
    sources = {
        name: WeightTensor(name, TensorType.Q8_0, source.shape, np.zeros(0, np.uint8))
        if len(source.shape) == 2
        else source
        for name, source in model.weights.sources.items()
    }
    program = lower(optimise(model.program), sources)
    # As (in a large step, in a small step), attention's own meetings apart.
    large, small = map(sum, zip(*map_memory(program, SIZES).barriers, strict=True))
    n_layers = llama.config["num_hidden_layers"]
    assert small == 5 * n_layers + 1
    assert large == 8 * n_layers + 1


def test_only_wanted_rows_are_computed_after_the_last_attention(tmp_path: Path) -> None:
    llama = next(case for case in CASES if case.name == "llama")
    instructions = lowered(llama, tmp_path).instructions
    last = max(i for i, x in enumerate(instructions) if isinstance(x, Attention))
    for index, instruction in enumerate(instructions):
        if isinstance(instruction, Product | RowChain):
            wanted = "selected" if index > last else "tokens"
            if instruction is instructions[-1]:  # the output product
                wanted = "logits"
            assert instruction.domain == wanted


def chain(slots: list[Slot], blocks: list[Blocks] | None = None) -> RowChain:
    return RowChain("tokens", slots=slots, blocks=blocks or [])


def test_rows_stay_with_their_thread_but_not_across_buffers() -> None:
    a, b, c = (Buffer("tokens", 4) for _ in range(3))
    whole = [Place(x, 0, 4) for x in (a, b, c)]
    program = Lowered(
        (
            EmbedRows("e", whole[0], 1.0),
            chain([Slot(4, whole[0], is_input=True), Slot(4, whole[1])]),
            chain([Slot(4, whole[1], is_input=True, gather=True), Slot(4, whole[2])]),
        ),
        whole[2],
        whole[2],
    )
    barriers = map_memory(program, SIZES).barriers
    # Same rows; then rows of other threads.
    assert [large for large, _ in barriers] == [False, False, True]


def test_replicated_chains_read_what_all_threads_have_written() -> None:
    a = Buffer("tokens", 32)
    place = Place(a, 0, 32)
    blocks = Blocks("tokens", 32, replicated=True)
    program = Lowered(
        (EmbedRows("e", place, 1.0), chain([Slot(32, place, is_input=True)], [blocks])),
        place,
        place,
    )
    assert map_memory(program, SIZES).barriers == ((False, False), (False, True))
