"""Operations of the CPU backend against the reference, over odd shapes, alone in small graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.batches import run_tokens
from support.cpu_backend import ISAS, both_runners, q8_0_tensor
from support.programs import random_weights
from support.tiny_models import relative_error
from tidemill.backends.base import KVCacheSpec
from tidemill.backends.cpu.runner import CpuRunner
from tidemill.backends.reference import ReferenceRunner
from tidemill.program.graph import Graph, Tensor, gelu, gelu_tanh, silu, softcap
from tidemill.program.ops import RopeSpec
from tidemill.weights.base import WeightTensor

VOCAB = 37
TOKENS = np.random.RandomState(3).randint(0, VOCAB, 29)
CLOSE = 2e-5


def agree(fn, weights, tolerance=CLOSE, chunks=(17, 1, 1, 2, 8), **options):
    """The largest relative error of the logits of ``TOKENS`` against the reference's."""
    cpu, reference = both_runners(fn, weights, **options)
    found = run_tokens(cpu, TOKENS, chunks)
    wanted = run_tokens(reference, TOKENS, chunks)
    assert np.abs(wanted).max() > 0.01
    error = relative_error(found, wanted)
    assert error < tolerance
    cpu.close()


def head(d: int, vocab: int = VOCAB) -> dict[str, tuple[int, ...]]:
    return {"token_embd.weight": (VOCAB, d), "output.weight": (vocab, d)}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("d", [1, 5, 33, 64, 100])
def test_embed_and_logits_alone(d, isa):
    weights = random_weights(head(d))
    agree(lambda g: g.logits(g.embed("token_embd", scale=1.7), "output"), weights, isa=isa)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("act", [silu, gelu, gelu_tanh])
