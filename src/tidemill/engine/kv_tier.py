"""KV blocks beyond memory: written to a slower tier when computed, fetched when asked for again.

A block goes to the tier as soon as it is full, not when it is evicted: eviction then costs nothing,
and a process that is killed loses little. A request whose beginning is in the tier and not in
memory is admitted with blocks of its own, which are filled as their content arrives while the
others' steps go on. What does not arrive, for whatever reason, is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidemill.backends.base import Runner
from tidemill.engine.base import TierStats
from tidemill.engine.kv_blocks import KVBlocks
from tidemill.engine.sequence import Sequence as Sample
from tidemill.engine.step_time import StepTimeModel
from tidemill.records import dataclass

Data = npt.NDArray[np.uint8]
"""What a block holds, as runners give and take it: (block_bytes,)."""

# A fetch is given up when nothing has come for so many times what all of it was expected to take,
# and so many seconds more.
_PATIENCE = 10.0
_LEAST_PATIENCE = 1.0


class KVFetch(Protocol):
    """Blocks that a tier was asked for, on their way."""

    def take(self) -> list[Data] | None:
        """What has arrived since the last time, in the order asked for; None once all has been
        taken that ever will."""
        ...

    def cancel(self) -> None:
        """Nothing of it is wanted any more."""
        ...


class KVTier(Protocol):
    """A slower and larger place for what KV blocks hold, by their names. Only ``wait`` waits."""

    @property
    def stats(self) -> TierStats: ...

    def put(self, name: bytes, read: Callable[[Data], None]) -> None:
        """Keep a block, unless it is there or the tier is too busy; ``read`` copies what it holds
        to an array, at once or never."""
        ...

    def use(self, names: Sequence[bytes]) -> None:
        """A sequence of these blocks has just been used: its end is to make room first."""
        ...

    def find(self, names: Sequence[bytes]) -> int:
        """How many of ``names``, from the first on, it has."""
        ...

    def seconds(self, n: int) -> float:
        """How long it will be until ``n`` blocks are here that are asked for now."""
        ...

    def fetch(self, names: Sequence[bytes]) -> KVFetch: ...

    def wait(self) -> None:
        """Wait until some fetch has something to take, a tenth of a second at most."""
        ...


@dataclass(slots=True)
class _Restoring:
    """A sequence whose blocks, up to the ``end``-th, are being fetched. The last ones came at
    ``heard``; ``patience`` seconds later nothing more is expected."""

    sample: Sample
    fetch: KVFetch
    end: int
    patience: float
    heard: float


class TieredKV:
    """Moves blocks between the runner's memory and a tier."""

    def __init__(
        self, tier: KVTier, runner: Runner, kv: KVBlocks, step_time: StepTimeModel
    ) -> None:
        self.tier = tier
        self.restored_tokens = 0
        self._runner = runner
        self._kv = kv
        self._step_time = step_time
        self._restoring: dict[int, _Restoring] = {}  # by slot
        self._coming: set[bytes] = set()
        self._now = -inf

    @property
    def restoring(self) -> bool:
        """Whether any sequence waits for its blocks."""
        return bool(self._restoring)

    def save(self, blocks: Sequence[int], names: Sequence[bytes]) -> None:
        """Blocks that have just been computed."""
        for block, name in zip(blocks, names, strict=True):
            self.tier.put(name, partial(self._runner.read_block, block))

    def is_coming(self, name: bytes) -> bool:
        """Whether another sequence waits for the same block, which all can then share."""
        return name in self._coming

    def restore(self, sample: Sample, names: Sequence[bytes]) -> None:
        """Fetch the longest known prefix of ``names``, those of the blocks of ``sample`` that come
        after its computed ones, if that is quicker than computing them."""
        n = self.tier.find(names)
        if n == 0:
            return
        names = names[:n]
        seconds = self.tier.seconds(n)
        compute = self._step_time.chunk(sample.computed, n * self._kv.block_size, 0)
        if self._step_time.measured and compute <= seconds:
            return
        self._restoring[sample.slot] = _Restoring(
            sample,
            self.tier.fetch(names),
            sample.computed // self._kv.block_size + n,
            patience=_LEAST_PATIENCE + _PATIENCE * seconds,
            heard=self._now,
        )
        self._coming.update(names)
        sample.restoring = True

    def advance(self, now: float) -> None:
        """Put what has arrived in its place."""
        self._now = now
        for restoring in list(self._restoring.values()):
            sample = restoring.sample
            arrived = restoring.fetch.take()
            at = sample.computed // self._kv.block_size
            for data in arrived or ():
                self._runner.write_block(sample.blocks[at], data)
                self._kv.commit(sample.blocks[at], sample.hashes[at])
                at += 1
            self.restored_tokens += at * self._kv.block_size - sample.computed
            sample.computed = at * self._kv.block_size
            if not sample.group.prompt_done:
                sample.group.cached_tokens = sample.computed
            if arrived:
                restoring.heard = now
            over = arrived is None or at == restoring.end
            if over or now >= restoring.heard + restoring.patience:
                self.stop(sample)

    def stop(self, sample: Sample) -> None:
        """``sample`` goes on with what it has got."""
        restoring = self._restoring.pop(sample.slot)
        restoring.fetch.cancel()
        self._coming.difference_update(sample.hashes[: restoring.end])
        sample.restoring = False
