"""Paged KV memory in float32, rounded to what the asked-for storage type would keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
import numpy.typing as npt

from tidemill.backends.base import KVCacheSpec, KVDtype
from tidemill.program.ops import KVShape

Floats = npt.NDArray[np.float32]

_GROUP = 32  # elements that share a scale in q8_0


class PagedKV:
    """K and V of every attention layer, each (n_blocks, block_size, n_kv_heads, head_dim)."""

    def __init__(self, spec: KVCacheSpec, shapes: Sequence[KVShape]) -> None:
        if spec.dtype not in get_args(KVDtype):
            kinds = ", ".join(get_args(KVDtype))
            raise ValueError(f"KV is stored as one of {kinds}, not as {spec.dtype!r}")
        if spec.dtype == "q8_0" and any(shape.head_dim % _GROUP for shape in shapes):
            raise ValueError(f"q8_0 KV needs head dimensions that are multiples of {_GROUP}")
        self.spec = spec
        self._layers = [
            np.zeros(
                (2, spec.n_blocks, spec.block_size, shape.n_kv_heads, shape.head_dim), np.float32
            )
            for shape in shapes
        ]

    def store(
        self,
        layer: int,
        blocks: npt.NDArray[np.int64],
        slots: npt.NDArray[np.int64],
        k: Floats,
        v: Floats,
    ) -> None:
        """Put k and v (n, n_kv_heads, head_dim) at (blocks[i], slots[i])."""
        self._layers[layer][0, blocks, slots] = rounded(k, self.spec.dtype)
        self._layers[layer][1, blocks, slots] = rounded(v, self.spec.dtype)

    def gather(
        self, layer: int, table: npt.NDArray[np.int32], length: int
    ) -> tuple[Floats, Floats]:
        """K and V of positions 0..length-1 of a sequence: (length, n_kv_heads, head_dim) each."""
        n_blocks = -(-length // self.spec.block_size)
        pages = self._layers[layer][:, table[:n_blocks]]
        flat = pages.reshape(2, -1, *pages.shape[3:])
        return flat[0, :length], flat[1, :length]

    def copy_block(self, source: int, destination: int) -> None:
        for pages in self._layers:
            pages[:, destination] = pages[:, source]

    @property
    def block_bytes(self) -> int:
        return sum(pages[:, 0].nbytes for pages in self._layers)

    def read_block(self, block: int, data: npt.NDArray[np.uint8]) -> None:
        """Copy a block of all layers, one after another, to ``data`` (block_bytes,)."""
        parts = [pages[:, block].reshape(-1) for pages in self._layers]
        data.view(np.float32)[:] = np.concatenate(parts)

    def write_block(self, block: int, data: npt.NDArray[np.uint8]) -> None:
        if data.nbytes != self.block_bytes:
            raise ValueError(f"a KV block of another size: {data.nbytes} bytes")
        values = data.view(np.float32)
        for pages in self._layers:
            part, values = np.split(values, [pages[:, block].size])
            pages[:, block] = part.reshape(pages[:, block].shape)


def rounded(x: Floats, dtype: KVDtype) -> Floats:
    """x as it comes back from storage in ``dtype``. q8_0 rounds groups of 32 along the head to
    whole multiples of a float16 scale, max|x| / 127."""
    if dtype == "f32":
        return x
    if dtype == "f16":
        return x.astype(np.float16).astype(np.float32)
    groups = x.reshape(*x.shape[:-1], -1, _GROUP)
    scale = np.abs(groups).max(axis=-1, keepdims=True) / np.float32(127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    steps = np.rint(groups * inverse)
    stored = scale.astype(np.float16).astype(np.float32)
    return np.asarray(steps * stored, np.float32).reshape(x.shape)
