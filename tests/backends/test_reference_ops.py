"""Each operation of the reference against its definition in ``program/ops.py``, by plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tidemill.backends.base import KVCacheSpec
from tidemill.backends.reference.kv import PagedKV, rounded
from tidemill.backends.reference.runner import (
    activate,
    attend,
    expert_linear,
    rms_norm,
    rope,
    route,
    softmax,
)
from tidemill.program.ops import Attention, KVShape, RopeSpec

RNG = np.random.RandomState


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return RNG(seed).standard_normal(shape).astype(np.float32)


def test_rms_norm():
    x, w = floats(3, 5), floats(5, seed=1)
    found = rms_norm(x, w, 1e-3)
    for row, out in zip(x, found, strict=True):
        root = math.sqrt(sum(float(a) ** 2 for a in row) / 5 + 1e-3)
        np.testing.assert_allclose(out, [a / root * b for a, b in zip(row, w, strict=True)], 1e-6)


def test_rms_norm_of_heads_is_per_head():
    x, w = floats(2, 3, 4), floats(4, seed=1)
    np.testing.assert_array_equal(rms_norm(x, w, 1e-5)[:, 1], rms_norm(x[:, 1], w, 1e-5))


@pytest.mark.parametrize(
    ("style", "pairs"), [("half", [(0, 2), (1, 3)]), ("interleaved", [(0, 1), (2, 3)])]
)
def test_rope_turns_pairs_and_passes_the_rest(style, pairs):
    x = floats(3, 2, 6)
    positions = np.array([0, 5, 11], np.int32)
    spec = RopeSpec((0.9, 0.02), style, magnitude=1.3)
    out = rope(x, positions, spec)
    for t, p in enumerate(positions):
        for h in range(2):
            np.testing.assert_array_equal(out[t, h, 4:], x[t, h, 4:])
            for (i, j), f in zip(pairs, spec.inv_freq, strict=True):
                turned = 1.3 * complex(x[t, h, i], x[t, h, j]) * np.exp(1j * p * f)
                np.testing.assert_allclose(
                    out[t, h, [i, j]], [turned.real, turned.imag], 1e-5, 1e-6
                )


@pytest.mark.parametrize(
    ("kind", "definition"),
    [
        ("silu", lambda x: x / (1 + math.exp(-x))),
        ("gelu", lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2)))),
        (
            "gelu_tanh",
            lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        ),
    ],
)
def test_activations(kind, definition):
    x = np.array([[-8.0, -1.5, -0.1, 0.0, 0.3, 2.0, 9.0]], np.float32)
    np.testing.assert_allclose(
        activate(x, kind)[0], [definition(float(a)) for a in x[0]], rtol=1e-5, atol=1e-7
    )
    assert np.isfinite(activate(np.array([[-3e4, 3e4]], np.float32), kind)).all()


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("softcap", [None, 0.8])
def test_attention_by_loops(window, softcap):
    q, k, v = floats(3, 4, 2), floats(7, 2, 2, seed=1), floats(7, 2, 2, seed=2)
    positions = np.array([4, 5, 6])
    op = Attention(0, 1, 2, 3, layer=0, scale=0.6, window=window, softcap=softcap)
    out = attend(q, k, v, positions, op)
    for t, p in enumerate(positions):
        first = 0 if window is None else max(0, p - window + 1)
        for h in range(4):
            scores = [0.6 * float(q[t, h] @ k[j, h // 2]) for j in range(first, p + 1)]
            if softcap is not None:
                scores = [softcap * math.tanh(s / softcap) for s in scores]
            weights = [math.exp(s) for s in scores]
            wanted = sum(
                w * v[j, h // 2] for w, j in zip(weights, range(first, p + 1), strict=True)
            ) / sum(weights)
            np.testing.assert_allclose(out[t, h], wanted, rtol=1e-5, atol=1e-6)


def test_softmax_of_large_scores():
    np.testing.assert_allclose(softmax(np.array([[1e4, 1e4]], np.float32)), [[0.5, 0.5]])


def test_route_orders_by_score_then_id():
    scores = np.array([[1.0, 3.0, 3.0, 2.0]], np.float32)
    ids, weights = route(scores, 3, normalise=False)
    assert ids.dtype == np.int32
    assert ids.tolist() == [[1, 2, 3]]
    e = np.exp([1.0, 3.0, 3.0, 2.0])
    np.testing.assert_allclose(weights, [e[[1, 2, 3]] / e.sum()], rtol=1e-6)
    _, normalised = route(scores, 3, normalise=True)
    np.testing.assert_allclose(normalised, [e[[1, 2, 3]] / e[1:].sum()], rtol=1e-6)


def test_expert_linear_shared_and_own_inputs():
    stack = floats(4, 3, 5)
    ids = np.array([[2, 0], [3, 2]], np.int32)
    shared, own = floats(2, 5, seed=1), floats(2, 2, 5, seed=2)
    for t in range(2):
        for j in range(2):
            matrix = stack[ids[t, j]]
            np.testing.assert_allclose(
                expert_linear(shared, ids, stack)[t, j], matrix @ shared[t], 1e-5, 1e-6
            )
            np.testing.assert_allclose(
                expert_linear(own, ids, stack)[t, j], matrix @ own[t, j], 1e-5, 1e-6
            )


def test_kv_rounding():
    x = floats(2, 3, 64)
    assert rounded(x, "f32") is x
    np.testing.assert_array_equal(rounded(x, "f16"), x.astype(np.float16).astype(np.float32))
    kept = rounded(x, "q8_0").reshape(2, 3, 2, 32)
    groups = x.reshape(2, 3, 2, 32)
    scale = np.float32(np.float16(np.abs(groups[1, 2, 1]).max() / 127))
    steps = kept[1, 2, 1] / scale
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)
    assert np.abs(kept - groups).max() <= 0.51 * np.abs(groups).max() / 127 + 1e-3 * 3
    np.testing.assert_array_equal(rounded(np.zeros((1, 1, 32), np.float32), "q8_0"), 0)


def test_paged_kv_gathers_what_was_stored():
    kv = PagedKV(KVCacheSpec(6, 4, "f32"), [KVShape(2, 3), KVShape(1, 2)])
    k, v = floats(7, 2, 3), floats(7, 2, 3, seed=1)
    table = np.array([5, 0, 3, -1], np.int32)
    positions = np.arange(7)
    kv.store(0, table[positions // 4].astype(np.int64), positions % 4, k, v)
    keys, values = kv.gather(0, table, 7)
    np.testing.assert_array_equal(keys, k)
    np.testing.assert_array_equal(values, v)
    kv.copy_block(5, 2)
    np.testing.assert_array_equal(kv.gather(0, np.array([2, 0], np.int32), 7)[0], k)
    assert not kv.gather(1, table, 7)[0].any()


def test_q8_0_needs_whole_groups():
    with pytest.raises(ValueError, match="multiples of 32"):
        PagedKV(KVCacheSpec(1, 4, "q8_0"), [KVShape(1, 48)])
