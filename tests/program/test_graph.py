from __future__ import annotations

import pytest

from tidemill.program.graph import Graph, GraphError, gelu, gelu_tanh, silu, softcap
from tidemill.program.ops import (
    Activation,
    Attention,
    Linear,
    Reshape,
    RmsNorm,
    Rope,
    RopeSpec,
    Scale,
    SelectRows,
    Slice,
    Softcap,
)
from tidemill.weights.base import CheckpointError

SHAPES = {
    "token_embd.weight": (10, 8),
    "output.weight": (10, 8),
    "output_norm.weight": (8,),
    "blk.0.attn_norm.weight": (8,),
    "blk.0.attn_q.weight": (8, 8),
    "blk.0.attn_q.bias": (8,),
    "blk.0.attn_k.weight": (4, 8),
    "blk.0.attn_k.bias": (5,),
    "blk.0.odd.weight": (4, 7),
    "blk.0.router.weight": (3, 8),
    "blk.0.up_exps.weight": (3, 6, 8),
    "blk.0.down_exps.weight": (3, 8, 6),
}


@pytest.fixture
def graph() -> Graph:
    return Graph(SHAPES)


def layer_of(graph: Graph):
    return next(iter(graph.layers(1)))


def test_a_recorded_model_has_its_operations_in_order(graph: Graph):
    x = graph.embed("token_embd", scale=2.0)
    layer = layer_of(graph)
    h = layer.rms_norm(x, "attn_norm", 1e-5)
    q = layer.linear(h, "attn_q").heads(4, 2)
    q = layer.rope(q, RopeSpec((1.0,), "half"))
    x = x + layer.attention(q, q, q, window=3)
    out = graph.logits(graph.rms_norm(x, "output_norm", 1e-5), "output")
    program = graph.program(softcap(out, 30.0))

    assert [type(op).__name__ for op in program.ops] == (
        [
            "Embed",
            "RmsNorm",
            "Linear",
            "Reshape",
            "Rope",
            "Attention",
            "Add",
            "RmsNorm",
            "SelectRows",
            "Linear",
            "Softcap",
        ]
    )
    linear = program.ops[2]
    assert isinstance(linear, Linear)
    assert linear.weights == ("blk.0.attn_q.weight",)
    assert linear.biases == ("blk.0.attn_q.bias",)  # because the checkpoint has it
    attention = program.ops[5]
    assert isinstance(attention, Attention)
    assert (attention.layer, attention.window, attention.scale) == (0, 3, 2**-0.5)
    assert [(kv.n_kv_heads, kv.head_dim) for kv in program.kv] == [(4, 2)]
    assert program.values[program.logits].shape == (10,)
    assert program.values[program.logits].rows == "logits"
    assert program.values[program.hidden].rows == "tokens"
    assert isinstance(program.ops[8], SelectRows)
    assert program.ops[8].x == program.hidden
    assert [value.id for value in program.values] == list(range(len(program.values)))


def test_operators_and_functions(graph: Graph):
    x = graph.embed("token_embd")
    for make, kind in ((silu, "silu"), (gelu, "gelu"), (gelu_tanh, "gelu_tanh")):
        make(x)
        assert isinstance(graph._ops[-1], Activation)
        assert graph._ops[-1].kind == kind
    assert softcap(x, None) is x
    softcap(x, 5.0)
    assert isinstance(graph._ops[-1], Softcap)
    2.0 * x * 0.5
    assert [op.factor for op in graph._ops if isinstance(op, Scale)] == [2.0, 0.5]
    a, b = x.split(2, 6)
    assert (a.shape, b.shape) == ((2,), (6,))
    assert [(op.start, op.stop) for op in graph._ops if isinstance(op, Slice)] == [(0, 2), (2, 8)]
    assert x.reshape(8) is x
    assert x.heads(2, 4).shape == (2, 4)
    assert isinstance(graph._ops[-1], Reshape)


