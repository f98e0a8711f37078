from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from support.programs import logits, random_weights, record
from support.tiny_models import CASES, TinyCase, write_folder
from tidemill.models import load_model
from tidemill.program.analysis import reads, weight_names, writes
from tidemill.program.graph import Graph, Tensor, gelu_tanh, silu
from tidemill.program.ops import (
    AddRmsNorm,
    ExpertLinear,
    Gated,
    Linear,
    Program,
    Reshape,
    RopeSpec,
    Slice,
)
from tidemill.program.passes import (
    PASSES,
    drop_dead,
    fold_reshapes,
    fuse_add_norms,
    fuse_expert_gates,
    fuse_gates,
    merge_linears,
    optimise,
)
from tidemill.weights import open_checkpoint

D, F, V = 8, 6, 12
SHAPES = {
    "token_embd.weight": (V, D),
    "output.weight": (V, D),
    "output_norm.weight": (D,),
    "blk.0.attn_norm.weight": (D,),
    "blk.0.attn_q.weight": (D, D),
    "blk.0.attn_k.weight": (4, D),
    "blk.0.attn_v.weight": (4, D),
    "blk.0.attn_v.bias": (4,),
    "blk.0.attn_output.weight": (D, D),
    "blk.0.ffn_norm.weight": (D,),
    "blk.0.ffn_gate.weight": (F, D),
    "blk.0.ffn_up.weight": (F, D),
    "blk.0.ffn_down.weight": (D, F),
    "blk.0.ffn_gate_inp.weight": (3, D),
    "blk.0.ffn_gate_exps.weight": (3, F, D),
    "blk.0.ffn_up_exps.weight": (3, F, D),
    "blk.0.ffn_down_exps.weight": (3, D, F),
}
WEIGHTS = random_weights(SHAPES)


def dense(g: Graph) -> Tensor:
    x = g.embed("token_embd")
    layer = next(iter(g.layers(1)))
    h = layer.rms_norm(x, "attn_norm", 1e-5)
    q = layer.linear(h, "attn_q").heads(4, 2)
    k = layer.linear(h, "attn_k").heads(2, 2)
    v = layer.linear(h, "attn_v").heads(2, 2)
    q, k = (layer.rope(t, RopeSpec((0.7,), "half")) for t in (q, k))
    x = x + layer.linear(layer.attention(q, k, v), "attn_output")
    h = layer.rms_norm(x, "ffn_norm", 1e-5)
    gated = silu(layer.linear(h, "ffn_gate")) * layer.linear(h, "ffn_up")
    x = x + layer.linear(gated, "ffn_down")
    return g.logits(g.rms_norm(x, "output_norm", 1e-5), "output")


def sparse(g: Graph) -> Tensor:
    x = g.embed("token_embd")
    layer = next(iter(g.layers(1)))
    h = layer.rms_norm(x, "ffn_norm", 1e-5)
    experts = layer.route(layer.linear(h, "ffn_gate_inp"), 2, normalise=False)
    gated = silu(experts.linear(h, "ffn_gate_exps")) * experts.linear(h, "ffn_up_exps")
    x = x + experts.combine(experts.linear(gated, "ffn_down_exps"))
    return g.logits(g.rms_norm(x, "output_norm", 1e-5), "output")


def kinds(program: Program) -> Counter[str]:
    return Counter(type(op).__name__ for op in program.ops)


def assert_well_formed(program: Program) -> None:
    """Values are read after they are written, and written once."""
    written: set[int] = set()
    for op in program.ops:
        assert set(reads(op)) <= written, op
        assert not written & set(writes(op)), op
        written.update(writes(op))
    assert {program.logits, program.hidden} <= written
    assert [value.id for value in program.values] == list(range(len(program.values)))


@pytest.mark.parametrize("model", [dense, sparse])
@pytest.mark.parametrize("apply", [*PASSES, optimise], ids=lambda f: f.__name__)
def test_each_pass_keeps_the_result(model, apply):
    program = record(model, WEIGHTS)
    rewritten = apply(program)
    assert_well_formed(rewritten)
    assert weight_names(rewritten) == weight_names(program)
    np.testing.assert_allclose(
        logits(rewritten, WEIGHTS), logits(program, WEIGHTS), rtol=1e-5, atol=1e-6
    )


def test_qkv_and_gate_up_become_one_product_each():
    merged = merge_linears(record(dense, WEIGHTS))
    linears = [op for op in merged.ops if isinstance(op, Linear)]
    assert [op.weights for op in linears if len(op.weights) > 1] == [
        ("blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"),
        ("blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"),
    ]
    assert linears[0].biases == (None, None, "blk.0.attn_v.bias")
    assert linears[2].biases == ()
    assert merged.values[linears[0].out].shape == (16,)
    slices = [(op.start, op.stop) for op in merged.ops if isinstance(op, Slice)]
    assert slices == [(0, 8), (8, 12), (12, 16), (0, 6), (6, 12)]


