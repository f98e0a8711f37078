"""Dequantisation against the ``gguf`` package, bit for bit, on every storage type."""

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as gguf_dequantize

from tidemill.weights.base import TensorType, WeightTensor
from tidemill.weights.quants import LAYOUTS, dequantize

ALL_TYPES = list(TensorType)
QUANTISED = [t for t in ALL_TYPES if t.block_weights > 1]
WITH_F16_SCALE = [t for t in QUANTISED if t is not TensorType.MXFP4]


def oracle(data: np.ndarray, type: TensorType, shape: tuple[int, ...]) -> np.ndarray:
    rows = data.reshape(*shape[:-1], -1)
    with np.errstate(all="ignore"):
        return gguf_dequantize(rows, gguf.GGMLQuantizationType(type.value)).reshape(shape)


def assert_bit_equal(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal as bits, signed zeros and subnormals included; any NaN equals any NaN."""
    assert actual.dtype == expected.dtype == np.float32
    assert actual.shape == expected.shape
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), nan)
    np.testing.assert_array_equal(
        np.where(nan, 0, actual.view(np.uint32)), np.where(nan, 0, expected.view(np.uint32))
    )


@pytest.mark.parametrize("type", ALL_TYPES, ids=lambda t: t.name)
def test_block_sizes_are_those_of_the_format(type: TensorType) -> None:
    sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(type.value)]
    assert (type.block_weights, type.block_bytes) == sizes
    assert gguf.GGMLQuantizationType(type.value).name == type.name


@pytest.mark.parametrize("type", QUANTISED, ids=lambda t: t.name)
def test_layout_has_the_size_of_the_block(type: TensorType) -> None:
    assert LAYOUTS[type].itemsize == type.block_bytes


@pytest.mark.parametrize("type", ALL_TYPES, ids=lambda t: t.name)
def test_random_bytes(type: TensorType) -> None:
    rng = np.random.default_rng(type.value)
    shape = (3, 5, 2 * max(type.block_weights, 8))
    nbytes = 30 * max(type.block_weights, 8) // type.block_weights * type.block_bytes
    for _ in range(40):
        data = rng.integers(0, 256, nbytes, dtype=np.uint8)
        assert_bit_equal(dequantize(data, type, shape), oracle(data, type, shape))


@pytest.mark.parametrize("type", WITH_F16_SCALE, ids=lambda t: t.name)
def test_f16_scales(type: TensorType) -> None:
    """Scale patterns over all of f16: subnormals, infinities and NaNs too."""
    rng = np.random.default_rng(99)
    # Every pattern, or for the large blocks every fifth (a stride that meets all exponents).
    patterns = np.arange(0, 65536, 1 if type.block_weights == 32 else 5, dtype=np.uint16)
    n = len(patterns)
    blocks = rng.integers(0, 256, (n, type.block_bytes), np.uint8).view(LAYOUTS[type])[:, 0]
    blocks["d"] = patterns.view(np.float16)
    for second in {"m", "dmin"} & set(LAYOUTS[type].names):
        blocks[second] = rng.permutation(patterns).view(np.float16)
    data = blocks.view(np.uint8).reshape(-1)
    shape = (n, type.block_weights)
    assert_bit_equal(dequantize(data, type, shape), oracle(data, type, shape))


def test_every_code_of_mxfp4_under_every_exponent() -> None:
    blocks = np.zeros((256, 17), dtype=np.uint8)
    blocks[:, 0] = np.arange(256)
    blocks[:, 1:] = np.arange(16) | (np.arange(16)[::-1] << 4)
    shape = (256, 32)
    values = dequantize(blocks.reshape(-1), TensorType.MXFP4, shape)
    assert_bit_equal(values, oracle(blocks.reshape(-1), TensorType.MXFP4, shape))
    # E8M0 127 is a scale of one: the FP4 numbers themselves.
    assert list(values[127, :8]) == [0, 0.5, 1, 1.5, 2, 3, 4, 6]


@pytest.mark.parametrize("type", [TensorType.F16, TensorType.BF16], ids=lambda t: t.name)
def test_every_pattern_of_the_16_bit_floats(type: TensorType) -> None:
    data = np.arange(65536, dtype=np.uint16).view(np.uint8)
    assert_bit_equal(dequantize(data, type, (65536,)), oracle(data, type, (65536,)))


@pytest.mark.parametrize(
    "type", [TensorType.Q4_0, TensorType.Q8_0, TensorType.MXFP4], ids=lambda t: t.name
)
def test_round_trip_of_real_values(type: TensorType) -> None:
    """Through the oracle's quantiser the values come back close: the layout is not just
    consistent, it means what it should."""
    values = np.random.default_rng(5).standard_normal((8, 256), dtype=np.float32)
    stored = gguf.quantize(values, gguf.GGMLQuantizationType(type.value)).reshape(-1)
    error = np.abs(dequantize(stored, type, values.shape) - values)
    assert float(error.mean()) < 0.15


@pytest.mark.parametrize("type", ALL_TYPES, ids=lambda t: t.name)
def test_unaligned_and_strided_data(type: TensorType) -> None:
    rng = np.random.default_rng(7)
    shape = (4, 256)
    nbytes = 1024 // type.block_weights * type.block_bytes
    data = rng.integers(0, 256, nbytes, dtype=np.uint8)
    expected = dequantize(data, type, shape)
    padded = np.concatenate([np.zeros(1, np.uint8), data])
    assert_bit_equal(dequantize(padded[1:], type, shape), expected)
    assert_bit_equal(dequantize(np.repeat(data, 2)[::2], type, shape), expected)


@pytest.mark.parametrize("type", ALL_TYPES, ids=lambda t: t.name)
def test_more_than_a_chunk(type: TensorType) -> None:
    rng = np.random.default_rng(11)
    shape = (3, 65536 + 256)
    data = rng.integers(0, 256, 3 * shape[1] // type.block_weights * type.block_bytes, np.uint8)
    assert_bit_equal(dequantize(data, type, shape), oracle(data, type, shape))


@pytest.mark.parametrize("type", ALL_TYPES, ids=lambda t: t.name)
def test_the_result_is_a_new_array(type: TensorType) -> None:
    data = np.zeros(type.block_bytes * 256 // type.block_weights, np.uint8)
    data.flags.writeable = False
    values = dequantize(data, type, (256,))
    values += 1
    assert not data.any()


@pytest.mark.parametrize(
    ("shape", "nbytes"),
    [((2, 32), 18), ((2, 32), 37), ((2, 31), 36), ((31,), 18), ((2**40, 32), 36), ((-1, -32), 18)],
)
def test_sizes_are_checked_before_allocating(shape: tuple[int, ...], nbytes: int) -> None:
    with pytest.raises(ValueError, match="Q4_0"):
        dequantize(np.zeros(nbytes, np.uint8), TensorType.Q4_0, shape)


def test_only_flat_bytes_are_taken() -> None:
    with pytest.raises(ValueError, match="one-dimensional uint8"):
        dequantize(np.zeros(8, np.float32), TensorType.F32, (8,))  # type: ignore[arg-type]


@pytest.mark.parametrize("type", ALL_TYPES, ids=lambda t: t.name)
def test_empty_tensor(type: TensorType) -> None:
    assert dequantize(np.zeros(0, np.uint8), type, (0, 256)).shape == (0, 256)


@pytest.mark.parametrize("type", ALL_TYPES, ids=lambda t: t.name)
def test_a_tensor_knows_its_bytes(type: TensorType) -> None:
    nbytes = 6 * 256 // type.block_weights * type.block_bytes
    tensor = WeightTensor("w", type, (6, 256), np.zeros(nbytes, np.uint8))
    assert type.nbytes(tensor.shape) == tensor.nbytes == nbytes
    assert tensor.row_bytes * 6 == nbytes
