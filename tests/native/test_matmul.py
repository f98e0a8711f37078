"""The native matmul kernels against NumPy: every type, every instruction set this CPU runs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf.quants import dequantize as gguf_dequantize

from tidemill import _native
from tidemill.weights.base import TensorType

ISAS = _native.available_isas()
TYPES = list(TensorType)
FLOAT_TYPES = (TensorType.F32, TensorType.F16, TensorType.BF16)
QUANTISED = [t for t in TYPES if t not in FLOAT_TYPES]

# Where the f16 scales of a block lie.
F16_AT = {
    TensorType.Q4_0: (0,), TensorType.Q4_1: (0, 2), TensorType.Q5_0: (0,), TensorType.Q5_1: (0, 2),
    TensorType.Q8_0: (0,), TensorType.Q2_K: (80, 82), TensorType.Q3_K: (108,),
    TensorType.Q4_K: (0, 2), TensorType.Q5_K: (0, 2), TensorType.Q6_K: (208,),
    TensorType.IQ4_NL: (0,), TensorType.IQ4_XS: (0,),
}  # fmt: skip

Array = npt.NDArray[Any]


def stored(
    type_: TensorType, rows: int, cols: int, seed: int = 0, code: int | None = None
) -> Array:
    """Bytes of a random (rows, cols) tensor; with ``code`` every byte but the scales is that."""
    rng = np.random.default_rng(seed)
    if type_ in FLOAT_TYPES:
        values = rng.standard_normal(rows * cols).astype(np.float32)
        if type_ is TensorType.F32:
            return values.view(np.uint8)
        if type_ is TensorType.F16:
            return values.astype(np.float16).view(np.uint8)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    n = rows * cols // type_.block_weights
    blocks = rng.integers(0, 256, (n, type_.block_bytes), dtype=np.uint8)
    if code is not None:
        blocks[:] = code
    for at in F16_AT.get(type_, ()):
        scales = rng.uniform(-0.02, 0.02, n).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(n, 2)
    if type_ is TensorType.MXFP4:
        blocks[:, 0] = rng.integers(117, 126, n)
    return blocks.reshape(-1)


def weights(data: Array, type_: TensorType, rows: int, cols: int) -> Array:
    """What the ``gguf`` package says the bytes mean."""
    qtype = gguf.GGMLQuantizationType(int(type_))
    return gguf_dequantize(data.reshape(rows, -1), qtype).reshape(rows, cols)


def packed(data: Array, type_: TensorType, rows: int, cols: int) -> _native.PackedMatrix:
    return _native.PackedMatrix(data, int(type_), rows, cols)


def activations(tokens: int, cols: int, seed: int = 1) -> npt.NDArray[np.float32]:
    x = np.random.default_rng(seed).standard_normal((tokens, cols)).astype(np.float32)
    x[:, ::7] *= 8.0  # outliers, as real activations have
    return x


def quantised(x: npt.NDArray[np.float32]) -> Array:
    """The activations that quantised weights meet, emulated: int8 in groups of 32."""
    groups = x.reshape(len(x), -1, 32)
    amax = np.abs(groups).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), amax, where=amax > 0, out=np.zeros_like(amax))
    q = np.rint(groups * inverse)
    scale = amax / np.float32(127)
    return (q.astype(np.float64) * scale.astype(np.float64)).reshape(x.shape)


def assert_product(got: Array, used: Array, w: Array, tolerance: float) -> None:
    """Compare with the exact product, relative to the sum of the products' magnitudes."""
    exact = used.astype(np.float64) @ w.astype(np.float64).T
    magnitude = np.abs(used).astype(np.float64) @ np.abs(w).astype(np.float64).T
    assert got.shape == exact.shape
    error = np.abs(got - exact)
    worst = (error / np.maximum(magnitude, 1e-30)).max()
    assert worst <= tolerance, f"error {worst:.3g} of the magnitude"