def test_row_wise_operations_in_one_chain(act, threads):
    d = 45
    weights = random_weights(
        {**head(d), "a.weight": (d,), "b.weight": (d,), "up.weight": (d, d), "down.weight": (d, d)}
    )

    def fn(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        h = g.rms_norm(act(x) * 0.5 + x * x, "a", 1e-5)
        x = x + g.linear(softcap(g.linear(h, "up"), 0.7), "down")
        return softcap(g.logits(g.rms_norm(x + h, "b", 1e-3), "output"), 2.0)

    agree(fn, weights, threads=threads)


@pytest.mark.parametrize("vocab", [1, 16, 17, 333])
def test_vocabularies_of_any_size(vocab):
    weights = random_weights({**head(20, vocab), "token_embd.weight": (max(VOCAB, vocab), 20)})
    cpu, reference = both_runners(lambda g: g.logits(g.embed("token_embd"), "output"), weights)
    tokens = TOKENS % vocab
    error = relative_error(run_tokens(cpu, tokens, [29]), run_tokens(reference, tokens, [29]))
    assert error < CLOSE


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("widths", [(3, 5), (48, 48), (16, 33)])
def test_merged_linears_and_their_slices(widths, biased):
    d = 24
    shapes = {**head(d)}
    for i, width in enumerate(widths):
        shapes[f"m{i}.weight"] = (width, d)
        shapes[f"back{i}.weight"] = (d, width)
        if biased:
            shapes[f"m{i}.bias"] = (width,)
    weights = random_weights(shapes)

    def fn(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        parts = [g.linear(x, f"m{i}") for i in range(len(widths))]
        for i, part in enumerate(parts):
            x = x + g.linear(silu(part), f"back{i}")
        return g.logits(x, "output")

    agree(fn, weights)


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("width", [32, 40, 96, 160])
def test_gated_products_of_one_and_two_matrices(width, quantised):
    d = 64
    shapes = {**head(d), "gate.weight": (width, d), "up.weight": (width, d)}
    weights = random_weights({**shapes, "both.weight": (2 * width, d), "down.weight": (d, width)})
    if quantised:
        weights = {
            name: q8_0_tensor(name, w.dequantize())
            if len(w.shape) == 2 and w.shape[1] % 32 == 0 and "token" not in name
            else w
            for name, w in weights.items()
        }

    def fn(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        x = x + g.linear(silu(g.linear(x, "gate")) * g.linear(x, "up"), "down")
        gate, up = g.linear(x, "both").split(width, width)
        return g.logits(x + g.linear(gelu_tanh(gate) * up, "down"), "output")

    agree(fn, weights, tolerance=0.03 if quantised else CLOSE)


def gated_runners(width: int, **options: Any) -> tuple[CpuRunner, ReferenceRunner]:
    """A gate whose result goes straight into quantised blocks, and little else."""
    d = 64
    shapes = {**head(d), "gate.weight": (width, d), "up.weight": (width, d)}
    weights = random_weights({**shapes, "down.weight": (d, width)})
    for name in ("gate.weight", "up.weight", "down.weight"):
        weights[name] = q8_0_tensor(name, weights[name].dequantize())

    def fn(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        gated = silu(g.linear(x, "gate")) * g.linear(x, "up")
        return g.logits(x + g.linear(gated, "down"), "output")

    return both_runners(fn, weights, **options)


def test_gates_of_many_rows_and_uneven_columns_whatever_the_threads():
    """More rows than one block of the gate's scratch holds, and a last item of fewer columns."""
    tokens = np.random.RandomState(4).randint(0, VOCAB, 300)
    options = {"max_batch_tokens": 300, "max_logit_rows": 300, "kv": KVCacheSpec(40, 8, "f32")}
    found = []
    for threads in (1, 2, 5):
        cpu, reference = gated_runners(416, threads=threads, **options)
        found += [run_tokens(cpu, tokens, chunks) for chunks in ([300], [299, 1])]
        cpu.close()
    wanted = run_tokens(reference, tokens, [64, 64, 64, 64, 44])
    assert relative_error(found[0], wanted) < 0.03
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_a_gate_takes_no_more_scratch_than_a_block_of_both_halves_and_a_row():
    """128 KiB of intermediate is what shares the second-level cache with weights and input."""

    def scratch(threads: int) -> int:
        cpu, _ = gated_runners(4096, threads=threads)
        taken = cpu.allocated_bytes()[2]
        cpu.close()
        return taken

    replica = 2 * (64 + 4096) // 32 * 44
    assert 64 << 10 < scratch(3) - scratch(2) <= (128 << 10) + 128 * 4 + replica + 64


def test_matrices_of_different_types_read_one_value():
    d = 96
    shapes = {**head(d), **{f"{n}.weight": (64, d) for n in "abc"}, "down.weight": (d, 64)}
    weights = random_weights(shapes)
    weights["a.weight"] = q8_0_tensor("a.weight", weights["a.weight"].dequantize())
    weights["c.weight"] = q8_0_tensor("c.weight", weights["c.weight"].dequantize())

    def fn(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        a, b, c = (g.linear(x, n) for n in "abc")
        return g.logits(x + g.linear(silu(a) * b + c, "down"), "output")

    agree(fn, weights, tolerance=0.02)


def attention_graph(n_heads, n_kv_heads, dim, spec=None, norms=False, **kwargs):
    d = 40
    shapes = {
        **head(d),
        "blk.0.q.weight": (n_heads * dim, d),
        "blk.0.k.weight": (n_kv_heads * dim, d),
        "blk.0.v.weight": (n_kv_heads * dim, d),
        "blk.0.o.weight": (d, n_heads * dim),
    }
    if norms:
        shapes |= {"blk.0.qn.weight": (dim,), "blk.0.kn.weight": (dim,)}

    def fn(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        for layer in g.layers(1):
            q = layer.linear(x, "q").heads(n_heads, dim)
            k = layer.linear(x, "k").heads(n_kv_heads, dim)
            v = layer.linear(x, "v").heads(n_kv_heads, dim)
            if norms:
                q, k = layer.rms_norm(q, "qn", 1e-5), layer.rms_norm(k, "kn", 1e-5)
            if spec is not None:
                q, k = layer.rope(q, spec), layer.rope(k, spec)
            x = x + layer.linear(layer.attention(q, k, v, **kwargs), "o")
        return g.logits(x, "output")

    return fn, random_weights(shapes)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("dim", [32, 64, 96, 256])
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(1, 1), (3, 1), (6, 2), (7, 1)])
def test_attention_of_grouped_heads(n_heads, n_kv_heads, dim, dtype, isa):
    fn, weights = attention_graph(n_heads, n_kv_heads, dim)
    # The reference stores the same numbers, but sums in another order: where a rounding to
    # storage falls the other way, the step of that type shows.
    tolerance = {"f32": CLOSE, "f16": 1e-3, "q8_0": 1e-2}[dtype]
    agree(fn, weights, tolerance, kv=KVCacheSpec(8, 16, dtype), isa=isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [2, 6, 16, 18, 80])
def test_attention_of_odd_head_dimensions(dim, isa):
    fn, weights = attention_graph(4, 2, dim)
    agree(fn, weights, isa=isa)


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_attention_over_every_block_size(block_size, dtype):
    fn, weights = attention_graph(4, 2, 32)
    tolerance = {"f32": CLOSE, "f16": 1e-3, "q8_0": 1e-2}[dtype]
    agree(fn, weights, tolerance, kv=KVCacheSpec(5, block_size, dtype))


@pytest.mark.parametrize("window", [1, 2, 7, 16, 100])
def test_sliding_windows(window):
    fn, weights = attention_graph(4, 2, 16, window=window)
    agree(fn, weights)


@pytest.mark.parametrize("cap", [0.3, 4.0])
def test_capped_and_scaled_scores(cap):
    fn, weights = attention_graph(4, 1, 16, softcap=cap, scale=0.9)
    agree(fn, weights)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("pairs", [3, 8])
def test_rotated_and_normed_heads(pairs, style, norms):
    spec = RopeSpec(tuple(0.7**i for i in range(pairs)), style, magnitude=1.2)
    fn, weights = attention_graph(4, 2, 16, spec, norms)
    agree(fn, weights)


def test_values_read_twice_are_not_taken_over():
    """A rotated or normed value that something else reads too stays a value of its own."""
    d, dim = 32, 16
    shapes = {**head(d), "blk.0.n.weight": (dim,), "blk.0.o.weight": (d, d)}
    weights = random_weights({**shapes, **{f"blk.0.{n}.weight": (d, d) for n in "qkv"}})
    spec = RopeSpec((0.5, 0.1), "half")

    def fn(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        for layer in g.layers(1):
            q, k, v = (layer.linear(x, n).heads(2, dim) for n in "qkv")
            q = layer.rope(layer.rms_norm(q, "n", 1e-5), spec)
            k = layer.rms_norm(k, "n", 1e-5)
            out = layer.attention(q, layer.rope(k, spec), v).reshape(2, dim)
            x = x + layer.linear((out + q * k).reshape(d), "o")
        return g.logits(x, "output")

    agree(fn, weights)


def test_a_long_chain_is_cut_where_it_must_be():
    d = 19
    weights = random_weights(head(d))

    def fn(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        kept = [x]
        for i in range(60):
            x = silu(x * (0.9 + i / 300) + kept[i // 2])
            kept.append(x)
        return g.logits(x * kept[3], "output")

    agree(fn, weights, tolerance=1e-4)


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize(("n_experts", "k"), [(1, 1), (4, 2), (7, 3), (5, 5)])
@pytest.mark.parametrize("normalise", [False, True])
def test_mixture_of_experts(n_experts, k, normalise, quantised):
    d, f = 64, 32
    weights = random_weights(
        {
            **head(d),
            "blk.0.route.weight": (n_experts, d),
            "blk.0.gate.weight": (n_experts, f, d),
            "blk.0.up.weight": (n_experts, f, d),
            "blk.0.down.weight": (n_experts, d, f),
        }
    )
    if quantised:
        weights = {
            n: q8_0_tensor(n, w.dequantize()) if len(w.shape) == 3 else w
            for n, w in weights.items()
        }

    def fn(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        for layer in g.layers(1):
            experts = layer.route(layer.linear(x, "route") * 3.0, k, normalise=normalise)
            gated = silu(experts.linear(x, "gate")) * experts.linear(x, "up")
            x = x + experts.combine(experts.linear(gated, "down"))
        return g.logits(x, "output")

    agree(fn, weights, tolerance=0.02 if quantised else CLOSE)


def test_embeddings_in_a_quantised_type():
    weights: dict[str, WeightTensor] = random_weights(head(64))
    weights["token_embd.weight"] = q8_0_tensor("e", weights["token_embd.weight"].dequantize())
    agree(lambda g: g.logits(g.embed("token_embd", scale=8.0), "output"), weights)
