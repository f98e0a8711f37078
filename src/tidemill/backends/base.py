"""The contract of every backend: a compiled program that runs mixed batches over paged KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from tidemill.records import dataclass

KVDtype = Literal["f32", "f16", "q8_0"]

NO_ROWS = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """The paged KV memory of a runner: ``n_blocks`` blocks of ``block_size`` tokens each."""

    n_blocks: int
    block_size: int = 16
    dtype: KVDtype = "f16"


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward step over S sequences: prefill chunks and decodes together.

    tokens, positions: int32 (N,), the new tokens of all sequences, one sequence after another.
    query_starts: int32 (S + 1,), sequence s owns rows query_starts[s]:query_starts[s + 1].
    context_lens: int32 (S,), tokens of the sequence in the KV cache once this step is done.
    block_tables: int32 (S, B), the KV blocks of each sequence in order, padded with -1; position
    p of sequence s lies in block block_tables[s, p // block_size], slot p % block_size.
    logit_rows: int32 (R,), which of the N rows want logits, in the order of the result.
    hidden_rows: int32 (H,), which want their final hidden state, likewise; no logits are computed
    for these. R + H is at most N, or what the runner gives of logit rows if that is more.
    The arrays are good for the step: their memory is used again for the next.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    query_starts: npt.NDArray[np.int32]
    context_lens: npt.NDArray[np.int32]
    block_tables: npt.NDArray[np.int32]
    logit_rows: npt.NDArray[np.int32]
    hidden_rows: npt.NDArray[np.int32] = field(default_factory=lambda: NO_ROWS)


class Runner(Protocol):
    """A program compiled for one backend, with its weights and its KV memory.

    The runner owns the KV memory; the engine owns which block belongs to whom. Not thread-safe:
    one thread drives it.
    """

    @property
    def kv(self) -> KVCacheSpec: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_batch_tokens(self) -> int:
        """The most rows that one batch may have."""
        ...

    @property
    def max_logit_rows(self) -> int:
        """The most logit rows that one batch may ask for."""
        ...

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Run one step; float32 logits (R, vocab_size), valid until the next call."""
        ...

    def hidden(self) -> npt.NDArray[np.float32]:
        """The last step's hidden states after the output norm, float32 (H, d_model), valid as long
        as its logits."""
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole KV blocks (source, destination) in all layers, in order."""
        ...

    @property
    def block_bytes(self) -> int:
        """Bytes that a KV block holds in all layers together."""
        ...

    @property
    def kv_identity(self) -> str:
        """What those bytes depend on besides model, tokens and ``kv``: runners of one identity
        compute the same bits and lay them out alike."""
        ...

    def read_block(self, block: int, data: npt.NDArray[np.uint8]) -> None:
        """Copy what a KV block holds to ``data`` (block_bytes,)."""
        ...

    def write_block(self, block: int, data: npt.NDArray[np.uint8]) -> None:
        """Copy ``data`` (block_bytes,), which was once read, to a KV block."""
        ...

    @property
    def window(self) -> int | None:
        """The positions that a token sees, its own included, in all layers with a sliding window;
        None if there are no such layers (or their memory cannot be given back)."""
        ...

    def forget_blocks(self, blocks: Sequence[int]) -> None:
        """Give back the memory of these KV blocks in layers with a window: until they are written
        again, no token's window reaches them."""
        ...

    def close(self) -> None:
        """Free KV memory, weights and threads; idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a model's weights come from, for a backend that keeps them packed between runs.

    ``identity`` stands for the content of the ``files``: other content, another identity.
    """

    identity: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes that a runner will hold, computed before anything is allocated.

    ``mapped`` of the ``weights`` are read in place from a file: those pages are shared with other
    processes, and the system can take them back.
    """

    weights: int
    kv: int
    scratch: int
    mapped: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.scratch
