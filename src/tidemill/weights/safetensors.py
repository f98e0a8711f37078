"""Model folders in the Hugging Face layout: ``config.json`` and safetensors, one file or shards.

Format: https://github.com/huggingface/safetensors#format. A file is the size of its header (u64,
little-endian), the header (a JSON object: tensor name to dtype, shape and data_offsets), and the
data, which the tensors tile exactly: no overlaps, no holes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from tidemill.weights.base import Checkpoint, CheckpointError, TensorType, WeightTensor
from tidemill.weights.mapped import map_file

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# A shard of a thousand-expert model has a header of a few megabytes. Parsed JSON can take some
# twenty times its text, so this also bounds memory.
MAX_HEADER_BYTES = 32 << 20
MAX_JSON_BYTES = 32 << 20
MAX_NAME_CHARACTERS = 1024
MAX_DIMENSIONS = 8

_DTYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}


def open_folder(folder: Path) -> Checkpoint:
    """Open a model folder in the Hugging Face layout.

    The metadata is ``config.json``; ``generation_config.json``, if there, is added as its key
    "generation_config". The tensors are those of ``model.safetensors.index.json``, or of
    ``model.safetensors``, or of the folder's only ``.safetensors`` file.
    """
    metadata = _load_json_object(folder / "config.json")
    generation = folder / "generation_config.json"
    if generation.exists():
        metadata["generation_config"] = _load_json_object(generation)
    index = folder / INDEX_FILE
    if index.exists():
        files, tensors = _read_shards(index)
    else:
        files = (_only_file(folder),)
        tensors = read_safetensors(files[0])
    return Checkpoint("safetensors", files, metadata, tensors)


def read_safetensors(path: Path) -> dict[str, WeightTensor]:
    """The tensors of one file, as views on its mapping. CheckpointError if it is damaged or
    holds a dtype other than F32, F16 and BF16."""
    data = map_file(path)
    if len(data) < 8:
        raise CheckpointError(f"{path}: {len(data)} bytes are too few for a safetensors file")
    header_bytes = int.from_bytes(data[:8].tobytes(), "little")
    if header_bytes > MAX_HEADER_BYTES or header_bytes > len(data) - 8:
        raise CheckpointError(
            f"{path}: the header claims {header_bytes} bytes; the file has {len(data) - 8} after "
            f"its size, and {MAX_HEADER_BYTES} is the limit. It is damaged, cut off or not "
            "safetensors: download it again"
        )
    header = _parse_json_object(data[8 : 8 + header_bytes].tobytes(), f"{path}: the header")
    header.pop("__metadata__", None)
    return _tensors(path, header, data[8 + header_bytes :])


def _tensors(
    path: Path, header: dict[str, Any], data: npt.NDArray[np.uint8]
) -> dict[str, WeightTensor]:
    tensors: dict[str, WeightTensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name, info in header.items():
        if len(name) > MAX_NAME_CHARACTERS:
            raise CheckpointError(f"{path}: a tensor name of {len(name)} characters")
        type, shape, begin, end = _tensor_info(f"{path}: tensor {name!r}", info)
        if not begin <= end <= len(data):
            raise CheckpointError(
                f"{path}: tensor {name!r} has data_offsets [{begin}, {end}] and the file has "
                f"{len(data)} bytes of data: it is damaged or cut off, download it again"
            )
        tensor = WeightTensor(name, type, shape, data[begin:end])
        if tensor.n_weights * type.block_bytes != end - begin:
            raise CheckpointError(
                f"{path}: tensor {name!r} of type {type.name} and shape {list(shape)} has "
                f"{end - begin} bytes instead of {tensor.n_weights * type.block_bytes}"
            )
        tensors[name] = tensor
        spans.append((begin, end, name))
    _check_tiling(path, sorted(spans), len(data))
    return tensors


def _tensor_info(what: str, info: Any) -> tuple[TensorType, tuple[int, ...], int, int]:
    if not isinstance(info, dict):
        raise CheckpointError(f"{what} is not described by an object")
    dtype, shape, offsets = info.get("dtype"), info.get("shape"), info.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise CheckpointError(
            f"{what} has dtype {str(dtype)[:40]}, which is not supported; use a model saved as one "
            f"of these: {', '.join(_DTYPES)}"
        )
    if not _is_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise CheckpointError(
            f"{what}: shape must be a list of at most {MAX_DIMENSIONS} sizes, not {str(shape)[:80]}"
        )
    if not _is_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{what}: data_offsets must be two sizes, not {str(offsets)[:80]}")
    return _DTYPES[dtype], tuple(shape), offsets[0], offsets[1]


def _is_sizes(value: Any) -> TypeGuard[list[int]]:
    """A list of integers that a u64 can hold (and no bools, which are ints to Python)."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 64 for n in value)


def _check_tiling(path: Path, spans: list[tuple[int, int, str]], size: int) -> None:
    position = 0
    for begin, end, name in spans:
        if begin != position:
            problem = "overlaps another" if begin < position else "leaves a hole before it"
            raise CheckpointError(
                f"{path}: tensor {name!r} at data_offsets [{begin}, {end}] {problem}; the file is "
                "damaged, download it again"
            )
        position = end
    if position != size:
        raise CheckpointError(
            f"{path}: {size - position} bytes behind the last tensor belong to none; the file is "
            "damaged, download it again"
        )


def _only_file(folder: Path) -> Path:
    path = folder / SINGLE_FILE
    if path.exists():
        return path
    found = sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        raise CheckpointError(
            f"{folder}: {len(found)} .safetensors files and neither {SINGLE_FILE} nor "
            f"{INDEX_FILE}; complete the download of the model"
        )
    return found[0]


def _read_shards(index: Path) -> tuple[tuple[Path, ...], dict[str, WeightTensor]]:
    weight_map = _load_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: there is no weight_map object in it")
    for name, shard in weight_map.items():
        # A name, never a path: the index must not lead out of the folder.
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or _is_path(shard):
            raise CheckpointError(
                f"{index}: tensor {name[:MAX_NAME_CHARACTERS]!r} is mapped to {str(shard)[:80]!r}, "
                "which is not the name of a .safetensors file"
            )
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{index}: {len(missing)} of {len(names)} shards are missing beside it: "
            f"{', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}; complete the download"
        )
    shards = {name: read_safetensors(index.parent / name) for name in names}
    tensors: dict[str, WeightTensor] = {}
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise CheckpointError(
                f"{index}: tensor {name[:MAX_NAME_CHARACTERS]!r} is not in {shard}; the files are "
                "of different models or versions, download them again"
            )
        tensors[name] = shards[shard][name]
    return tuple(index.parent / name for name in names), tensors


def _is_path(name: str) -> bool:
    return any(character in name for character in "/\\\0:")


def _load_json_object(path: Path) -> dict[str, Any]:
    data = map_file(path)
    if len(data) > MAX_JSON_BYTES:
        raise CheckpointError(f"{path}: {len(data)} bytes, over the limit of {MAX_JSON_BYTES}")
    return _parse_json_object(data.tobytes(), str(path))


def _parse_json_object(text: bytes, what: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise CheckpointError(f"{what} is not valid JSON: {reason}") from None
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{what} is not a JSON object")
    return parsed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:80]!r} is there twice")
            seen.add(key)
    return result
