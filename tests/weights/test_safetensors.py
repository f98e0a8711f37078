"""Hugging Face folders against the ``safetensors`` package, and hostile ones."""

import json
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from safetensors import numpy as safetensors_numpy

from tidemill.weights import Checkpoint, CheckpointError, TensorType, open_checkpoint

pytestmark = pytest.mark.timeout(120)

CONFIG = {"model_type": "llama", "hidden_size": 64, "rope_scaling": None, "eps": 1e-5}
RNG = np.random.default_rng(4)
FLOATS = {
    "model.embed_tokens.weight": RNG.standard_normal((7, 5)).astype(np.float32),
    "model.norm.weight": RNG.standard_normal(5).astype(np.float16),
    "odd": RNG.standard_normal(3).astype(np.float16),
    "stack": RNG.standard_normal((2, 3, 4)).astype(np.float32),
    "scale": np.array(0.5, np.float32),
    "nothing": np.zeros((0, 4), np.float32),
}


def folder_with(tmp_path: Path, tensors: dict[str, np.ndarray] | None = None) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    if tensors is not None:
        safetensors_numpy.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    return tmp_path


def test_round_trip(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder_with(tmp_path, FLOATS))
    assert checkpoint.format == "safetensors"
    assert checkpoint.files == (tmp_path / "model.safetensors",)
    assert checkpoint.folder == tmp_path
    assert checkpoint.metadata == CONFIG
    assert checkpoint.tensors.keys() == FLOATS.keys()
    loaded = safetensors_numpy.load_file(tmp_path / "model.safetensors")
    for name, array in FLOATS.items():
        tensor = checkpoint.tensors[name]
        assert tensor.shape == array.shape
        assert (
            tensor.type == {"float32": TensorType.F32, "float16": TensorType.F16}[array.dtype.name]
        )
        assert tensor.data.tobytes() == loaded[name].tobytes() == array.tobytes()
        assert not tensor.data.flags.writeable
        np.testing.assert_array_equal(tensor.dequantize(), array.astype(np.float32))


def test_bfloat16(tmp_path: Path) -> None:
    bits = np.arange(0, 65536, 13, dtype=np.uint16)
    spec = safetensors.TensorSpec(
        dtype="bfloat16", shape=[bits.size], data_ptr=bits.ctypes.data, data_len=bits.nbytes
    )
    safetensors.serialize_file({"w": spec}, tmp_path / "model.safetensors", None)
    tensor = open_checkpoint(folder_with(tmp_path)).tensors["w"]
    assert tensor.type is TensorType.BF16
    values = tensor.dequantize()
    np.testing.assert_array_equal(values.view(np.uint32), bits.astype(np.uint32) << 16)


def test_generation_config(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 106]}')
    metadata = open_checkpoint(folder_with(tmp_path, FLOATS)).metadata
    assert metadata == {**CONFIG, "generation_config": {"eos_token_id": [1, 106]}}


def test_a_file_of_another_name(tmp_path: Path) -> None:
    folder_with(tmp_path, FLOATS)
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    assert open_checkpoint(tmp_path).tensors.keys() == FLOATS.keys()
    safetensors_numpy.save_file(FLOATS, tmp_path / "more.safetensors")
    with pytest.raises(CheckpointError, match=r"2 \.safetensors files and neither"):
        open_checkpoint(tmp_path)


def test_safetensors_before_gguf_in_a_folder(tmp_path: Path) -> None:
    folder_with(tmp_path, FLOATS)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert open_checkpoint(tmp_path).format == "safetensors"


# --- shards ----------------------------------------------------------------------------------


