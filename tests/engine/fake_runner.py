"""A runner whose "KV" is the tokens themselves, so that any mix-up of blocks gives wrong tokens.

The logits of a position are a fixed random row picked by a checksum of all tokens up to it, as
read back from the blocks of the block table: a block that was overwritten, never written, or
belongs to another sequence changes every token from there on.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import numpy.typing as npt

from tidemill.backends.base import Batch, KVCacheSpec

UNWRITTEN = -7
WIDTH = 6  # of hidden states


class FakeRunner:
    """``poison`` raises in forward() for a batch with that token; ``nan_after`` gives NaN logits
    for rows of that token; ``fail_next`` makes the next so many calls raise whatever is in them.
    With a ``window`` a token depends on no more positions than that."""

    def __init__(
        self,
        n_blocks: int = 64,
        block_size: int = 4,
        vocab_size: int = 40,
        max_batch_tokens: int = 64,
        max_logit_rows: int = 32,
        *,
        poison: int | None = None,
        nan_after: int | None = None,
        window: int | None = None,
    ) -> None:
        self.kv = KVCacheSpec(n_blocks, block_size)
        self.vocab_size = vocab_size
        self.max_batch_tokens = max_batch_tokens
        self.max_logit_rows = max_logit_rows
        self.poison = poison
        self.nan_after = nan_after
        self.window = window
        self.forgotten = 0
        self.fail_next = 0
        self.fail_copies = False
        self.violations: list[AssertionError] = []
        """Broken contracts: raising alone would look to the engine like any failing step."""
        self.batches: list[Batch] = []
        self.keep_batches = False
        self.steps = 0
        self.tokens_computed = 0
        self._blocks = np.full((n_blocks, block_size), UNWRITTEN, np.int32)
        self._rows = np.random.default_rng(7).standard_normal((8192, vocab_size), np.float32) * 3
        self._states = np.random.default_rng(8).standard_normal((8192, WIDTH), np.float32)
        self._hidden = np.empty((0, WIDTH), np.float32)

    def logits_after(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """The model itself: float32 (vocab_size,) after ``tokens``."""
        if self.window is not None:
            tokens = tokens[-self.window :]
        return self._rows[zlib.crc32(np.asarray(tokens, np.int32).tobytes()) % len(self._rows)]

    def hidden_after(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """The hidden state of the last of ``tokens``, float32 (WIDTH,)."""
        if self.window is not None:
            tokens = tokens[-self.window :]
        return self._states[zlib.crc32(np.asarray(tokens, np.int32).tobytes()) % len(self._states)]

    def greedy(
        self, prompt: Sequence[int], n: int, stop: frozenset[int] = frozenset()
    ) -> list[int]:
        """The true greedy continuation of ``prompt``."""
        tokens = list(prompt)
        for _ in range(n):
            tokens.append(int(np.argmax(self.logits_after(tokens))))
            if tokens[-1] in stop:
                break
        return tokens[len(prompt) :]

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        try:
            self._check(batch)
        except AssertionError as error:
            self.violations.append(error)
            raise
        self.steps += 1
        if self.keep_batches:
            self.batches.append(deepcopy(batch))
        if self.fail_next:
            self.fail_next -= 1
            raise RuntimeError("the device is busy")
        if self.poison is not None and self.poison in batch.tokens:
            raise RuntimeError("a poisoned token")
        self.tokens_computed += len(batch.tokens)
        size = self.kv.block_size
        contents = []
        starts = batch.query_starts
        for s in range(len(starts) - 1):
            rows = slice(starts[s], starts[s + 1])
            positions = batch.positions[rows]
            self._blocks[batch.block_tables[s, positions // size], positions % size] = batch.tokens[
                rows
            ]
        for s in range(len(starts) - 1):
            n_blocks = -(-int(batch.context_lens[s]) // size)
            contents.append(self._blocks[batch.block_tables[s, :n_blocks]].reshape(-1))

        def before(row: int) -> npt.NDArray[np.int32]:
            s = int(np.searchsorted(starts, row, side="right")) - 1
            return contents[s][: batch.positions[row] + 1]

        self._hidden = np.empty((len(batch.hidden_rows), WIDTH), np.float32)
        for i, row in enumerate(batch.hidden_rows):
            self._hidden[i] = self.hidden_after(before(row))
            if self.nan_after is not None and batch.tokens[row] == self.nan_after:
                self._hidden[i, 3] = np.nan
        logits = np.empty((len(batch.logit_rows), self.vocab_size), np.float32)
        for i, row in enumerate(batch.logit_rows):
            logits[i] = self.logits_after(before(row))
            if self.nan_after is not None and batch.tokens[row] == self.nan_after:
                logits[i, 3] = np.nan
        return logits

    def hidden(self) -> npt.NDArray[np.float32]:
        return self._hidden

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        if self.fail_copies:
            raise RuntimeError("no copying today")
        for source, destination in pairs:
            assert source != destination
            self._blocks[destination] = self._blocks[source]

    @property
    def block_bytes(self) -> int:
        return self._blocks[0].nbytes

    @property
    def kv_identity(self) -> str:
        return "fake"

    def read_block(self, block: int, data: npt.NDArray[np.uint8]) -> None:
        data[:] = self._blocks[block].view(np.uint8)

    def write_block(self, block: int, data: npt.NDArray[np.uint8]) -> None:
        self._blocks[block] = data.view(np.int32)

    def forget_blocks(self, blocks: Sequence[int]) -> None:
        assert self.window is not None
        self.forgotten += len(blocks)
        self._blocks[list(blocks)] = UNWRITTEN

    def close(self) -> None:
        pass

    def _check(self, batch: Batch) -> None:
        """The contract of Batch, word for word."""
        n, n_sequences = len(batch.tokens), len(batch.context_lens)
        for array in (
            batch.tokens, batch.positions, batch.query_starts, batch.context_lens,
            batch.block_tables, batch.logit_rows, batch.hidden_rows,
        ):  # fmt: skip
            assert array.dtype == np.int32
        assert 1 <= n <= self.max_batch_tokens
        assert len(batch.positions) == n
        assert len(batch.logit_rows) <= self.max_logit_rows
        assert batch.query_starts.shape == (n_sequences + 1,)
        assert batch.query_starts[0] == 0
        assert batch.query_starts[-1] == n
        selected = [*batch.logit_rows.tolist(), *batch.hidden_rows.tolist()]
        assert len(set(selected)) == len(selected)
        assert all(0 <= row < n for row in selected)
        assert all(0 <= token < self.vocab_size for token in batch.tokens)
        written: list[int] = []
        read: set[int] = set()
        for s in range(n_sequences):
            start, end = int(batch.query_starts[s]), int(batch.query_starts[s + 1])
            assert end > start
            context = int(batch.context_lens[s])
            expected = list(range(context - (end - start), context))
            assert batch.positions[start:end].tolist() == expected
            table = batch.block_tables[s, : -(-context // self.kv.block_size)].tolist()
            assert all(0 <= block < self.kv.n_blocks for block in table)
            assert len(set(table)) == len(table)
            first = expected[0] // self.kv.block_size
            written += table[first:]
            read |= set(table[:first])
        assert len(set(written)) == len(written), "two sequences write one block"
        assert not read & set(written), "a sequence writes a block that another one reads"
