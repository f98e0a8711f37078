"""Hand-made hostile GGUF files: each is refused with its reason, in bounded time and memory."""

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tidemill.weights import Checkpoint, CheckpointError, open_checkpoint

pytestmark = pytest.mark.timeout(120)

U8, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 5, 6, 7, 8, 9, 10
HUGE = [2**64 - 1, 2**63, 2**63 - 1, 2**62, 2**61 + 1, 2**40, 2**32, 2**31]


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return u64(len(data)) + data


def key_value(key: str | bytes, type: int, value: bytes) -> bytes:
    return string(key) + u32(type) + value


def array(type: int, count: int, elements: bytes = b"") -> bytes:
    return u32(type) + u64(count) + elements


def tensor(
    name: str | bytes = "t",
    extents: tuple[int, ...] = (8,),
    type: int = 0,
    offset: int = 0,
    n_dimensions: int | None = None,
) -> bytes:
    """A tensor info; ``extents`` in the file's order, innermost first."""
    n = len(extents) if n_dimensions is None else n_dimensions
    return string(name) + u32(n) + b"".join(map(u64, extents)) + u32(type) + u64(offset)


def gguf_bytes(
    keys: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = bytes(64),
    **header: int,
) -> bytes:
    keys, tensors = keys or [], tensors or []
    head = b"GGUF" + u32(header.get("version", 3))
    head += u64(header.get("n_tensors", len(tensors))) + u64(header.get("n_keys", len(keys)))
    head += b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def opened(tmp_path: Path, content: bytes) -> Checkpoint:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    return open_checkpoint(path)


def refused(tmp_path: Path, content: bytes, match: str, peak_bytes: int = 1 << 19) -> None:
    """CheckpointError that matches, names the file, stays short and needs little memory."""
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=match) as caught:
            open_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < peak_bytes
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 5000


def test_the_builder_makes_valid_files(tmp_path: Path) -> None:
    content = gguf_bytes(
        [key_value("k", U32, u32(7)), key_value("a", ARRAY, array(STRING, 1, string("x")))],
        [tensor("t", (4, 2)), tensor("u", (32,), type=8, offset=32)],
        np.arange(8, dtype=np.float32).tobytes() + bytes(34),
    )
    checkpoint = opened(tmp_path, content)
    assert checkpoint.metadata["k"] == 7
    assert list(checkpoint.metadata["a"]) == ["x"]
    assert len(checkpoint.metadata) == 2
    assert checkpoint.tensors["t"].dequantize().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert checkpoint.tensors["u"].nbytes == 34


def test_every_truncation(tmp_path: Path) -> None:
    """Refused wherever the file is cut before the end of its last tensor."""
    content = gguf_bytes(
        [
            key_value("k", U32, u32(7)),
            key_value("b", BOOL, b"\1"),
            key_value("s", STRING, string("text")),
            key_value("n", ARRAY, array(I32, 3, bytes(12))),
            key_value("a", ARRAY, array(STRING, 2, string("x") + string("yz"))),
            key_value("aa", ARRAY, array(ARRAY, 1, array(U8, 2, b"ab"))),
        ],
        [tensor("t", (16,)), tensor("u", (4,), offset=64)],
        bytes(80),
    )
    assert len(opened(tmp_path, content).tensors) == 2
    for size in range(1, len(content)):
        refused(tmp_path, content[:size], "hostile.gguf")


# --- header ----------------------------------------------------------------------------------


def test_magic(tmp_path: Path) -> None:
    refused(tmp_path, b"GGML" + gguf_bytes()[4:], "not a GGUF file: it starts with b'GGML'")
    refused(tmp_path, b"<!DOCTYPE html>", "not a GGUF file")


@pytest.mark.parametrize("version", [0, 1, 4, 2**16 + 3, 2**32 - 1])
def test_version(tmp_path: Path, version: int) -> None:
    match = "big-endian" if version == 0 else f"version {version} is not supported"
    refused(tmp_path, gguf_bytes(version=version), match)


@pytest.mark.parametrize("version", [2, 3])
def test_big_endian(tmp_path: Path, version: int) -> None:
    content = b"GGUF" + struct.pack(">IQQ", version, 1, 1) + bytes(100)
    refused(tmp_path, content, "big-endian.*gguf-convert-endian")