def sharded(folder: Path, weight_map: dict[str, Any] | None = None) -> Path:
    folder_with(folder)
    names = list(FLOATS)
    parts = {"model-00001-of-00002.safetensors": names[:2]}
    parts["model-00002-of-00002.safetensors"] = names[2:]
    for file, members in parts.items():
        safetensors_numpy.save_file({n: FLOATS[n] for n in members}, folder / file)
    if weight_map is None:
        weight_map = {name: file for file, members in parts.items() for name in members}
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_shards(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(sharded(tmp_path))
    assert [path.name for path in checkpoint.files] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert checkpoint.tensors.keys() == FLOATS.keys()
    for name, array in FLOATS.items():
        assert checkpoint.tensors[name].data.tobytes() == array.tobytes()


def test_missing_shard(tmp_path: Path) -> None:
    (sharded(tmp_path) / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 2 shards are missing.*model-00002"):
        open_checkpoint(tmp_path)


def test_tensor_that_its_shard_lacks(tmp_path: Path) -> None:
    sharded(tmp_path, {"stack": "model-00001-of-00002.safetensors"})
    with pytest.raises(CheckpointError, match="'stack' is not in model-00001"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "shard",
    [
        "../model.safetensors",
        "/etc/x.safetensors",
        "a\\b.safetensors",
        "C:x.safetensors",
        "nul\0.safetensors",
        "pytorch_model.bin",
        "config.json",
        "",
        7,
        None,
        ["model.safetensors"],
    ],
)
def test_shard_names_that_are_not(tmp_path: Path, shard: Any) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    sharded(folder, {"stack": shard})
    safetensors_numpy.save_file(FLOATS, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"not the name of a \.safetensors file"):
        open_checkpoint(folder)


@pytest.mark.parametrize("index", ["{}", "[]", '{"weight_map": []}', '{"weight_map": {}}', "{"])
def test_broken_index(tmp_path: Path, index: str) -> None:
    (sharded(tmp_path) / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        open_checkpoint(tmp_path)


# --- hostile files ---------------------------------------------------------------------------


def entry(begin: int = 0, end: int = 8, dtype: Any = "F32", shape: Any = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_bytes(header: Any, data: bytes = bytes(8), size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def opened(tmp_path: Path, content: bytes) -> Checkpoint:
    folder_with(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    return open_checkpoint(tmp_path)


def refused(tmp_path: Path, content: bytes, match: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=match) as caught:
            opened(tmp_path, content)
        assert tracemalloc.get_traced_memory()[1] < (1 << 19) + 30 * len(content)
    finally:
        tracemalloc.stop()
    assert str(tmp_path) in str(caught.value)
    assert len(str(caught.value)) < 3000


def test_the_builder_makes_valid_files(tmp_path: Path) -> None:
    content = safetensors_bytes({"w": entry()}, np.float32([1, 2]).tobytes())
    assert opened(tmp_path, content).tensors["w"].dequantize().tolist() == [1, 2]


def test_every_truncation(tmp_path: Path) -> None:
    content = safetensors_bytes({"w": entry(), "v": entry(8, 12, "F16")}, bytes(12))
    assert len(opened(tmp_path, content).tensors) == 2
    for size in range(len(content)):
        refused(tmp_path, content[:size], r"model\.safetensors")


@pytest.mark.parametrize("size", [2**64 - 1, 2**63, 2**32, 100_000_001, 200])
def test_header_sizes(tmp_path: Path, size: int) -> None:
    refused(tmp_path, safetensors_bytes({"w": entry()}, size=size), f"header claims {size} bytes")


def test_header_size_that_a_large_file_could_hold(tmp_path: Path) -> None:
    folder_with(tmp_path)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(safetensors_bytes({"w": entry()}, size=1 << 30))
        file.truncate(8 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="is the limit"):
            open_checkpoint(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b'{"w": }',
        b'{"w": 1}',
        b'{"\xff": {}}',
        b'{"w": ' + b"9" * 10_000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"PK\x03\x04 a zip",
    ],
)
def test_headers_that_are_not(tmp_path: Path, header: bytes) -> None:
    refused(tmp_path, safetensors_bytes(header), "model.safetensors: ")


def test_duplicate_keys(tmp_path: Path) -> None:
    info = json.dumps(entry())
    header = f'{{"w": {info}, "v": {json.dumps(entry(8, 16))}, "w": {info}}}'.encode()
    refused(tmp_path, safetensors_bytes(header, bytes(16)), "'w' is there twice")
    header = b'{"w": {"dtype": "F32", "shape": [2], "shape": [2], "data_offsets": [0, 8]}}'
    refused(tmp_path, safetensors_bytes(header), "'shape' is there twice")


@pytest.mark.parametrize("dtype", ["I64", "F64", "U8", "BOOL", "F8_E4M3", "f32", "", None, 3, []])
def test_dtypes(tmp_path: Path, dtype: Any) -> None:
    content = safetensors_bytes({"layers.0.w": entry(dtype=dtype)})
    message = rf"'layers\.0\.w' has dtype {'.*' if dtype == [] else dtype}.*F32, F16, BF16"
    refused(tmp_path, content, message)


@pytest.mark.parametrize(
    "shape",
    [
        *(None, 2, "2", {}, [2.0], ["2"], [True, True], [None], [[2]]),
        *([-1, -2], [2**64], [1] * 9, [1] * 1000),
    ],
)
def test_shapes_that_are_not(tmp_path: Path, shape: Any) -> None:
    refused(tmp_path, safetensors_bytes({"w": entry(shape=shape)}), "'w': shape must be")


@pytest.mark.parametrize(
    "shape", [[], [1], [3], [0], [2, 2], [2**63, 2], [2**32, 2**32], [2**63] * 8]
)
def test_shapes_that_do_not_fit(tmp_path: Path, shape: Any) -> None:
    refused(tmp_path, safetensors_bytes({"w": entry(shape=shape)}), "'w'.*has 8 bytes instead of")


@pytest.mark.parametrize(
    "offsets",
    [None, 0, [], [0], [0, 8, 8], [0.0, 8.0], ["0", "8"], [False, 8], [-8, 0], [0, 2**64], {}],
)
def test_offsets_that_are_not(tmp_path: Path, offsets: Any) -> None:
    header = {"w": {"dtype": "F32", "shape": [2], "data_offsets": offsets}}
    refused(tmp_path, safetensors_bytes(header), "'w': data_offsets must be")


@pytest.mark.parametrize(
    ("begin", "end"), [(0, 9), (8, 16), (8, 0), (2**63, 2**63 + 8), (2**64 - 8, 2**64 - 1)]
)
def test_offsets_outside_the_file(tmp_path: Path, begin: int, end: int) -> None:
    refused(tmp_path, safetensors_bytes({"w": entry(begin, end)}), "'w' has data_offsets")


def test_tiling(tmp_path: Path) -> None:
    both = {"a": entry(0, 8), "b": entry(4, 12)}
    refused(tmp_path, safetensors_bytes(both, bytes(12)), "'b'.*overlaps")
    both = {"a": entry(0, 8), "b": entry(0, 8)}
    refused(tmp_path, safetensors_bytes(both), "overlaps")
    both = {"a": entry(12, 20), "b": entry(0, 8)}
    refused(tmp_path, safetensors_bytes(both, bytes(20)), "'a'.*hole")
    refused(tmp_path, safetensors_bytes({"a": entry(4, 12)}, bytes(12)), "'a'.*hole")
    refused(tmp_path, safetensors_bytes({"a": entry()}, bytes(11)), "3 bytes behind the last")
    refused(tmp_path, safetensors_bytes({}, bytes(8)), "8 bytes behind the last")


def test_long_name(tmp_path: Path) -> None:
    refused(tmp_path, safetensors_bytes({"w" * 1025: entry()}), "name of 1025 characters")


def test_memory_of_a_header(tmp_path: Path) -> None:
    """The densest JSON in Python objects per byte."""
    refused(tmp_path, safetensors_bytes(b'{"w": [' + b"[]," * 100_000 + b"[]]}"), "'w' is not")


# --- folders ---------------------------------------------------------------------------------


def test_no_config(tmp_path: Path) -> None:
    safetensors_numpy.save_file(FLOATS, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read: No such file"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("config", ["", "[]", "{", '{"a": 1, "a": 2}', "[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_broken_config(tmp_path: Path, name: str, config: str) -> None:
    folder_with(tmp_path, FLOATS)
    (tmp_path / name).write_text(config)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        open_checkpoint(tmp_path)


def test_huge_config(tmp_path: Path) -> None:
    folder_with(tmp_path, FLOATS)
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(8 << 30)
    with pytest.raises(CheckpointError, match="over the limit"):
        open_checkpoint(tmp_path)


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.ckpt", "MODEL.BIN"]
)
def test_pickle_is_refused_and_never_loaded(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder_with(folder) / name).write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    for path in (folder, folder / name):
        with pytest.raises(CheckpointError, match=f"{name}: weights in pickle format") as caught:
            open_checkpoint(path)
        assert "safetensors or GGUF" in str(caught.value)
    assert not (tmp_path / "exploded").exists()


def test_pickle_beside_safetensors_is_left_alone(tmp_path: Path) -> None:
    folder_with(tmp_path, FLOATS)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert open_checkpoint(tmp_path).format == "safetensors"


def test_a_bare_safetensors_file(tmp_path: Path) -> None:
    folder_with(tmp_path, FLOATS)
    with pytest.raises(CheckpointError, match="give the folder instead"):
        open_checkpoint(tmp_path / "model.safetensors")
