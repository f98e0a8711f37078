"""Qwen 2/2.5 (biases on Q, K and V), Qwen 3 (normed Q and K heads) and its mixture of experts.

Yang et al. 2024 and 2025.
"""

from __future__ import annotations

import reprlib
from typing import Any

from tidemill.models.blocks import gated_mlp, mixture
from tidemill.models.config import ModelConfig
from tidemill.models.hyper import MAX_LAYERS, Hyper
from tidemill.models.rope import read_rope
from tidemill.program.graph import Graph, Tensor
from tidemill.program.ops import RopeSpec
from tidemill.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenConfig(ModelConfig):
    """``windows`` and ``sparse`` (which layers are mixtures) have one entry per layer."""

    rope: RopeSpec
    windows: tuple[int | None, ...]
    qkv_biases: bool
    norm_heads: bool
    sparse: tuple[bool, ...]
    norm_topk: bool = True


def qwen(g: Graph, c: QwenConfig) -> Tensor:
    x = g.embed("token_embd")
    for layer in g.layers(c.n_layers):
        h = layer.rms_norm(x, "attn_norm", c.norm_eps)
        q = layer.linear(h, "attn_q", needs_bias=c.qkv_biases).heads(c.n_heads, c.head_dim)
        k = layer.linear(h, "attn_k", needs_bias=c.qkv_biases).heads(c.n_kv_heads, c.head_dim)
        v = layer.linear(h, "attn_v", needs_bias=c.qkv_biases).heads(c.n_kv_heads, c.head_dim)
        if c.norm_heads:
            q = layer.rms_norm(q, "attn_q_norm", c.norm_eps)
            k = layer.rms_norm(k, "attn_k_norm", c.norm_eps)
        q, k = layer.rope(q, c.rope), layer.rope(k, c.rope)
        x = x + layer.linear(layer.attention(q, k, v, window=c.windows[layer.index]), "attn_output")
        h = layer.rms_norm(x, "ffn_norm", c.norm_eps)
        if c.sparse[layer.index]:
            x = x + mixture(layer, h, c.n_experts_used, normalise=c.norm_topk)
        else:
            x = x + gated_mlp(layer, h)
    return g.logits(g.rms_norm(x, "output_norm", c.norm_eps), c.output)


def qwen2_config(h: Hyper, base: dict[str, Any], max_context: int) -> QwenConfig:
    return _dense(h, base, max_context, norm_heads=False)


def qwen3_config(h: Hyper, base: dict[str, Any], max_context: int) -> QwenConfig:
    return _dense(h, base, max_context, norm_heads=True)


def qwen3moe_config(h: Hyper, base: dict[str, Any], max_context: int) -> QwenConfig:
    n_layers = base["n_layers"]
    h.activation(("silu",), default="silu")
    if not base["n_experts"]:
        raise h.fail("expert_count", "num_experts", "is missing")
    step = h.integer(None, "decoder_sparse_step", 1, high=MAX_LAYERS)
    dense = h.raw(None, "mlp_only_layers") or []
    if not isinstance(dense, list):
        raise h.fail(
            None, "mlp_only_layers", f"must be a list of layers, not {reprlib.repr(dense)}"
        )
    window = None
    if h.flag(None, "use_sliding_window", False):
        window = h.optional_integer(None, "sliding_window")
    return QwenConfig(
        **base,
        rope=_rope(h, base, max_context),
        windows=(window,) * n_layers,
        qkv_biases=False,
        norm_heads=True,
        sparse=tuple(i not in dense and (i + 1) % step == 0 for i in range(n_layers)),
        # GGUF files of this family leave the key out and mean true.
        norm_topk=h.flag("expert_weights_norm", "norm_topk_prob", h.is_gguf),
    )


def _dense(h: Hyper, base: dict[str, Any], max_context: int, *, norm_heads: bool) -> QwenConfig:
    n_layers = base["n_layers"]
    h.activation(("silu",), default="silu")
    windows: tuple[int | None, ...] = (None,) * n_layers
    if h.flag(None, "use_sliding_window", False):
        window = h.optional_integer(None, "sliding_window")
        first = h.integer(None, "max_window_layers", 28, low=0, high=MAX_LAYERS)
        sliding = h.sliding(n_layers) or [index >= first for index in range(n_layers)]
        windows = tuple(window if slides else None for slides in sliding)
    return QwenConfig(
        **base,
        rope=_rope(h, base, max_context),
        windows=windows,
        qkv_biases=not norm_heads,
        norm_heads=norm_heads,
        sparse=(False,) * n_layers,
    )


def _rope(h: Hyper, base: dict[str, Any], max_context: int) -> RopeSpec:
    return read_rope(h, base["head_dim"], style="half", max_context=max_context)