@pytest.mark.parametrize("type_", TYPES, ids=lambda t: t.name)
def test_dequantised_rows_are_those_of_the_gguf_package(type_: TensorType) -> None:
    rows, cols = 5, 3 * max(type_.block_weights, 13)
    data = stored(type_, rows, cols, seed=3)
    got = _native.dequantize(data, int(type_), rows, cols)
    want = weights(data, type_, rows, cols).astype(np.float32)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("type_", TYPES, ids=lambda t: t.name)
def test_packed_rows_are_the_same(type_: TensorType) -> None:
    rows, cols = 37, 3 * max(type_.block_weights, 13)
    data = stored(type_, rows, cols, seed=4)
    got = packed(data, type_, rows, cols).dequantize()
    want = _native.dequantize(data, int(type_), rows, cols)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_every_scale_of_mxfp4_is_read() -> None:
    blocks = np.zeros((256, 17), dtype=np.uint8)
    blocks[:, 0] = np.arange(256)
    blocks[:, 1:] = 0x71  # values 1 and 12
    data = blocks.reshape(-1)
    with np.errstate(over="ignore"):
        want = weights(data, TensorType.MXFP4, 256, 32)
        finite = np.isfinite(want[:, 0] * np.float32(12 * 127))
    got = _native.dequantize(data, int(TensorType.MXFP4), 256, 32)
    np.testing.assert_array_equal(got, want)
    x = np.zeros((1, 32), dtype=np.float32)
    x[0, 0] = 127.0  # quantised to exactly 127 with scale 1
    for isa in ISAS:
        product = packed(data, TensorType.MXFP4, 256, 32).matmul(x, isa)[0]
        np.testing.assert_allclose(product[finite], want[finite, 0] * np.float32(127), rtol=1e-6)


