"""Which KV block belongs to whom: reference counts, the prefix cache, eviction.

A block is in exactly one of three states: *owned* (its reference count is positive), *cached*
(nobody owns it, but its content is known by hash and may be reused) or *free*. Blocks that are
owned may be known by hash as well; only full blocks are, and those are never written again.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence


def root_hash(model_id: str, salt: str) -> bytes:
    """The parent of every first block: SHA-256 over the tagged model identity and salt.

    Each field is preceded by its tag and length, so that no two pairs write the same bytes;
    requests of different salts therefore never find each other's blocks.
    """
    digest = hashlib.sha256()
    for tag, value in ((b"model", model_id), (b"salt", salt)):
        data = value.encode("utf-8", "surrogatepass")
        digest.update(tag + len(data).to_bytes(8, "little") + data)
    return digest.digest()


def block_hash(parent: bytes, tokens: bytes) -> bytes:
    """The name of a full block: SHA-256 over its parent's hash (32 bytes) and its tokens
    (int32, of one length throughout a cache), so it stands for the whole prefix."""
    return hashlib.sha256(b"block" + parent + tokens).digest()


class KVBlocks:
    """The allocator of the runner's KV blocks."""

    def __init__(self, n_blocks: int, block_size: int) -> None:
        if n_blocks < 1 or block_size < 1:
            raise ValueError("the KV cache needs at least one block of at least one token")
        self.n_blocks = n_blocks
        self.block_size = block_size
        # Of blocks that were ever allocated; the others are free, and come after those in _free.
        self._references: list[int] = []
        self._hashes: list[bytes | None] = []
        self._free: list[int] = []
        self._by_hash: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # the least recently used first

    @property
    def available(self) -> int:
        """Blocks that can be allocated now: free ones, and cached ones that may be evicted."""
        return self.free + len(self._cached)

    @property
    def free(self) -> int:
        return len(self._free) + self.n_blocks - len(self._references)

    @property
    def cached(self) -> int:
        return len(self._cached)

    def allocate(self) -> int:
        """A block of unknown content, evicting the least recently used if need be."""
        if self._free:
            block = self._free.pop()
        elif (block := len(self._references)) < self.n_blocks:
            self._references.append(0)
            self._hashes.append(None)
        else:
            block, _ = self._cached.popitem(last=False)
            name = self._hashes[block]
            assert name is not None
            del self._by_hash[name]
            self._hashes[block] = None
        self._references[block] = 1
        return block

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks of the longest known prefix of ``hashes``; take them with ``share``."""
        blocks = []
        for name in hashes:
            block = self._by_hash.get(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def unowned(self, blocks: Iterable[int]) -> int:
        """How many of ``blocks`` nobody owns: sharing them takes from what is available."""
        return sum(self._references[block] == 0 for block in blocks)

    def is_sole(self, block: int) -> bool:
        """Whether a block has a single owner."""
        return self._references[block] == 1

    def share(self, blocks: Iterable[int]) -> None:
        """Own ``blocks`` once more."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one reference to each. From the last to the first, so that of a prefix the
        end is evicted before what it builds upon."""
        for block in reversed(blocks):
            count = self._references[block] - 1
            if count < 0:
                raise RuntimeError(f"KV block {block} is released by nobody who owns it")
            self._references[block] = count
            if count == 0:
                if self._hashes[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None

    def commit(self, block: int, name: bytes) -> None:
        """Make a full, computed block findable. If its content is known already, under another
        block, that one stays the known one."""
        if self._hashes[block] is None and name not in self._by_hash:
            self._hashes[block] = name
            self._by_hash[name] = block

    def check(self, owned: Iterable[Sequence[int]] = ()) -> None:
        """Raise AssertionError unless every block is in exactly one state and ``owned`` (the
        block lists of all owners) are just the references that are held. For tests."""
        counts = [0] * len(self._references)
        for blocks in owned:
            for block in blocks:
                counts[block] += 1
        assert counts == self._references, "reference counts and owners differ"
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & cached, "a block is free and cached"
        assert len(counts) <= self.n_blocks, "there are more blocks than memory for them"
        for block in range(len(counts)):
            unowned = block in free or block in cached
            assert unowned == (self._references[block] == 0), f"block {block} is lost or owned"
            name = self._hashes[block]
            if name is not None:
                assert self._by_hash.get(name) == block, f"block {block} cannot be found"
            assert (block in cached) <= (name is not None), f"cached block {block} has no name"
            assert block not in free or name is None, f"free block {block} has a name"
        assert len(self._by_hash) == sum(name is not None for name in self._hashes)
