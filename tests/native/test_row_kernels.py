"""Norms, activations and rope against double precision, on every kernel table of this CPU."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tidemill import _native

ISAS = _native.available_isas()
SIZES = (1, 2, 15, 16, 17, 31, 33, 64, 100)
pytestmark = pytest.mark.parametrize("isa", ISAS)


def floats(n: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.RandomState(seed).standard_normal(n) * scale).astype(np.float32)


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    """Largest |found - wanted| / |wanted| where the result is not denormal."""
    size = np.abs(wanted)
    keep = size > 1e-37
    return float((np.abs(found.astype(np.float64) - wanted)[keep] / size[keep]).max(initial=0))


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x / (1 + np.exp(-2 * u))


def gelu(x: np.ndarray) -> np.ndarray:
    return np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x])


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["silu", "gelu_tanh", "gelu"])
def test_activations_are_accurate_over_their_range(kind: int, isa: str) -> None:
    x = np.concatenate([np.linspace(-12, 12, 4001), floats(1001, scale=0.05)]).astype(np.float32)
    wanted = (silu, gelu_tanh, gelu)[kind](x.astype(np.float64))
    found = _native.row_activate(x, kind, isa)
    # Far in gelu's tail the exponent's own rounding is multiplied by its size.
    middle = np.abs(x) < 4
    assert relative(found[middle], wanted[middle]) < 3e-6
    assert np.abs(found - wanted).max() < 2e-6


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_activations_at_the_ends(kind: int, isa: str) -> None:
    x = np.array([0.0, -0.0, 90.0, -90.0, 1e4, -1e4, 3e38, -3e38, np.nan], np.float32)
    with np.errstate(all="ignore"):
        out = _native.row_activate(x, kind, isa)
    np.testing.assert_array_equal(out[[0, 1]], [0, 0])
    np.testing.assert_allclose(out[[2, 4]], x[[2, 4]])
    np.testing.assert_allclose(out[[3, 5]], [0, 0], atol=1e-30)
    assert np.isnan(out[8])


@pytest.mark.parametrize("n", SIZES)
def test_gated_is_the_activation_times_the_other(n: int, isa: str) -> None:
    gate, up = floats(n), floats(n, 1)
    for kind, act in enumerate((silu, gelu_tanh, gelu)):
        wanted = act(gate.astype(np.float64)) * up
        assert relative(_native.row_gated(gate, up, kind, isa), wanted) < 3e-6


@pytest.mark.parametrize("n", SIZES)
def test_rms_norm(n: int, isa: str) -> None:
    x, w = floats(n, 2, 3.0), floats(n, 3)
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt((wide**2).mean() + 1e-5) * w
    assert relative(_native.row_rms_norm(x, w, 1e-5, isa), wanted) < 1e-6


@pytest.mark.parametrize("n", SIZES)
def test_softmax(n: int, isa: str) -> None:
    x = floats(n, 4, 5.0)
    e = np.exp(x.astype(np.float64) - x.max())
    assert relative(_native.row_softmax(x, isa), e / e.sum()) < 2e-6


@pytest.mark.parametrize("cap", [0.5, 30.0, 50.0])
def test_softcap_is_accurate_near_zero_and_far_out(cap: float, isa: str) -> None:
    x = np.concatenate([np.linspace(-8 * cap, 8 * cap, 2001), floats(101, scale=1e-3 * cap)])
    x = x.astype(np.float32)
    wanted = cap * np.tanh(x.astype(np.float64) / cap)
    assert relative(_native.row_softcap(x, cap, isa), wanted) < 1e-6


@pytest.mark.parametrize("n", SIZES)
def test_accumulate(n: int, isa: str) -> None:
    x, y = floats(n), floats(n, 1)
    found = _native.row_accumulate(x, 0.7, y, isa)
    np.testing.assert_allclose(found, np.float32(0.7) * x + y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dim", "pairs"), [(2, 1), (6, 3), (64, 32), (80, 16), (128, 50)])
def test_rope(dim: int, pairs: int, interleaved: bool, isa: str) -> None:
    x = floats(dim)
    angles = np.random.RandomState(1).uniform(-3, 3, pairs)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    found = _native.row_rope(x, cos, sin, interleaved, isa)
    wanted = x.astype(np.float64)
    i = np.arange(pairs)
    first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + pairs)
    wanted[first] = x[first] * cos - x[second] * sin
    wanted[second] = x[second] * cos + x[first] * sin
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
