"""What a loaded checkpoint is: metadata plus named tensors that view the mapped file.

Nothing in this room knows an architecture: names, hyper-parameters and transforms belong to
``tidemill.models``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tidemill.records import dataclass


class CheckpointError(ValueError):
    """A model file is damaged, hostile or of a kind that is not supported.

    The message names the file, what was wrong, where (key, tensor or offset) and what to do.
    """


class TensorType(enum.IntEnum):
    """Storage types of tensors; the values are the type numbers of the GGUF format."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    BF16 = 30
    MXFP4 = 39

    @property
    def block_weights(self) -> int:
        """Weights in one block (1 for the float types)."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return _BLOCKS[self][1]

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of this row-major shape, whose last axis is in whole blocks."""
        return math.prod(shape) // self.block_weights * self.block_bytes


# (weights per block, bytes per block), from the GGUF format's block structures.
_BLOCKS: dict[TensorType, tuple[int, int]] = {
    TensorType.F32: (1, 4),
    TensorType.F16: (1, 2),
    TensorType.BF16: (1, 2),
    TensorType.Q4_0: (32, 18),
    TensorType.Q4_1: (32, 20),
    TensorType.Q5_0: (32, 22),
    TensorType.Q5_1: (32, 24),
    TensorType.Q8_0: (32, 34),
    TensorType.Q2_K: (256, 84),
    TensorType.Q3_K: (256, 110),
    TensorType.Q4_K: (256, 144),
    TensorType.Q5_K: (256, 176),
    TensorType.Q6_K: (256, 210),
    TensorType.IQ4_NL: (32, 18),
    TensorType.IQ4_XS: (256, 136),
    TensorType.MXFP4: (32, 17),
}


@dataclass(frozen=True, slots=True)
class WeightTensor:
    """A named tensor in its storage type.

    ``shape`` is row-major and the last axis is the contiguous, quantised one: a linear layer's
    matrix is (out, in), a stack of experts (experts, out, in). ``data`` is a one-dimensional
    uint8 array, normally a read-only view on the mapped file, of exactly ``nbytes`` bytes.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    @property
    def n_weights(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row along the last axis."""
        return self.type.nbytes(self.shape[-1:])

    def dequantize(self) -> npt.NDArray[np.float32]:
        """All weights as float32, of ``shape``."""
        from tidemill.weights.quants import dequantize

        return dequantize(self.data, self.type, self.shape)

    @staticmethod
    def from_array(name: str, array: npt.NDArray[Any]) -> WeightTensor:
        """Wrap a float array as an F32 tensor (a copy if it is not float32 and contiguous)."""
        values = np.ascontiguousarray(array, dtype=np.float32)
        return WeightTensor(
            name, TensorType.F32, tuple(values.shape), values.reshape(-1).view(np.uint8)
        )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model as it lies on disk.

    ``metadata`` holds the GGUF key-values (arrays as NumPy arrays or sequences of str), or, for a
    Hugging Face folder, the content of ``config.json``. ``tensors`` are by the file's own names.
    ``folder`` is where the tokenizer files of a Hugging Face folder are.
    """

    format: Literal["gguf", "safetensors"]
    files: tuple[Path, ...]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, WeightTensor]

    @property
    def folder(self) -> Path:
        return self.files[0].parent