def test_the_optimised_dense_layer():
    program = optimise(record(dense, WEIGHTS))
    assert kinds(program) == Counter(
        Embed=1, RmsNorm=1, Linear=5, Slice=3, Rope=2, Attention=1, AddRmsNorm=2, Gated=1,
        SelectRows=1,
    )  # fmt: skip
    shapes = [program.values[op.out].shape for op in program.ops if isinstance(op, Slice)]
    assert shapes == [(4, 2), (2, 2), (2, 2)]


def test_the_optimised_mixture():
    program = optimise(record(sparse, WEIGHTS))
    experts = [op for op in program.ops if isinstance(op, ExpertLinear)]
    assert [op.weights for op in experts] == [
        ("blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"),
        ("blk.0.ffn_down_exps.weight",),
    ]
    assert program.values[experts[0].out].shape == (2, 2 * F)
    assert kinds(program)["Gated"] == 1
    assert kinds(program)["Mul"] == kinds(program)["Activation"] == 0


def test_a_gate_whose_parts_are_used_elsewhere_stays():
    def model(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        layer = next(iter(g.layers(1)))
        act = silu(layer.linear(x, "ffn_gate"))
        down = layer.linear(act * layer.linear(x, "ffn_up") + act, "ffn_down")
        return g.logits(down, "output")

    program = record(model, WEIGHTS)
    rewritten = optimise(program)
    assert kinds(rewritten)["Gated"] == 0
    np.testing.assert_allclose(logits(rewritten, WEIGHTS), logits(program, WEIGHTS), rtol=1e-5)


def test_halves_in_the_other_order_stay():
    def model(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        layer = next(iter(g.layers(1)))
        up = layer.linear(x, "ffn_up")
        return g.logits(
            layer.linear(gelu_tanh(layer.linear(x, "ffn_gate")) * up, "ffn_down"), "output"
        )

    program = record(model, WEIGHTS)
    rewritten = fuse_gates(fold_reshapes(merge_linears(program)))
    assert not any(isinstance(op, Gated) for op in rewritten.ops)
    np.testing.assert_allclose(logits(rewritten, WEIGHTS), logits(program, WEIGHTS), rtol=1e-5)


def test_experts_of_different_inputs_stay():
    def model(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        layer = next(iter(g.layers(1)))
        experts = layer.route(layer.linear(x, "ffn_gate_inp"), 2, normalise=True)
        gate = silu(experts.linear(x, "ffn_gate_exps"))
        down = experts.linear(gate * experts.linear(x + x, "ffn_up_exps"), "ffn_down_exps")
        return g.logits(experts.combine(down), "output")

    program = record(model, WEIGHTS)
    assert kinds(fuse_expert_gates(program)) == kinds(program)


def test_a_sum_that_is_normed_twice_is_fused_once():
    def model(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        layer = next(iter(g.layers(1)))
        total = x + x
        first = layer.rms_norm(total, "attn_norm", 1e-5)
        return g.logits(first + layer.rms_norm(total, "ffn_norm", 1e-5) + total, "output")

    program = record(model, WEIGHTS)
    rewritten = fuse_add_norms(program)
    assert_well_formed(rewritten)
    assert sum(isinstance(op, AddRmsNorm) for op in rewritten.ops) == 1
    assert kinds(rewritten)["RmsNorm"] == 1
    np.testing.assert_allclose(logits(rewritten, WEIGHTS), logits(program, WEIGHTS), rtol=1e-5)


def test_reshapes_of_reshapes_fold_to_one():
    def model(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        return g.logits(x.reshape(2, 4).reshape(4, 2).reshape(8), "output")

    program = record(model, WEIGHTS)
    rewritten = optimise(program)
    assert sum(isinstance(op, Reshape) for op in rewritten.ops) == 1
    np.testing.assert_allclose(logits(rewritten, WEIGHTS), logits(program, WEIGHTS), rtol=1e-5)


def test_dead_operations_go_but_attention_fills_the_cache():
    def model(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        layer = next(iter(g.layers(1)))
        silu(layer.linear(x, "ffn_up"))
        heads = layer.linear(x, "attn_q").heads(4, 2)
        layer.attention(heads, heads, heads)
        return g.logits(x, "output")

    program = drop_dead(record(model, WEIGHTS))
    assert_well_formed(program)
    assert kinds(program) == Counter(Embed=1, Linear=2, Reshape=1, Attention=1, SelectRows=1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_architecture_is_optimised_all_over(case: TinyCase, tmp_path):
    model = load_model(open_checkpoint(write_folder(case, tmp_path)))
    program = optimise(model.program)
    assert_well_formed(program)
    count = kinds(program)
    n_layers = model.config.n_layers
    assert count["Gated"] == n_layers
    assert count["Mul"] == count["Activation"] == count["Add"] == count["Reshape"] == 0
    assert count["AddRmsNorm"] == 2 * n_layers
    n_sparse = count["Route"]
    assert count["Linear"] == 1 + 4 * n_layers - n_sparse  # QKV, output, gate and up, down
    assert count["ExpertLinear"] == 2 * n_sparse
    assert program.kv == model.program.kv
