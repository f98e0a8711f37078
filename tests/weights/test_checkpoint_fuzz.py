"""Mutated model files: they open soundly or are refused, and nothing else ever happens."""

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.weights import CheckpointError, open_checkpoint

pytestmark = pytest.mark.timeout(240)

Check = Callable[..., bool]
EXTREMES = [
    *(struct.pack("<Q", n) for n in (0, 1, 2**32, 2**63, 2**64 - 32, 2**64 - 8)),
    *(struct.pack("<I", n) for n in (0, 1, 9, 2**32 - 1)),
    b"\xff",
]


@pytest.fixture(scope="module")
def gguf_model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("valid") / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(32)
    writer.add_context_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_add_bos_token(True)
    writer.add_token_list(["<s>", "a", "漢字", ""])
    writer.add_token_scores([0.0, -1.0, -2.0, -3.0])
    writer.add_token_types([1, 1, 3, 6])
    rng = np.random.default_rng(0)
    for type, rows in (("F32", 2), ("Q4_K", 1), ("Q8_0", 1), ("BF16", 2)):
        kind = gguf.GGMLQuantizationType[type]
        weights, size = gguf.GGML_QUANT_SIZES[kind]
        row = max(size, 256 // weights * size if weights > 1 else 8 * size)
        writer.add_tensor(f"w.{type}", rng.integers(0, 256, (rows, row), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def safetensors_model() -> bytes:
    header = {
        "__metadata__": {"format": "pt"},
        "a.weight": {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32]},
        "b.weight": {"dtype": "BF16", "shape": [3], "data_offsets": [32, 38]},
        "empty": {"dtype": "F16", "shape": [0, 9], "data_offsets": [38, 38]},
        "scalar": {"dtype": "F16", "shape": [], "data_offsets": [38, 40]},
    }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(range(40))


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Write a mutant under a name, open it within a bound on memory, read everything; False if it
    was refused. Tracing allocations is slow, so the exhaustive sweeps go without."""
    folder = tmp_path_factory.mktemp("mutants")
    (folder / "config.json").write_text("{}")

    def run(content: bytes, name: str, trace: bool = True) -> bool:
        path: Path = folder / name
        path.unlink(missing_ok=True)  # a new inode: an older mutant may still be mapped
        path.write_bytes(content)
        if trace:
            tracemalloc.start()
        try:
            checkpoint = open_checkpoint(path if name.endswith(".gguf") else folder)
        except CheckpointError:
            return False
        finally:
            _, peak = tracemalloc.get_traced_memory()  # zeros when not tracing
            tracemalloc.stop()
            path.unlink()
            assert peak < (1 << 17) + 32 * len(content)
        total = 0
        for key, tensor in checkpoint.tensors.items():
            assert key == tensor.name
            assert tensor.nbytes == tensor.n_weights * tensor.type.block_bytes // (
                tensor.type.block_weights
            )
            assert tensor.dequantize().shape == tensor.shape
            total += tensor.nbytes
        # Views that neither overlap nor leave the file cannot hold more than it.
        assert total <= len(content)
        for value in checkpoint.metadata.values():
            if isinstance(value, np.ndarray):
                value.tobytes()
                assert value.nbytes <= len(content)
        return True

    return run


def field_overwrites(content: bytes, end: int) -> list[bytes]:
    """Every extreme value at every offset below ``end``."""
    return [
        content[:at] + extreme + content[at + len(extreme) :]
        for at in range(end)
        for extreme in EXTREMES
    ]


def test_gguf_field_overwrites(gguf_model: bytes, check: Check) -> None:
    header = gguf_model.index(b"w.BF16") + 6 + 4 + 2 * 8 + 4 + 8  # the last tensor info
    assert check(gguf_model, "m.gguf")
    outcomes = [
        check(mutant, "m.gguf", trace=False) for mutant in field_overwrites(gguf_model, header)
    ]
    assert any(outcomes)
    assert not all(outcomes)


def test_safetensors_field_overwrites(safetensors_model: bytes, check: Check) -> None:
    assert check(safetensors_model, "model.safetensors")
    outcomes = [
        check(mutant, "model.safetensors", trace=False)
        for mutant in field_overwrites(safetensors_model, 40)
    ]
    assert not all(outcomes)


MUTATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), st.integers(0, 1 << 14), st.integers(0, 7)),
        st.tuples(st.just("write"), st.integers(0, 1 << 14), st.sampled_from(EXTREMES)),
        st.tuples(st.just("insert"), st.integers(0, 1 << 14), st.binary(max_size=16)),
        st.tuples(st.just("delete"), st.integers(0, 1 << 14), st.integers(1, 64)),
        st.tuples(st.just("repeat"), st.integers(0, 1 << 14), st.integers(1, 64)),
        st.tuples(st.just("cut"), st.integers(0, 1 << 14), st.none()),
    ),
    min_size=1,
    max_size=4,
)


def mutate(content: bytes, mutations: list[tuple], span: int) -> bytes:
    """Apply the mutations in order, at offsets modulo ``span`` (the part worth hitting)."""
    for kind, position, argument in mutations:
        at = position % max(1, min(span, len(content)))
        if kind == "flip" and content:
            content = content[:at] + bytes([content[at] ^ 1 << argument]) + content[at + 1 :]
        elif kind == "write":
            content = content[:at] + argument + content[at + len(argument) :]
        elif kind == "insert":
            content = content[:at] + argument + content[at:]
        elif kind == "delete":
            content = content[:at] + content[at + argument :]
        elif kind == "repeat":
            content = content[:at] + content[at : at + argument] + content[at:]
        elif kind == "cut":
            content = content[: position % (len(content) + 1)]
    return content


@settings(max_examples=400, derandomize=True, deadline=None, database=None)
@given(mutations=MUTATIONS)
def test_gguf_mutations(gguf_model: bytes, check: Check, mutations: list[tuple]) -> None:
    check(mutate(gguf_model, mutations, 900), "m.gguf")


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(mutations=MUTATIONS)
def test_safetensors_mutations(
    safetensors_model: bytes, check: Check, mutations: list[tuple]
) -> None:
    check(mutate(safetensors_model, mutations, 400), "model.safetensors")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(["F32", "BF16", "I64", "a", "__metadata__", ""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "F16", "BF16"]) | JSON,
        "shape": st.lists(st.sampled_from([0, 1, 2, 3, 2**32, 2**63]), max_size=9) | JSON,
        "data_offsets": st.lists(st.sampled_from([0, 4, 8, 12, 2**64 - 1]), min_size=2, max_size=2)
        | JSON,
    },
)


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(
    header=st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), ENTRY | JSON) | JSON,
    data=st.binary(max_size=16),
)
def test_safetensors_with_any_header(check: Check, header: object, data: bytes) -> None:
    text = json.dumps(header).encode()
    check(struct.pack("<Q", len(text)) + text + data, "model.safetensors")