@pytest.mark.parametrize("count", [*HUGE, 65537, 40])
def test_counts(tmp_path: Path, count: int) -> None:
    refused(tmp_path, gguf_bytes(n_keys=count), "key-value count")
    refused(tmp_path, gguf_bytes(n_tensors=count), "tensor count")


def test_counts_that_a_large_file_could_hold(tmp_path: Path) -> None:
    """Counts are bounded by themselves too, not only by the size of a (sparse) file."""
    path = tmp_path / "hostile.gguf"
    for header in (
        gguf_bytes(n_keys=2**25),
        gguf_bytes(n_tensors=2**24),
        gguf_bytes([key_value("a", ARRAY, array(STRING, 2**27))]),
        gguf_bytes([key_value("s", STRING, u64(2**31))]),
        gguf_bytes([key_value("n", ARRAY, array(U8, 2**32))]),
        gguf_bytes([key_value("aa", ARRAY, array(ARRAY, 2**20))]),
        gguf_bytes([key_value("aa", ARRAY, array(ARRAY, 40000, array(ARRAY, 40000)))]),
    ):
        path.unlink(missing_ok=True)
        path.write_bytes(header)
        with path.open("r+b") as file:
            file.truncate(8 << 30)
        tracemalloc.start()
        try:
            with pytest.raises(CheckpointError, match=r"over the limit|do not fit|are left|cannot"):
                open_checkpoint(path)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


# --- key-values ------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [*HUGE, 1000])
def test_string_lengths(tmp_path: Path, length: int) -> None:
    lie = u64(length) + b"abc"
    refused(tmp_path, gguf_bytes([lie]), "key 0")
    refused(tmp_path, gguf_bytes([key_value("k", STRING, lie)]), "the value of 'k'")
    for elements in (lie, string("x") + lie):
        content = gguf_bytes([key_value("k", ARRAY, array(STRING, 2, elements))])
        refused(tmp_path, content, "the value of 'k'.*string [01]")
    refused(tmp_path, gguf_bytes(tensors=[lie + bytes(24)]), "the name of tensor 0")


def test_length_that_wraps_the_offset(tmp_path: Path) -> None:
    """A length of -8 as u64 would step back to its own prefix, for ever."""
    content = gguf_bytes([key_value("k", ARRAY, array(STRING, 2, u64(2**64 - 8)))])
    refused(tmp_path, content, "string 0 claims")
    refused(tmp_path, gguf_bytes([key_value("k", STRING, u64(2**64 - 8))]), "the value of 'k'")


def test_long_names(tmp_path: Path) -> None:
    name = "k" * 1025
    refused(tmp_path, gguf_bytes([key_value(name, U8, b"1")]), "over the limit of 1024")
    refused(tmp_path, gguf_bytes(tensors=[tensor(name)]), "over the limit of 1024")
    content = gguf_bytes([key_value(name[1:], U8, b"1")], [tensor(name[1:])])
    assert list(opened(tmp_path, content).tensors) == [name[1:]]


@pytest.mark.parametrize("text", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"ok\xf5"])
def test_invalid_utf8(tmp_path: Path, text: bytes) -> None:
    refused(tmp_path, gguf_bytes([key_value(text, U8, b"1")]), "key 0.*UTF-8")
    refused(tmp_path, gguf_bytes([key_value("k", STRING, string(text))]), "'k'.*UTF-8")
    strings = array(STRING, 2, string("fine") + string(text))
    refused(tmp_path, gguf_bytes([key_value("k", ARRAY, strings)]), "'k'.*string 1.*UTF-8")
    refused(tmp_path, gguf_bytes(tensors=[tensor(text)]), "tensor 0.*UTF-8")


def test_duplicate_key(tmp_path: Path) -> None:
    keys = [key_value("k", U8, b"1"), key_value("j", U8, b"1"), key_value("k", BOOL, b"\1")]
    refused(tmp_path, gguf_bytes(keys), "key 2.*'k' is in the file twice")


@pytest.mark.parametrize("type", [13, 14, 255, 2**31, 2**32 - 1])
def test_unknown_value_types(tmp_path: Path, type: int) -> None:
    refused(tmp_path, gguf_bytes([key_value("k", type, bytes(8))]), f"no value type {type}")
    for count in (0, 1, 2**63):
        content = gguf_bytes([key_value("k", ARRAY, array(type, count, bytes(8)))])
        refused(tmp_path, content, f"no value type {type} for the elements")


