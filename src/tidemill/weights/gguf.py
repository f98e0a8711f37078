"""GGUF files, versions 2 and 3: a bounded reader on the mapped file.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. All of it is little-endian:

    "GGUF", version u32, tensor count u64, key-value count u64,
    key-values: key string, value type u32, value,
    tensor infos: name string, dimension count u32, dimensions u64 each, innermost first,
        type u32, offset u64 from the start of the data section,
    padding to general.alignment, data section.

A string is its length in bytes (u64) and UTF-8; an array is an element type (u32), a count (u64)
and the elements. Nothing that a file says is believed: every count, length and offset is checked
against what is left of the file before memory is spent on it, and the limits below bound the work
that a large hostile file can ask for.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill import _native
from tidemill.records import dataclass
from tidemill.weights.base import Checkpoint, CheckpointError, TensorType, WeightTensor
from tidemill.weights.mapped import map_file, release_files

# Strings of an array stay in the file, checked, until they are asked for.
Sequence.register(_native.Texts)

MAGIC = b"GGUF"
VERSIONS = (2, 3)

# Far above what any model needs (Gemma's 262,144-token vocabulary takes about 8 MB), low enough
# that a hostile file costs seconds at most.
MAX_HEADER_BYTES = 1 << 30
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_NAME_BYTES = 1024
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20
MAX_ARRAY_DEPTH = 4
MAX_NESTED_ARRAYS = 1 << 16
DEFAULT_ALIGNMENT = 32

_BOOL, _STRING, _ARRAY = 7, 8, 9
# Value types that are numbers, with their format characters (the same in struct and NumPy).
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_STRUCTS = {type: struct.Struct("<" + char) for type, char in _NUMBERS.items()}
_DTYPES = {type: np.dtype("<" + char) for type, char in _NUMBERS.items()}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
# Dimensions, type and offset of a tensor of one dimension, two, ...
_INFOS = [struct.Struct(f"<{n}QIQ") for n in range(1, MAX_DIMENSIONS + 1)]

# Types of the format that this reader knows by name only, to say what it met.
_UNSUPPORTED_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    34: "TQ1_0",
    35: "TQ2_0",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    40: "NVFP4",
    41: "Q1_0",
}

_PART_NAME = r"(?si)(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)"


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file, or all parts of a split one given any of them.

    A split model's parts are ``NAME-00001-of-00003.gguf`` ...; the metadata is that of the first.
    CheckpointError if a file is missing, damaged or of an unsupported kind.
    """
    opened = _read_file(path)
    count = _split_number(opened, "split.count", default=1)
    if count <= 1:
        return Checkpoint("gguf", (path,), opened.metadata, opened.tensors)

    paths = _part_paths(opened, count)
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise CheckpointError(
            f"{path}: the model is split into {count} files and {len(missing)} of them are missing "
            f"beside it: {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}; "
            "put all parts into one folder"
        )
    metadata: dict[str, Any] = {}
    tensors: dict[str, WeightTensor] = {}
    total = -1
    for number, part_path in enumerate(paths):
        part = opened if part_path == path else _read_file(part_path)
        found = _split_number(part, "split.no", 0), _split_number(part, "split.count", 1)
        if found != (number, count):
            raise CheckpointError(
                f"{part_path}: split.no and split.count are {found}, but by its name the file is "
                f"number {number} (from 0) of {count}; the parts belong to different models or "
                "were renamed"
            )
        for name in part.tensors:
            if name in tensors:
                raise CheckpointError(f"{part_path}: tensor {name!r} is in an earlier part too")
        tensors |= part.tensors
        if number == 0:
            metadata = part.metadata
            total = _split_number(part, "split.tensors.count", default=-1)
    if total not in (-1, len(tensors)):
        raise CheckpointError(
            f"{paths[0]}: split.tensors.count is {total}, but the {count} parts hold "
            f"{len(tensors)} tensors; download the parts again"
        )
    return Checkpoint("gguf", tuple(paths), metadata, tensors)


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, WeightTensor]


def _split_number(file: _File, key: str, default: int) -> int:
    value = file.metadata.get(key, default)
    if type(value) is not int:
        raise CheckpointError(f"{file.path}: {key} must be an integer")
    return value


def _part_paths(file: _File, count: int) -> list[Path]:
    number = _split_number(file, "split.no", default=0)
    name = re.fullmatch(_PART_NAME, file.path.name)
    if name is None or (int(name["number"]), int(name["count"])) != (number + 1, count):
        raise CheckpointError(
            f"{file.path}: this is part {number + 1} of {count} of a split model and must be named "
            f"NAME-{number + 1:05d}-of-{count:05d}.gguf, so that the others can be found"
        )
    return [
        file.path.with_name(f"{name['stem']}-{part:05d}-of-{count:05d}{name['suffix']}")
        for part in range(1, count + 1)
    ]


