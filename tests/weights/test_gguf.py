"""The GGUF reader against the writer and the reader of the ``gguf`` package."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tidemill._native import Texts
from tidemill.store import resolve
from tidemill.weights import CheckpointError, TensorType, open_checkpoint

SCALARS = {
    "t.u8": (gguf.GGUFValueType.UINT8, 255),
    "t.i8": (gguf.GGUFValueType.INT8, -128),
    "t.u16": (gguf.GGUFValueType.UINT16, 65535),
    "t.i16": (gguf.GGUFValueType.INT16, -32768),
    "t.u32": (gguf.GGUFValueType.UINT32, 2**32 - 1),
    "t.i32": (gguf.GGUFValueType.INT32, -(2**31)),
    "t.u64": (gguf.GGUFValueType.UINT64, 2**64 - 1),
    "t.i64": (gguf.GGUFValueType.INT64, -(2**63)),
    "t.f32": (gguf.GGUFValueType.FLOAT32, 0.15625),
    "t.f64": (gguf.GGUFValueType.FLOAT64, 0.1),
    "t.yes": (gguf.GGUFValueType.BOOL, True),
    "t.no": (gguf.GGUFValueType.BOOL, False),
    "t.text": (gguf.GGUFValueType.STRING, "naïve 漢字 🌊\n"),
    "t.empty": (gguf.GGUFValueType.STRING, ""),
}
NUMBER_ARRAYS = {
    "a.u8": (gguf.GGUFValueType.UINT8, np.array([0, 255], np.uint8)),
    "a.i8": (gguf.GGUFValueType.INT8, np.array([-128, 127, 0], np.int8)),
    "a.u16": (gguf.GGUFValueType.UINT16, np.array([1, 65535], np.uint16)),
    "a.i16": (gguf.GGUFValueType.INT16, np.array([-5], np.int16)),
    "a.u32": (gguf.GGUFValueType.UINT32, np.array([7, 2**32 - 1], np.uint32)),
    "a.i32": (gguf.GGUFValueType.INT32, np.arange(-40, 40, dtype=np.int32)),
    "a.u64": (gguf.GGUFValueType.UINT64, np.array([2**64 - 1], np.uint64)),
    "a.i64": (gguf.GGUFValueType.INT64, np.array([-(2**63), 1], np.int64)),
    "a.f32": (gguf.GGUFValueType.FLOAT32, np.array([1.5, -2.25, 1e-40], np.float32)),
    "a.f64": (gguf.GGUFValueType.FLOAT64, np.array([0.1, -1e300], np.float64)),
    "a.bool": (gguf.GGUFValueType.BOOL, np.array([True, False, True], np.bool_)),
}
Stored = tuple[TensorType, tuple[int, ...], bytes]
TOKENS = ["<s>", "", "a", "▁the", "é", "漢", "🌊" * 40, *(f"token {i}" for i in range(1000))]


def write(
    path: Path, **writer_options: Any
) -> dict[str, tuple[TensorType, tuple[int, ...], bytes]]:
    """A file with every value type and every tensor type; the tensors that went in."""
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama", **writer_options)
    for key, (type, value) in SCALARS.items():
        writer.add_key_value(key, value, type)
    for key, (type, array) in NUMBER_ARRAYS.items():
        writer.add_key_value(key, array.tolist(), gguf.GGUFValueType.ARRAY, sub_type=type)
    writer.add_token_list(TOKENS)
    tensors = {}
    for type in TensorType:
        shape = (2, 3, 256) if type is TensorType.Q4_K else (5, 256)
        row_bytes = 256 // type.block_weights * type.block_bytes
        data = rng.integers(0, 256, (*shape[:-1], row_bytes), np.uint8)
        name = f"blk.0.{type.name.lower()}.weight"
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType(type.value))
        tensors[name] = (type, shape, data.tobytes())
    writer.add_tensor("norm.weight", np.arange(3, dtype=np.float32))
    tensors["norm.weight"] = (TensorType.F32, (3,), np.arange(3, dtype=np.float32).tobytes())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_metadata_round_trip(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.format == "gguf"
    assert checkpoint.files == (tmp_path / "m.gguf",)
    assert checkpoint.folder == tmp_path
    metadata = checkpoint.metadata
    assert metadata["general.architecture"] == "llama"
    for key, (_, value) in SCALARS.items():
        assert metadata[key] == value
        assert type(metadata[key]) is type(value)
    for key, (_, array) in NUMBER_ARRAYS.items():
        np.testing.assert_array_equal(metadata[key], array)
        assert metadata[key].dtype == array.dtype
        assert metadata[key].flags.aligned
        assert not metadata[key].flags.writeable
    assert list(metadata["tokenizer.ggml.tokens"]) == TOKENS
    assert {"general.architecture", *SCALARS, *NUMBER_ARRAYS, "tokenizer.ggml.tokens"} == set(
        metadata
    )


@pytest.mark.parametrize("version", [2, 3])
def test_tensors_round_trip(tmp_path: Path, version: int) -> None:
    path = tmp_path / "m.gguf"
    written = write(path)
    content = bytearray(path.read_bytes())
    content[4] = version
    path.write_bytes(content)
    tensors = open_checkpoint(path).tensors
    assert list(tensors) == list(written)
    for name, (type, shape, data) in written.items():
        tensor = tensors[name]
        assert (tensor.name, tensor.type, tensor.shape) == (name, type, shape)
        assert tensor.data.tobytes() == data
        assert not tensor.data.flags.writeable
        assert not tensor.data.flags.owndata


def test_agrees_with_the_gguf_reader(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    fields = {key: f.contents() for key, f in reader.fields.items() if key[:5] != "GGUF."}
    assert fields.keys() == checkpoint.metadata.keys()
    for key, value in fields.items():
        mine = checkpoint.metadata[key]
        if isinstance(mine, np.ndarray):
            mine = mine.tolist()
        elif isinstance(mine, Texts):
            mine = list(mine)
        assert mine == value, key
    assert [t.name for t in reader.tensors] == list(checkpoint.tensors)
    for theirs in reader.tensors:
        ours = checkpoint.tensors[theirs.name]
        assert list(ours.shape) == theirs.shape.tolist()[::-1]
        assert ours.type == theirs.tensor_type.value
        assert ours.data.tobytes() == theirs.data.tobytes()


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment(tmp_path: Path, alignment: int) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_custom_alignment(alignment)
    for i in range(3):
        writer.add_tensor(f"t{i}", np.full(i + 1, i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensors = open_checkpoint(tmp_path / "m.gguf").tensors
    for i in range(3):
        np.testing.assert_array_equal(tensors[f"t{i}"].dequantize(), np.full(i + 1, i))


def test_last_tensor_needs_no_padding(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path)
    content = path.read_bytes()
    assert content.endswith(np.float32(2).tobytes() + bytes(20))  # norm.weight and its padding
    path.write_bytes(content[:-20])
    assert open_checkpoint(path).tensors["norm.weight"].dequantize().tolist() == [0, 1, 2]


def test_file_without_tensors(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "vocab.gguf", "llama")
    writer.add_token_list(TOKENS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    checkpoint = open_checkpoint(tmp_path / "vocab.gguf")
    assert not checkpoint.tensors
    assert list(checkpoint.metadata["tokenizer.ggml.tokens"]) == TOKENS


def test_name_without_suffix_is_recognised_by_content(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    (tmp_path / "m.gguf").rename(tmp_path / "blob")
    assert open_checkpoint(str(tmp_path / "blob")).format == "gguf"


# --- split files -----------------------------------------------------------------------------


def write_split(folder: Path) -> list[Path]:
    write(folder / "m.gguf", split_max_tensors=6)
    parts = sorted(folder.iterdir())
    assert [p.name for p in parts] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return parts


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_opens_the_whole(tmp_path: Path, given: int) -> None:
    whole, split = tmp_path / "whole", tmp_path / "split"
    whole.mkdir()
    split.mkdir()
    written = write(whole / "m.gguf")
    parts = write_split(split)
    checkpoint = open_checkpoint(parts[given])
    assert checkpoint.files == tuple(parts)
    assert list(checkpoint.metadata["tokenizer.ggml.tokens"]) == TOKENS
    assert {n: t.data.tobytes() for n, t in checkpoint.tensors.items()} == {
        n: data for n, (_, _, data) in written.items()
    }


def test_folder_with_a_split_model(tmp_path: Path) -> None:
    parts = write_split(tmp_path)
    assert open_checkpoint(tmp_path).files == tuple(parts)


def test_suffixes_in_capitals(tmp_path: Path) -> None:
    """The loader takes what the store takes."""
    parts = [part.rename(part.with_suffix(".GGUF")) for part in write_split(tmp_path)]
    for path in (tmp_path, *parts):
        assert resolve(path) == parts[0]
        assert open_checkpoint(path).files == tuple(parts)


def test_missing_part_is_named(tmp_path: Path) -> None:
    parts = write_split(tmp_path)
    parts[1].unlink()
    with pytest.raises(CheckpointError, match=r"1 of them are missing.*m-00002-of-00003\.gguf"):
        open_checkpoint(parts[2])


def test_swapped_parts(tmp_path: Path) -> None:
    parts = write_split(tmp_path)
    second, third = parts[1].read_bytes(), parts[2].read_bytes()
    parts[1].write_bytes(third)
    parts[2].write_bytes(second)
    with pytest.raises(CheckpointError, match=r"split\.no"):
        open_checkpoint(parts[0])


def test_renamed_part(tmp_path: Path) -> None:
    parts = write_split(tmp_path)
    renamed = parts[0].rename(tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match=r"part 1 of 3.*NAME-00001-of-00003\.gguf"):
        open_checkpoint(renamed)


def part(path: Path, number: int, tensor: str, total: int = 2, count: Any = 2) -> Path:
    writer = gguf.GGUFWriter(path / f"m-0000{number + 1}-of-00002.gguf", "llama")
    writer.add_uint16("split.no", number)
    if isinstance(count, str):
        writer.add_string("split.count", count)
    else:
        writer.add_uint16("split.count", count)
    writer.add_int32("split.tensors.count", total)
    writer.add_tensor(tensor, np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path / f"m-0000{number + 1}-of-00002.gguf"


def test_tensor_in_two_parts(tmp_path: Path) -> None:
    first, _ = part(tmp_path, 0, "t"), part(tmp_path, 1, "t")
    with pytest.raises(CheckpointError, match="'t' is in an earlier part"):
        open_checkpoint(first)


def test_parts_with_too_few_tensors(tmp_path: Path) -> None:
    first, _ = part(tmp_path, 0, "a", total=3), part(tmp_path, 1, "b", total=3)
    with pytest.raises(CheckpointError, match=r"split\.tensors\.count is 3.* 2 tensors"):
        open_checkpoint(first)


def test_split_count_of_the_wrong_type(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"split\.count must be an integer"):
        open_checkpoint(part(tmp_path, 0, "a", count="two"))


def test_parts_of_different_models(tmp_path: Path) -> None:
    first, _ = part(tmp_path, 0, "a"), part(tmp_path, 1, "b", count=7)
    with pytest.raises(CheckpointError, match="different models"):
        open_checkpoint(first)


# --- paths -----------------------------------------------------------------------------------


def test_folder_with_one_gguf(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    (tmp_path / "README.md").write_text("about")
    assert open_checkpoint(tmp_path).files == (tmp_path / "m.gguf",)


def test_folder_with_several_ggufs(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf")
    write(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match=r"give the path of one: a\.gguf, b\.gguf"):
        open_checkpoint(tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.gguf: cannot be read: No such file"):
        open_checkpoint(tmp_path / "none.gguf")


def test_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(CheckpointError, match="not a model file"):
        open_checkpoint(tmp_path / "notes.txt")
    with pytest.raises(CheckpointError, match="no model in this folder"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_checkpoint(Path(f"{tmp_path}/nul\0.gguf"))
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(CheckpointError, match="empty"):
        open_checkpoint(tmp_path / "empty.gguf")
    (tmp_path / "lfs.gguf").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        open_checkpoint(tmp_path / "lfs.gguf")


def test_named_pipe_does_not_block(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_checkpoint(tmp_path / "pipe.gguf")