def test_bools(tmp_path: Path) -> None:
    refused(tmp_path, gguf_bytes([key_value("k", BOOL, b"\2")]), "'k'.*0 or 1, not 2")
    flags = array(BOOL, 3, b"\0\1\xff")
    refused(tmp_path, gguf_bytes([key_value("k", ARRAY, flags)]), "'k'.*0 or 1")


@pytest.mark.parametrize("type", range(13))
@pytest.mark.parametrize("count", [*HUGE, 2**64 // 8 + 1, 2**64 // 4 + 1, 1000])
def test_array_counts(tmp_path: Path, type: int, count: int) -> None:
    content = gguf_bytes([key_value("k", ARRAY, array(type, count, bytes(8)))])
    refused(tmp_path, content, "the value of 'k'")


def test_array_nesting(tmp_path: Path) -> None:
    value = array(U8, 2, b"\1\2")
    for depth in range(2, 5):
        value = array(ARRAY, 1, value)
        nested: Any = opened(tmp_path, gguf_bytes([key_value("k", ARRAY, value)])).metadata["k"]
        for _ in range(depth - 1):
            (nested,) = nested
        assert nested.tolist() == [1, 2]
    value = array(ARRAY, 1, value)
    refused(tmp_path, gguf_bytes([key_value("k", ARRAY, value)]), "nested more than 4 deep")
    deep = array(ARRAY, 1) * 10000
    refused(tmp_path, gguf_bytes([key_value("k", ARRAY, deep)]), "nested more than 4 deep")


def test_wide_nesting_is_bounded(tmp_path: Path) -> None:
    row = array(ARRAY, 1000, array(U8, 0) * 1000)
    wide = gguf_bytes([key_value("k", ARRAY, array(ARRAY, 100, row * 100))])
    refused(tmp_path, wide, "over the limit of 65536", peak_bytes=32 << 20)


def test_memory_of_short_strings(tmp_path: Path) -> None:
    """Each costs 8 to 10 bytes in the file; Python objects must not multiply that without end."""
    for text in (b"", b"a", b"ab", "é".encode(), "漢".encode()):
        value = array(STRING, 100_000, string(text) * 100_000)
        content = gguf_bytes([key_value("k", ARRAY, value)])
        path = tmp_path / "strings.gguf"
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        tracemalloc.start()
        try:
            strings = open_checkpoint(path).metadata["k"]
            assert tracemalloc.get_traced_memory()[1] < 9 * len(content)
        finally:
            tracemalloc.stop()
        assert list(strings) == [text.decode()] * 100_000


def test_memory_of_numbers_and_tensors(tmp_path: Path) -> None:
    """Numbers cost at most one (aligned) copy, tensors nothing."""
    numbers = key_value("kk", ARRAY, array(F32, 1 << 20, bytes(4 << 20)))
    content = gguf_bytes([numbers], [tensor("t", (1 << 20,))], bytes(4 << 20))
    path = tmp_path / "numbers.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        checkpoint = open_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < 5 << 20
    finally:
        tracemalloc.stop()
    assert checkpoint.tensors["t"].n_weights == 1 << 20


# --- tensors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 5, 6, 2**31, 2**32 - 1])
def test_dimension_counts(tmp_path: Path, n: int) -> None:
    content = gguf_bytes(tensors=[tensor(n_dimensions=n)])
    refused(tmp_path, content, f"tensor 't'.*{n} dimensions")


@pytest.mark.parametrize(
    "extents",
    [
        *((n,) for n in HUGE),
        (2**32, 2**32),  # the product is 0 modulo 2^64
        (2**62, 2**62, 2**62, 2**62),
        (2**31, 2**31, 4, 1),
        (2**61, 8),
        (8, 3),
        (17,),
    ],
)
def test_dimension_products(tmp_path: Path, extents: tuple[int, ...]) -> None:
    refused(tmp_path, gguf_bytes(tensors=[tensor(extents=extents)]), "tensor 't' ends at byte")


@pytest.mark.parametrize("extents", [(0,), (0, 5), (2**63, 0), (4, 0, 4)])
def test_empty_axes(tmp_path: Path, extents: tuple[int, ...]) -> None:
    refused(tmp_path, gguf_bytes(tensors=[tensor(extents=extents)]), "'t'.*empty axis")


@pytest.mark.parametrize(("type", "extent"), [(2, 16), (2, 33), (8, 1), (12, 32), (14, 257)])
def test_broken_blocks(tmp_path: Path, type: int, extent: int) -> None:
    content = gguf_bytes(tensors=[tensor(extents=(extent, 256), type=type)], data=bytes(99999))
    refused(tmp_path, content, "'t' of type Q.*last axis must be a multiple")


@pytest.mark.parametrize(
    ("type", "name"),
    [(16, "IQ2_XXS"), (9, "Q8_1"), (28, "F64"), (4, "Q4_2"), (41, "Q1_0"), (5000, "unknown")],
)
def test_unsupported_tensor_types(tmp_path: Path, type: int, name: str) -> None:
    content = gguf_bytes(tensors=[tensor("blk.0.w", (256,), type=type)])
    refused(tmp_path, content, rf"'blk\.0\.w' has type {type} \({name}\).*F32, F16, Q4_0.*MXFP4")


def test_duplicate_tensor(tmp_path: Path) -> None:
    content = gguf_bytes(tensors=[tensor("t"), tensor("t", offset=32)])
    refused(tmp_path, content, "tensor 't' is in the file twice")


@pytest.mark.parametrize("offset", [1, 4, 16, 33])
def test_misaligned_offsets(tmp_path: Path, offset: int) -> None:
    content = gguf_bytes(tensors=[tensor(offset=offset)], data=bytes(128))
    refused(tmp_path, content, "'t'.*not a multiple of the alignment 32")


@pytest.mark.parametrize("offset", [64, 96, 2**32, 2**63, 2**64 - 32])
def test_offsets_outside_the_file(tmp_path: Path, offset: int) -> None:
    refused(tmp_path, gguf_bytes(tensors=[tensor(offset=offset)]), "'t' ends at byte")


def test_data_section_outside_the_file(tmp_path: Path) -> None:
    alignment = key_value("general.alignment", U32, u32(1 << 20))
    refused(tmp_path, gguf_bytes([alignment], [tensor()]), "'t' ends at byte")


@pytest.mark.parametrize(
    ("first", "second"),
    [((0, 16), (32, 8)), ((0, 8), (0, 8)), ((32, 8), (0, 9)), ((0, 40), (32, 1))],
)
def test_overlapping_tensors(
    tmp_path: Path, first: tuple[int, int], second: tuple[int, int]
) -> None:
    infos = [
        tensor(name, (size,), offset=offset)
        for name, (offset, size) in zip("ab", (first, second), strict=True)
    ]
    refused(tmp_path, gguf_bytes(tensors=infos, data=bytes(256)), "overlap")


def test_tensors_in_any_order(tmp_path: Path) -> None:
    """The order of the infos need not be the order of the data; overlaps are found all the same."""
    infos = [tensor("c", (16,), offset=128), tensor("a", (8,)), tensor("b", (16,), offset=64)]
    assert list(opened(tmp_path, gguf_bytes(tensors=infos, data=bytes(192))).tensors) == [*"cab"]
    infos[1] = tensor("a", (17,))
    (tmp_path / "hostile.gguf").unlink()
    refused(tmp_path, gguf_bytes(tensors=infos, data=bytes(192)), "'a' and 'b' overlap")


@pytest.mark.parametrize(
    ("type", "value"),
    [
        *((U32, u32(n)) for n in (0, 1, 4, 12, 33, 2**21, 2**31, 2**32 - 1)),
        (I32, struct.pack("<i", -32)),
        (U64, u64(2**63)),
        (F32, struct.pack("<f", 32.0)),
        (BOOL, b"\1"),
        (STRING, string("32")),
        (ARRAY, array(U32, 1, u32(32))),
    ],
)
def test_alignment(tmp_path: Path, type: int, value: bytes) -> None:
    keys = [key_value("general.alignment", type, value)]
    refused(tmp_path, gguf_bytes(keys, [tensor()]), "alignment must be a power of two")


def test_many_tensors_are_checked_quickly(tmp_path: Path) -> None:
    """10,000 tensors, the last of which overlaps the first: no quadratic search."""
    infos = [tensor(f"t{i}", (8,), offset=32 * i) for i in range(10_000)]
    infos.append(tensor("last", (8,), offset=0))
    content = gguf_bytes(tensors=infos, data=bytes(32 * 10_000))
    refused(tmp_path, content, "overlap", peak_bytes=10 * len(content))
