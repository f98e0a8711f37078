"""Weights under a program's names, with the transforms that the checkpoint's layout asks for.

Most weights are views on the mapped file as they are. Some checkpoints store one expert per
tensor, gate and up fused, or Gemma's norms less one; those are made when asked for and not kept,
so that a mixture of experts never lies in memory twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from tidemill.records import dataclass
from tidemill.weights.base import CheckpointError, TensorType, WeightTensor


class Source(Protocol):
    """Where a weight comes from: its storage type and shape at once, its data when asked."""

    @property
    def type(self) -> TensorType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def load(self, name: str) -> WeightTensor: ...


@dataclass(frozen=True, slots=True)
class AsStored:
    """The file's tensor, unchanged."""

    tensor: WeightTensor

    @property
    def type(self) -> TensorType:
        return self.tensor.type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    def load(self, name: str) -> WeightTensor:
        return dataclasses.replace(self.tensor, name=name)


@dataclass(frozen=True, slots=True)
class PlusOne:
    """Weight + 1, as F32: Gemma's norms in Hugging Face checkpoints multiply by (1 + weight)."""

    tensor: WeightTensor

    @property
    def type(self) -> TensorType:
        return TensorType.F32

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    def load(self, name: str) -> WeightTensor:
        return WeightTensor.from_array(name, self.tensor.dequantize() + np.float32(1.0))


@dataclass(frozen=True, slots=True)
class Stacked:
    """One matrix per expert, stacked along a new first axis."""

    tensors: tuple[WeightTensor, ...]

    @property
    def type(self) -> TensorType:
        return self.tensors[0].type

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.tensors), *self.tensors[0].shape)

    def load(self, name: str) -> WeightTensor:
        data = np.concatenate([tensor.data for tensor in self.tensors])
        return WeightTensor(name, self.type, self.shape, data)


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """Rows start:stop of every expert's matrix in a stack (experts, rows, in)."""

    tensor: WeightTensor
    start: int
    stop: int

    @property
    def type(self) -> TensorType:
        return self.tensor.type

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.tensor.shape[0], self.stop - self.start, self.tensor.shape[2])

    def load(self, name: str) -> WeightTensor:
        rows = self.tensor.data.reshape(*self.tensor.shape[:2], self.tensor.row_bytes)
        data = np.ascontiguousarray(rows[:, self.start : self.stop]).reshape(-1)
        return WeightTensor(name, self.type, self.shape, data)


def stack(name: str, tensors: Mapping[int, WeightTensor]) -> Stacked:
    """Experts 0..n-1 as one stack; they must all be there and alike."""
    ordered = [tensors[index] for index in sorted(tensors)]
    if sorted(tensors) != list(range(len(ordered))):
        missing = next(i for i in range(len(ordered)) if i not in tensors)
        raise CheckpointError(f"tensor {name!r}: expert {missing} is missing from the checkpoint")
    first = ordered[0]
    for tensor in ordered:
        if tensor.type is not first.type or tensor.shape != first.shape:
            raise CheckpointError(
                f"tensor {tensor.name!r} is {tensor.type.name} {tensor.shape}, unlike the layer's "
                f"other experts ({first.type.name} {first.shape})"
            )
    return Stacked(tuple(ordered))


def split_gate_up(name: str, tensor: WeightTensor) -> tuple[ExpertRows, ExpertRows]:
    """The gate and up halves of fused expert matrices (experts, 2 * d_ff, in)."""
    if len(tensor.shape) != 3 or tensor.shape[1] % 2:
        raise CheckpointError(
            f"tensor {name!r} has shape {tensor.shape}; expected (experts, 2 * d_ff, d_model)"
        )
    half = tensor.shape[1] // 2
    return ExpertRows(tensor, 0, half), ExpertRows(tensor, half, 2 * half)


class ModelWeights(Mapping[str, WeightTensor]):
    """The weights of a model by the names its program uses.

    ``sources`` tells type and shape without touching any data; indexing gives the tensor, made
    anew at each access where it needs a transform. Take it, pack it, let it go.
    """

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self.sources = dict(sources)

    def __getitem__(self, name: str) -> WeightTensor:
        return self.sources[name].load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    def __contains__(self, name: object) -> bool:
        return name in self.sources
