"""The CPU backend's runner: one native call a step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill import _native
from tidemill.backends.base import Batch, KVCacheSpec
from tidemill.backends.cpu.build import Built
from tidemill.backends.cpu.packed import Keeper, PackedImage
from tidemill.weights.base import WeightTensor
from tidemill.weights.mapped import release_files

# Bytes of weights loaded so far, and in all.
Progress = Callable[[int, int], None]


class CpuRunner:
    """A compiled program with its packed weights, its KV memory and its threads.

    Logits that ``forward`` gives are a view on the runner's memory. A runner must be made in the
    process that uses it: threads do not survive ``fork()``, and using it in a child raises
    ``RuntimeError``.
    """

    def __init__(
        self, built: Built, kv: KVCacheSpec, max_batch_tokens: int, max_logit_rows: int,
        vocab_size: int,
    ) -> None:  # fmt: skip
        self._executor: Any = built.executor
        self._tables: list[WeightTensor] = []  # read in place for as long as this lives
        self._keeper: Keeper | None = None
        self.weights_are_mapped = False
        self.on_batch: Callable[[Batch], None] | None = None  # told of every step before it runs
        self.kv = kv
        self.window = built.window
        self.vocab_size = vocab_size
        self.max_batch_tokens = max_batch_tokens
        self.max_logit_rows = max_logit_rows

    def load(
        self,
        built: Built,
        weights: Mapping[str, WeightTensor],
        image: PackedImage | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Take the memory and pack all weights, or map the packed ``image`` if it has been kept.

        Weights that had to be packed are written to the image, if there is one, while the runner
        is at work already. Raises ``MemoryError`` if there is no room.
        """
        executor = self._executor
        self.weights_are_mapped = image is not None and image.map_into(executor)
        executor.allocate()
        if not self.weights_are_mapped:
            self._pack(built, weights, progress)
            if image is not None:
                self._keeper = image.keep(executor)
        for name, index in built.tables.items():
            tensor = weights[name]
            executor.load_table(index, tensor.data)
            self._tables.append(tensor)

    def _pack(
        self, built: Built, weights: Mapping[str, WeightTensor], progress: Progress | None
    ) -> None:
        """Pack one tensor after another, every thread at work.

        The pages of a mapped file are given back as soon as their tensor is packed, so that
        the peak is the packed size and one tensor.
        """
        executor = self._executor
        names = [*built.matrices, *built.vectors]
        sizes = {name: weights[name].nbytes for name in names}
        done, total = 0, sum(sizes.values())
        for name in names:
            tensor = weights[name]
            if name in built.matrices:
                executor.load_matrix(built.matrices[name], tensor.data)
            if name in built.vectors:
                executor.load_vector(built.vectors[name], tensor.dequantize().reshape(-1))
            release_files([tensor.data])
            done += sizes[name]
            if progress is not None:
                progress(done, total)

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Run one step; float32 logits (R, vocab_size), valid until the next call.

        Raises ``ValueError`` that names the field if the batch breaks its contract; nothing has
        changed then.
        """
        if self.on_batch is not None:
            self.on_batch(batch)
        logits: npt.NDArray[np.float32] = self._open().forward(
            batch.tokens,
            batch.positions,
            batch.query_starts,
            batch.context_lens,
            batch.block_tables,
            batch.logit_rows,
            batch.hidden_rows,
        )
        return logits

    def hidden(self) -> npt.NDArray[np.float32]:
        """The last step's hidden states, float32 (H, d_model): a view like the logits."""
        hidden: npt.NDArray[np.float32] = self._open().hidden()
        return hidden

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole KV blocks (source, destination) in all layers, in order."""
        self._open().copy_blocks(list(pairs))

    @property
    def block_bytes(self) -> int:
        """Bytes that a KV block holds in all layers together."""
        return int(self._open().kv_block_bytes)

    @property
    def kv_identity(self) -> str:
        """The kernels: their instruction set, and the build."""
        digest = hashlib.sha256(Path(_native.__file__).read_bytes()).hexdigest()
        return f"cpu {self._open().isa} {digest}"

    def read_block(self, block: int, data: npt.NDArray[np.uint8]) -> None:
        """Copy what a KV block holds to ``data`` (block_bytes,)."""
        self._open().read_block(block, data)

    def write_block(self, block: int, data: npt.NDArray[np.uint8]) -> None:
        """Copy ``data`` (block_bytes,), which was once read, to a KV block."""
        self._open().write_block(block, data)

    def forget_blocks(self, blocks: Sequence[int]) -> None:
        """Give back the memory of KV blocks in layers with a window; it is zeros from now on."""
        self._open().forget_blocks(list(blocks))

    def profile(self, on: bool) -> None:
        """Start (or stop) timing instructions; ``timings`` counts from here."""
        self._open().set_profiling(on)

    def timings(self) -> list[tuple[str, float]]:
        """(instruction, seconds) in program order, waiting included."""
        return list(self._open().timings())

    def allocated_bytes(self) -> tuple[int, int, int]:
        """Bytes taken for weights, KV and scratch."""
        weights, kv, scratch = self._open().allocated_bytes
        return weights, kv, scratch

    def close(self) -> None:
        """Free KV memory, weights and threads (once no logits of this runner are held);
        idempotent. Waits for packed weights that are still being written to the store."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.finish()
        self._executor = None
        self._tables.clear()

    def _open(self) -> Any:
        if self._executor is None:
            raise RuntimeError("the runner is closed")
        return self._executor
