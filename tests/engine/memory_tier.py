"""A tier of KV blocks in a dict, whose blocks arrive when the test says so."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from tidemill.engine.base import TierStats
from tidemill.engine.kv_tier import Data


class MemoryTier:
    """``arriving``: blocks that each ``take`` gives, None for all. With ``chance``, as many of them
    as it likes, and now and then the next one turns out to be lost."""

    def __init__(self, block_bytes: int, chance: random.Random | None = None) -> None:
        self.blocks: dict[bytes, Data] = {}
        self.arriving: int | None = None
        self.lost: set[bytes] = set()
        """Names that are thought to be there and are not."""
        self.seconds_each = 0.0
        self.fetches: list[MemoryFetch] = []
        self.waited = 0
        self.read = 0
        self.chance = chance
        self._block_bytes = block_bytes

    @property
    def stats(self) -> TierStats:
        return TierStats(blocks=len(self.blocks), read=self.read)

    def put(self, name: bytes, read: Callable[[Data], None]) -> None:
        if name not in self.blocks:
            data = np.empty(self._block_bytes, np.uint8)
            read(data)
            self.blocks[name] = data

    def use(self, names: Sequence[bytes]) -> None:
        for name in reversed(names):
            if name in self.blocks:
                self.blocks[name] = self.blocks.pop(name)

    def find(self, names: Sequence[bytes]) -> int:
        return next((i for i, name in enumerate(names) if name not in self.blocks), len(names))

    def seconds(self, n: int) -> float:
        return n * self.seconds_each

    def fetch(self, names: Sequence[bytes]) -> MemoryFetch:
        self.fetches.append(MemoryFetch(self, names))
        return self.fetches[-1]

    def wait(self) -> None:
        self.waited += 1


class MemoryFetch:
    def __init__(self, tier: MemoryTier, names: Sequence[bytes]) -> None:
        self.names = deque(names)
        self.cancelled = False
        self._tier = tier

    def take(self) -> list[Data] | None:
        tier = self._tier
        assert not self.cancelled
        count = len(self.names) if tier.arriving is None else tier.arriving
        if tier.chance is not None:
            count = tier.chance.randrange(4)
            if tier.chance.random() < 0.1:
                self.names.clear()
        if self.names and self.names[0] in tier.lost:
            self.names.clear()
        if not self.names:
            return None
        taken: list[Data] = []
        while self.names and len(taken) < count and self.names[0] not in tier.lost:
            taken.append(tier.blocks[self.names.popleft()])
        tier.read += len(taken)
        return taken

    def cancel(self) -> None:
        self.cancelled = True
