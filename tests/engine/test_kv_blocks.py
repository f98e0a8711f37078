"""Block accounting: a stateful test against a plain model, and the rules of the prefix cache."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidemill.engine.kv_blocks import KVBlocks, block_hash, root_hash

SIZE = 2


def chain(tokens: tuple[int, ...], salt: str = "") -> list[bytes]:
    names, parent = [], root_hash("m", salt)
    for token in tokens:
        parent = block_hash(parent, bytes([token] * SIZE))
        names.append(parent)
    return names


class Blocks(RuleBasedStateMachine):
    """Owners take prefixes over a two-letter alphabet, so that they meet in the cache often.
    ``contents`` is what each block was last filled with."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = KVBlocks(7, SIZE)
        self.owners: list[list[int]] = []
        self.contents: dict[int, bytes] = {}

    @rule(prefix=st.lists(st.integers(0, 1), min_size=1, max_size=4), salt=st.sampled_from("ab"))
    def start(self, prefix: list[int], salt: str) -> None:
        names = chain(tuple(prefix), salt)
        hit = self.kv.match(names)
        for block, name in zip(hit, names, strict=False):
            assert self.contents[block] == name, "the cache gives a block of other content"
        fresh = len(names) - len(hit)
        before = self.kv.available
        if fresh + self.kv.unowned(hit) > before:
            return
        cost = fresh + self.kv.unowned(hit)
        self.kv.share(hit)
        blocks = hit + [self.kv.allocate() for _ in range(fresh)]
        assert self.kv.available == before - cost
        assert len(set(blocks)) == len(blocks)
        for block, name in zip(blocks[len(hit) :], names[len(hit) :], strict=True):
            assert not any(block in owner for owner in self.owners), "an owned block is given away"
            self.contents[block] = name
            self.kv.commit(block, name)
        self.owners.append(blocks)

    @precondition(lambda self: self.kv.available)
    @rule()
    def start_without_content(self) -> None:
        block = self.kv.allocate()
        assert not any(block in owner for owner in self.owners)
        self.contents[block] = b""
        self.owners.append([block])

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def end(self, data) -> None:
        self.kv.release(self.owners.pop(data.draw(st.integers(0, len(self.owners) - 1))))

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def fork(self, data) -> None:
        owner = self.owners[data.draw(st.integers(0, len(self.owners) - 1))]
        self.kv.share(owner)
        self.owners.append(list(owner))

    @invariant()
    def consistent(self) -> None:
        self.kv.check(self.owners)

    def teardown(self) -> None:
        for owner in self.owners:
            self.kv.release(owner)
        self.kv.check()
        assert self.kv.available == self.kv.n_blocks


Blocks.TestCase.settings = settings(derandomize=True, max_examples=80, stateful_step_count=40)
TestBlocks = Blocks.TestCase


def fill(kv: KVBlocks, names: list[bytes]) -> list[int]:
    blocks = [kv.allocate() for _ in names]
    for block, name in zip(blocks, names, strict=True):
        kv.commit(block, name)
    return blocks


def test_the_least_recently_used_goes_first_and_the_end_of_a_prefix_before_its_beginning() -> None:
    kv = KVBlocks(4, SIZE)
    old, new = chain((1, 2)), chain((3, 4))
    kv.release(fill(kv, old))
    kv.release(fill(kv, new))
    for survivors in (([0], [0, 1]), ([], [0, 1]), ([], [0])):
        kv.allocate()
        assert [len(kv.match(old)), len(kv.match(new))] == [len(s) for s in survivors]


def test_free_blocks_are_used_before_cached_ones() -> None:
    kv = KVBlocks(3, SIZE)
    names = chain((1,))
    kv.release(fill(kv, names))
    kv.allocate()
    kv.allocate()
    assert kv.match(names)
    kv.allocate()
    assert not kv.match(names)


def test_equal_content_under_two_blocks_is_known_once() -> None:
    kv = KVBlocks(4, SIZE)
    names = chain((1,))
    first, second = fill(kv, names), fill(kv, names)
    assert kv.match(names) == first
    kv.release(second)
    assert (kv.free, kv.cached) == (3, 0)
    kv.release(first)
    assert (kv.free, kv.cached) == (3, 1)


def test_names_differ_by_every_field() -> None:
    roots = {root_hash(m, s) for m in ("", "a", "ab") for s in ("", "a", "b", "ba")}
    assert len(roots) == 12
    parents = sorted(roots)[:2]
    assert len({block_hash(p, t) for p in parents for t in (b"12", b"21")}) == 4
    assert all(len(name) == 32 for name in roots)


def test_releasing_what_is_not_owned_is_an_error() -> None:
    kv = KVBlocks(2, SIZE)
    block = kv.allocate()
    kv.release([block])
    with pytest.raises(RuntimeError, match=f"block {block}"):
        kv.release([block])


@pytest.mark.parametrize(("n", "size"), [(0, 1), (1, 0), (-1, 4)])
def test_sizes_must_be_positive(n: int, size: int) -> None:
    with pytest.raises(ValueError, match="at least one block"):
        KVBlocks(n, size)