def _read_file(path: Path) -> _File:
    reader = _Reader(path)
    n_tensors, n_keys = reader.header()
    metadata = reader.key_values(n_keys)
    tensors = reader.tensors(n_tensors, metadata)
    release_files([reader.data])  # a vocabulary's text takes several megabytes
    return _File(path, metadata, tensors)


class _Reader:
    """A cursor over one mapped file; every method checks before it moves."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = map_file(path)
        self.bytes = self.data.data
        self.offset = 0
        # What comes before the data section has to end by here.
        self.limit = min(len(self.data), MAX_HEADER_BYTES)
        self.nested_arrays = 0

    # --- errors ------------------------------------------------------------------------------

    def error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {message}")

    def damaged(self, what: str, problem: str) -> CheckpointError:
        return self.error(
            f"{what} at offset {self.offset}: {problem}. The file is damaged or cut off: download "
            "it again"
        )

    # --- primitives --------------------------------------------------------------------------

    def take(self, size: int, what: str) -> int:
        """Step over ``size`` bytes; the offset where they begin."""
        start = self.offset
        if size > self.limit - start:
            raise self.damaged(what, f"{size} bytes are needed and {self.limit - start} are left")
        self.offset = start + size
        return start

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.bytes, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.bytes, self.take(8, what))[0]
        return value

    def string(self, what: str, max_bytes: int = MAX_HEADER_BYTES) -> str:
        size = self.u64(what)
        if size > max_bytes:
            raise self.damaged(what, f"a length of {size} bytes, over the limit of {max_bytes}")
        start = self.take(size, what)
        try:
            return str(self.bytes[start : start + size], "utf-8")
        except UnicodeDecodeError:
            raise self.damaged(what, "not valid UTF-8") from None

    def check_count(self, what: str, n: int, min_bytes_each: int, limit: int) -> None:
        """Refuse ``n`` things that are over ``limit`` or cannot fit in what is left."""
        if n > limit:
            raise self.damaged(what, f"{n} is over the limit of {limit}")
        if n * min_bytes_each > self.limit - self.offset:
            raise self.damaged(what, f"{n} do not fit in the {self.limit - self.offset} bytes left")

    # --- sections ----------------------------------------------------------------------------

    def header(self) -> tuple[int, int]:
        """The counts of tensors and of key-values."""
        magic = bytes(self.data[:4])
        if magic != MAGIC:
            raise self.error(f"not a GGUF file: it starts with {magic!r} instead of {MAGIC!r}")
        self.take(4, "the header")
        version = self.u32("the format version")
        if version not in VERSIONS:
            if version & 0xFFFF == 0:
                raise self.error(
                    "a big-endian GGUF file, which is not supported; convert it to little-endian "
                    "with `gguf-convert-endian FILE little` of the gguf package"
                )
            raise self.error(
                f"GGUF version {version} is not supported (versions 2 and 3 are); "
                "convert the original model again with a current converter"
            )
        n_tensors, n_keys = self.u64("the tensor count"), self.u64("the key-value count")
        # The least: an empty key, a type and one byte.
        self.check_count("the key-value count", n_keys, 8 + 4 + 1, MAX_KEYS)
        # The least: an empty name, one dimension, type and offset.
        self.check_count("the tensor count", n_tensors, 8 + 4 + 8 + 4 + 8, MAX_TENSORS)
        return n_tensors, n_keys

    def key_values(self, n_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for i in range(n_keys):
            key = self.string(f"key {i}", MAX_NAME_BYTES)
            if key in metadata:
                raise self.damaged(f"key {i}", f"{key!r} is in the file twice")
            what = f"the value of {key!r}"
            metadata[key] = self.value(self.u32(what), what)
        return metadata

    def value(self, type: int, what: str, depth: int = 0) -> Any:
        if type in _STRUCTS:
            number = _STRUCTS[type]
            return number.unpack_from(self.bytes, self.take(number.size, what))[0]
        if type == _STRING:
            return self.string(what)
        if type == _BOOL:
            byte = self.bytes[self.take(1, what)]
            if byte > 1:
                raise self.damaged(what, f"a bool must be 0 or 1, not {byte}")
            return bool(byte)
        if type == _ARRAY:
            return self.array(what, depth)
        raise self.damaged(what, f"there is no value type {type}")

    def array(self, what: str, depth: int) -> npt.NDArray[Any] | Sequence[Any]:
        """NumPy arrays for numbers and bools (read-only), Texts for strings, lists for arrays."""
        if depth == MAX_ARRAY_DEPTH:
            raise self.damaged(what, f"arrays are nested more than {MAX_ARRAY_DEPTH} deep")
        type = self.u32(what)
        n = self.u64(what)
        if type in _DTYPES:
            return self.numbers(_DTYPES[type], n, what)
        if type == _BOOL:
            flags = self.numbers(np.dtype("u1"), n, what)
            if n and flags.max() > 1:
                raise self.damaged(what, "a bool must be 0 or 1")
            return flags.view(np.bool_)
        if type == _STRING:
            return self.strings(n, what)
        if type == _ARRAY:
            self.nested_arrays += n
            self.check_count(what, self.nested_arrays, 0, MAX_NESTED_ARRAYS)
            self.check_count(what, n, 4 + 8, MAX_NESTED_ARRAYS)
            return [self.array(what, depth + 1) for _ in range(n)]
        raise self.damaged(what, f"there is no value type {type} for the elements of an array")

    def numbers(self, dtype: np.dtype[Any], n: int, what: str) -> npt.NDArray[Any]:
        start = self.take(n * dtype.itemsize, what)
        view = self.data[start : self.offset].view(dtype)
        if not view.flags.aligned:  # the header has no padding; kernels want aligned arrays
            view = view.copy()
            view.flags.writeable = False
        return view

    def strings(self, n: int, what: str) -> _native.Texts:
        try:
            strings, self.offset = _native.read_gguf_strings(
                self.data[: self.limit], self.offset, n
            )
        except ValueError as error:
            raise self.damaged(what, str(error)) from None
        return strings

    def tensors(self, n_tensors: int, metadata: dict[str, Any]) -> dict[str, WeightTensor]:
        infos = [self.tensor_info(i) for i in range(n_tensors)]
        if not infos:
            return {}
        alignment = self.alignment(metadata)
        data_start = -(-self.offset // alignment) * alignment
        data_bytes = len(self.data) - data_start
        tensors: dict[str, WeightTensor] = {}
        spans: list[tuple[int, int, str]] = []
        for name, type, shape, nbytes, offset in infos:
            if name in tensors:
                raise self.error(f"tensor {name!r} is in the file twice")
            if offset % alignment:
                raise self.error(
                    f"tensor {name!r} begins at offset {offset} of the data, which is not a "
                    f"multiple of the alignment {alignment}"
                )
            if offset + nbytes > data_bytes:
                raise self.error(
                    f"tensor {name!r} ends at byte {data_start + offset + nbytes} and the file at "
                    f"{len(self.data)}: it is damaged or cut off, download it again"
                )
            start = data_start + offset
            spans.append((start, start + nbytes, name))
            tensors[name] = WeightTensor(name, type, shape, self.data[start : start + nbytes])
        spans.sort()
        for (_, end, name), (start, _, following) in itertools.pairwise(spans):
            if start < end:
                raise self.error(f"tensors {name!r} and {following!r} overlap")
        return tensors

    def tensor_info(self, i: int) -> tuple[str, TensorType, tuple[int, ...], int, int]:
        """Name, type, row-major shape, bytes and offset in the data section."""
        name = self.string(f"the name of tensor {i}", MAX_NAME_BYTES)
        what = f"tensor {name!r}"
        n_dimensions = self.u32(what)
        if not 1 <= n_dimensions <= MAX_DIMENSIONS:
            raise self.damaged(what, f"{n_dimensions} dimensions (1 to {MAX_DIMENSIONS} are valid)")
        info = _INFOS[n_dimensions - 1]
        *dimensions, number, offset = info.unpack_from(self.bytes, self.take(info.size, what))
        shape = tuple(reversed(dimensions))
        type = self.tensor_type(number, name)
        if 0 in shape:
            raise self.damaged(what, f"shape {shape} has an empty axis")
        if shape[-1] % type.block_weights:
            raise self.error(
                f"{what} of type {type.name} and shape {shape}: the last axis must be a multiple "
                f"of {type.block_weights}"
            )
        return name, type, shape, type.nbytes(shape), offset

    def tensor_type(self, number: int, name: str) -> TensorType:
        try:
            return TensorType(number)
        except ValueError:
            known = _UNSUPPORTED_TYPES.get(number, "unknown")
            supported = ", ".join(type.name for type in TensorType)
            raise self.error(
                f"tensor {name!r} has type {number} ({known}), which is not supported; use a file "
                f"with only these: {supported}"
            ) from None

    def alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if (
            type(alignment) is not int
            or not 8 <= alignment <= MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise self.error(
                f"general.alignment must be a power of two from 8 to {MAX_ALIGNMENT}, not "
                f"{str(alignment)[:40]}"
            )
        return alignment