def test_every_half_of_an_f16_matrix_is_read() -> None:
    halves = np.arange(65536, dtype=np.uint16)
    got = _native.dequantize(halves.view(np.uint8), int(TensorType.F16), 1, 65536)[0]
    want = halves.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    number = ~np.isnan(want)
    np.testing.assert_array_equal(got[number].view(np.uint32), want[number].view(np.uint32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_", TYPES, ids=lambda t: t.name)
def test_products_match_numpy(type_: TensorType, isa: str) -> None:
    unit = type_.block_weights
    for rows, cols in ((37, 3 * unit if unit > 1 else 77), (16, unit), (1, 2 * unit), (50, 1024)):
        data = stored(type_, rows, cols, seed=rows)
        w = weights(data, type_, rows, cols)
        matrix = packed(data, type_, rows, cols)
        for tokens in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17):
            x = activations(tokens, cols, seed=tokens)
            got = matrix.matmul(x, isa)
            if type_ in FLOAT_TYPES:
                assert_product(got, x, w, 2e-6)
            else:
                assert_product(got, quantised(x), w, 2e-6)


@pytest.mark.parametrize("type_", QUANTISED, ids=lambda t: t.name)
def test_error_against_float_activations_is_that_of_their_quantisation(type_: TensorType) -> None:
    rows, cols, tokens = 24, 768, 6
    data = stored(type_, rows, cols, seed=8)
    w = weights(data, type_, rows, cols).astype(np.float64)
    x = activations(tokens, cols)
    exact = x.astype(np.float64) @ w.T
    step = np.abs(x.reshape(tokens, -1, 32)).max(axis=-1) / 127.0
    reach = np.abs(w).reshape(rows, -1, 32).sum(axis=-1)
    bound = 0.5 * step @ reach.T * 1.001
    got = packed(data, type_, rows, cols).matmul(x)
    assert (np.abs(got - exact) <= bound).all()
    # Rounding errors are independent, so that the typical error is far below the bound.
    assert np.abs(got - exact).mean() < 0.15 * bound.mean()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_", QUANTISED, ids=lambda t: t.name)
@pytest.mark.parametrize("code", [0x00, 0x7F, 0x80, 0x88, 0xFF])
def test_extreme_weights_and_activations_do_not_saturate(
    type_: TensorType, code: int, isa: str
) -> None:
    """Largest codes times activations of +-127, all of one sign: the most that any sum can be."""
    rows, cols = 17, 2 * type_.block_weights
    data = stored(type_, rows, cols, seed=4, code=code)
    w = weights(data, type_, rows, cols)
    x = np.ones((10, cols), dtype=np.float32)
    x[1::2] = -1.0
    x[4:, ::2] *= -1.0
    x[8:] *= 1e30
    with np.errstate(over="ignore"):
        for count in (1, 10):
            got = packed(data, type_, rows, cols).matmul(x[:count], isa)
            assert_product(got, quantised(x[:count]), w, 4e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_", TYPES, ids=lambda t: t.name)
def test_bits_do_not_depend_on_the_batch_or_the_split(type_: TensorType, isa: str) -> None:
    rows, cols, tokens = 41, 1024, 67
    matrix = packed(stored(type_, rows, cols, seed=9), type_, rows, cols)
    x = activations(tokens, cols)
    bias = np.random.default_rng(2).standard_normal(rows).astype(np.float32)
    want = matrix.matmul(x, isa, bias=bias)
    for count in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64):
        start = (count * 5) % (tokens - count + 1)
        got = matrix.matmul(x[start : start + count], isa, bias=bias)
        np.testing.assert_array_equal(got, want[start : start + count])
    split = np.zeros_like(want)
    for begin, end in ((0, 1), (1, 1), (1, 3)):
        split += matrix.matmul(x, isa, bias=bias, tiles=(begin, end))
    np.testing.assert_array_equal(split, want)
    order = np.random.default_rng(3).permutation(tokens).astype(np.int32)[:20]
    np.testing.assert_array_equal(matrix.matmul(x, isa, bias=bias, x_rows=order), want[order])


@pytest.mark.parametrize("isa", ISAS)
def test_long_rows_and_large_batches_cross_every_block_boundary(isa: str) -> None:
    """More columns than a stretch holds, more tokens than a block holds."""
    for type_ in (TensorType.Q4_1, TensorType.Q6_K, TensorType.F16):
        rows, cols = 16, 4864
        data = stored(type_, rows, cols, seed=6)
        matrix = packed(data, type_, rows, cols)
        x = activations(301 if isa != "portable" else 101, cols)
        got = matrix.matmul(x, isa)
        used = x if type_ is TensorType.F16 else quantised(x)
        assert_product(got, used, weights(data, type_, rows, cols), 4e-6)
        np.testing.assert_array_equal(got[-1:], matrix.matmul(x[-1:], isa))


@pytest.mark.parametrize("isa", ISAS)
def test_activations_are_quantised_to_nearest(isa: str) -> None:
    x = activations(5, 96, seed=5)
    x[1, 32:64] = 0.0
    x[2, :32] = 1e-36  # too small to scale: taken as zero
    x[3, 0] = 3e38
    q, scale, total, sums = _native.quantize_activations(x, isa)
    groups = x.reshape(5, 3, 32)
    amax = np.abs(groups).max(axis=-1)
    amax[2, 0] = 0.0
    np.testing.assert_array_equal(scale, amax / np.float32(127))
    with np.errstate(divide="ignore", invalid="ignore"):
        want = np.rint(groups * (np.float32(127) / amax)[..., None])
    want = np.where(amax[..., None] == 0, 0, want)
    np.testing.assert_array_equal(q.reshape(5, 3, 32), want)
    np.testing.assert_array_equal(sums, want.reshape(5, 3, 2, 16).sum(axis=-1))
    np.testing.assert_array_equal(total, scale * want.sum(axis=-1, dtype=np.float32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_broken_activation_shows_in_its_own_token_only(isa: str, bad: float) -> None:
    for type_ in (TensorType.Q4_1, TensorType.Q8_0, TensorType.Q6_K, TensorType.Q2_K):
        matrix = packed(stored(type_, 20, 512), type_, 20, 512)
        x = activations(9, 512)
        clean = matrix.matmul(x, isa)
        x[4, 300] = bad
        got = matrix.matmul(x, isa)
        assert np.isnan(got[4]).all()
        np.testing.assert_array_equal(np.delete(got, 4, axis=0), np.delete(clean, 4, axis=0))


@pytest.mark.parametrize(
    ("type_", "growth"),
    [(t, 1.001) for t in TYPES if t.block_weights <= 32 or t is TensorType.Q6_K]
    + [(TensorType.Q4_K, 1.03), (TensorType.Q5_K, 1.03), (TensorType.IQ4_XS, 1.02)],
)
def test_packing_keeps_the_size(type_: TensorType, growth: float) -> None:
    data = stored(type_, 64, 4096)
    assert packed(data, type_, 64, 4096).nbytes <= growth * data.nbytes


def test_instruction_sets_agree() -> None:
    """Integer sums are exact and float sums are in one order: only fused rounding may differ."""
    for type_ in TYPES:
        matrix = packed(stored(type_, 33, 1024), type_, 33, 1024)
        x = activations(6, 1024)
        results = [matrix.matmul(x, isa) for isa in ISAS]
        for other in results[1:]:
            np.testing.assert_allclose(other, results[0], rtol=0, atol=2e-5 * np.abs(other).max())


def test_bad_input_is_refused() -> None:
    data = stored(TensorType.Q4_1, 16, 64)
    q4_1 = int(TensorType.Q4_1)
    with pytest.raises(ValueError, match="unknown tensor type"):
        _native.PackedMatrix(data, 9, 16, 64)
    with pytest.raises(ValueError, match="unknown tensor type"):
        _native.PackedMatrix(data, -1, 16, 64)
    with pytest.raises(ValueError, match="whole number of blocks"):
        _native.PackedMatrix(data, q4_1, 16, 63)
    with pytest.raises(ValueError, match="at least one row"):
        _native.PackedMatrix(data, q4_1, 0, 64)
    with pytest.raises(ValueError, match="not supported"):
        _native.PackedMatrix(data, q4_1, 16, 2**40)
    with pytest.raises(ValueError, match="take 640"):
        _native.PackedMatrix(data[:-1], q4_1, 16, 64)
    with pytest.raises(ValueError, match="take 640"):
        _native.dequantize(data[:-1], q4_1, 16, 64)
    matrix = packed(data, TensorType.Q4_1, 16, 64)
    x = activations(2, 64)
    with pytest.raises(ValueError, match="columns"):
        matrix.matmul(activations(2, 32))
    with pytest.raises(ValueError, match=r"sse9.*portable"):
        matrix.matmul(x, "sse9")
    with pytest.raises(ValueError, match="tiles"):
        matrix.matmul(x, tiles=(0, 2))
    with pytest.raises(ValueError, match="x_rows"):
        matrix.matmul(x, x_rows=np.array([2], dtype=np.int32))
    with pytest.raises(ValueError, match="bias"):
        matrix.matmul(x, bias=np.zeros(15, dtype=np.float32))
    assert matrix.matmul(x[:0]).shape == (0, 16)


def test_the_instruction_set_can_be_chosen() -> None:
    assert _native.isa_name() in ISAS
    assert ISAS[-1] == "portable"
    code = "from tidemill import _native; print(_native.isa_name())"
    for isa in ISAS:
        env = {**os.environ, "TIDEMILL_ISA": isa}
        result = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
        )
        assert result.stdout.strip() == isa
    env = {**os.environ, "TIDEMILL_ISA": "sse9"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert result.returncode != 0
    assert "TIDEMILL_ISA=sse9" in result.stderr
    assert "portable" in result.stderr