def test_a_norm_of_heads_takes_a_weight_of_the_head(graph: Graph):
    x = graph.embed("token_embd")
    heads = x.heads(1, 8)
    assert layer_of(graph).rms_norm(heads, "attn_norm", 1e-5).shape == (1, 8)
    assert isinstance(graph._ops[-1], RmsNorm)


def test_a_partial_rotation_is_recorded(graph: Graph):
    heads = graph.embed("token_embd").heads(2, 4)
    layer_of(graph).rope(heads, RopeSpec((1.0,), "half"))
    assert isinstance(graph._ops[-1], Rope)


def test_experts(graph: Graph):
    x = graph.embed("token_embd")
    layer = layer_of(graph)
    experts = layer.route(layer.linear(x, "router"), 2, normalise=True)
    assert experts.ids.value.dtype == "i32"
    up = experts.linear(x, "up_exps")
    assert up.shape == (2, 6)
    down = experts.linear(up, "down_exps")
    assert down.shape == (2, 8)
    assert experts.combine(down).shape == (8,)
    with pytest.raises(GraphError, match=r"take rows of \(8,\) or \(2, 8\), not \(2, 6\)"):
        experts.linear(up, "up_exps")
    with pytest.raises(GraphError, match="cannot combine 2 experts"):
        experts.combine(x)
    with pytest.raises(CheckpointError, match="expected 3 dimensions"):
        experts.linear(x, "attn_q")


@pytest.mark.parametrize(
    ("misuse", "error", "message"),
    [
        (lambda g, x, la: la.linear(x, "gone"), CheckpointError, "'blk.0.gone.weight' is missing"),
        (lambda g, x, la: la.linear(x, "odd"), CheckpointError, "takes rows of 7"),
        (lambda g, x, la: la.linear(x, "attn_norm"), CheckpointError, "expected 2 dimensions"),
        (lambda g, x, la: la.linear(x, "attn_k"), CheckpointError, r"expected \(4,\)"),
        (
            lambda g, x, la: la.rms_norm(x.heads(2, 4), "attn_norm", 1e-5),
            CheckpointError,
            r"expected \(4,\)",
        ),
        (lambda g, x, la: x + la.linear(x, "router"), GraphError, "cannot add"),
        (lambda g, x, la: x * la.linear(x, "router"), GraphError, "cannot multiply"),
        (lambda g, x, la: x + g.logits(x, "output"), GraphError, "cannot add"),
        (lambda g, x, la: x.heads(3, 3), GraphError, "3 heads of 3"),
        (lambda g, x, la: x.reshape(2, 5), GraphError, "cannot view"),
        (lambda g, x, la: x.split(4, 5), GraphError, "cannot split"),
        (lambda g, x, la: x.split(8, 0), GraphError, "cannot split"),
        (lambda g, x, la: la.rope(x, RopeSpec((1.0,), "half")), GraphError, "cannot rotate"),
        (
            lambda g, x, la: la.rope(x.heads(4, 2), RopeSpec((1.0, 0.5), "half")),
            GraphError,
            "cannot rotate 4 elements",
        ),
        (lambda g, x, la: la.attention(x, x, x), GraphError, "attention of q"),
        (
            lambda g, x, la: la.attention(x.heads(2, 4), x.heads(4, 2), x.heads(4, 2)),
            GraphError,
            "do not divide",
        ),
        (
            lambda g, x, la: la.attention(x.heads(1, 8), x.heads(1, 8), x.heads(1, 8), window=0),
            GraphError,
            "window 0",
        ),
        (lambda g, x, la: la.route(x, 9, normalise=True), GraphError, "cannot choose 9"),
        (lambda g, x, la: g.logits(g.logits(x, "output"), "output"), GraphError, "all tokens"),
        (lambda g, x, la: g.program(x), GraphError, "must return"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(graph: Graph, misuse, error, message: str):
    x = graph.embed("token_embd")
    with pytest.raises(error, match=message):
        misuse(graph, x, layer_of(graph))
