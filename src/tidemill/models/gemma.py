"""Gemma 2 and Gemma 3 (text): GeGLU, norms before and after each block, windowed layers.

Gemma 2 (Riviere et al. 2024) caps attention scores and logits; Gemma 3 (Kamath et al. 2025) norms
Q and K instead and rotates its windowed layers by another base.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tidemill.models.blocks import gated_mlp
from tidemill.models.config import ModelConfig
from tidemill.models.hyper import MAX_LAYERS, Hyper
from tidemill.models.rope import frequencies, hf_rope_parameters, read_rope
from tidemill.program.graph import Graph, Tensor, gelu_tanh, softcap
from tidemill.program.ops import RopeSpec
from tidemill.records import dataclass

# The configs of multimodal Gemma 3 checkpoints leave out what has its usual value.
GEMMA3_DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaConfig(ModelConfig):
    """``windows`` has one entry per layer; a layer with a window is rotated by ``local_rope``."""

    windows: tuple[int | None, ...]
    global_rope: RopeSpec
    local_rope: RopeSpec
    attention_scale: float
    norm_heads: bool
    attention_softcap: float | None
    logit_softcap: float | None


def gemma(g: Graph, c: GemmaConfig) -> Tensor:
    x = g.embed("token_embd", scale=c.d_model**0.5)
    for layer in g.layers(c.n_layers):
        window = c.windows[layer.index]
        rope = c.global_rope if window is None else c.local_rope
        h = layer.rms_norm(x, "attn_norm", c.norm_eps)
        q = layer.linear(h, "attn_q").heads(c.n_heads, c.head_dim)
        k = layer.linear(h, "attn_k").heads(c.n_kv_heads, c.head_dim)
        v = layer.linear(h, "attn_v").heads(c.n_kv_heads, c.head_dim)
        if c.norm_heads:
            q = layer.rms_norm(q, "attn_q_norm", c.norm_eps)
            k = layer.rms_norm(k, "attn_k_norm", c.norm_eps)
        q, k = layer.rope(q, rope), layer.rope(k, rope)
        h = layer.attention(
            q, k, v, scale=c.attention_scale, window=window, softcap=c.attention_softcap
        )
        x = x + layer.rms_norm(layer.linear(h, "attn_output"), "post_attention_norm", c.norm_eps)
        h = gated_mlp(layer, layer.rms_norm(x, "ffn_norm", c.norm_eps), gelu_tanh)
        x = x + layer.rms_norm(h, "post_ffw_norm", c.norm_eps)
    return softcap(g.logits(g.rms_norm(x, "output_norm", c.norm_eps), c.output), c.logit_softcap)


def gemma2_config(h: Hyper, base: dict[str, Any], max_context: int) -> GemmaConfig:
    h.activation(("gelu_pytorch_tanh",), default="gelu_pytorch_tanh")
    rope = read_rope(h, base["head_dim"], style="half", max_context=max_context)
    return GemmaConfig(
        **base,
        windows=_windows(h, base, pattern=2, default=4096),
        global_rope=rope,
        local_rope=rope,
        attention_scale=_attention_scale(h, base, layers_of_27b=46),
        norm_heads=False,
        attention_softcap=_cap(h, "attn_logit_softcapping", 50.0),
        logit_softcap=_cap(h, "final_logit_softcapping", 30.0),
    )


def gemma3_config(h: Hyper, base: dict[str, Any], max_context: int) -> GemmaConfig:
    h.activation(("gelu_pytorch_tanh",), default="gelu_pytorch_tanh")
    if h.flag(None, "use_bidirectional_attention", False):
        raise h.fail(None, "use_bidirectional_attention", "is true; only causal models are run")
    head_dim = base["head_dim"]
    # Scaling applies to the global layers alone.
    global_rope = read_rope(
        h,
        head_dim,
        style="half",
        max_context=max_context,
        default_theta=1e6,
        layer_type="full_attention",
    )
    local_theta = h.number("rope.freq_base_swa", "rope_local_base_freq", 10000.0, low=1.0)
    parameters = hf_rope_parameters(h, "sliding_attention") if not h.is_gguf else {}
    if "sliding_attention" in (h.raw(None, "rope_parameters") or {}):
        local_theta = h.check_number(
            parameters.get("rope_theta", local_theta), None, "rope_parameters.rope_theta", low=1.0
        )
        if parameters.get("rope_type", "default") != "default":
            raise h.fail(None, "rope_parameters.sliding_attention", "must not be scaled")
    return GemmaConfig(
        **base,
        windows=_windows(h, base, pattern=6, default=None),
        global_rope=global_rope,
        local_rope=RopeSpec(tuple(frequencies(head_dim, local_theta).tolist()), "half"),
        attention_scale=_attention_scale(h, base, layers_of_27b=62),
        norm_heads=True,
        attention_softcap=_cap(h, "attn_logit_softcapping", None),
        logit_softcap=_cap(h, "final_logit_softcapping", None),
    )


def _windows(
    h: Hyper, base: dict[str, Any], *, pattern: int, default: int | None
) -> tuple[int | None, ...]:
    """Every ``pattern``-th layer is global unless the checkpoint says otherwise."""
    n_layers = base["n_layers"]
    window = h.optional_integer("attention.sliding_window", "sliding_window") or default
    key = "attention.sliding_window_pattern"
    sliding = h.sliding(n_layers)
    if sliding is None and isinstance(h.raw(key, None), (list, np.ndarray)):
        sliding = [bool(flag) for flag in h.per_layer(key, None, n_layers) or ()]
    if sliding is None:
        pattern = h.integer(key, "sliding_window_pattern", pattern, high=MAX_LAYERS)
        sliding = [(index + 1) % pattern != 0 for index in range(n_layers)]
    return tuple(window if slides else None for slides in sliding)


def _attention_scale(h: Hyper, base: dict[str, Any], *, layers_of_27b: int) -> float:
    """1 / sqrt(query_pre_attn_scalar). GGUF does not carry it: it is the head dimension, except
    for the 27B models, which are known by their number of layers."""
    if h.is_gguf:
        is_27b = base["n_layers"] == layers_of_27b
        scalar = base["d_model"] / base["n_heads"] if is_27b else base["head_dim"]
        return 1.0 / math.sqrt(scalar)
    return 1.0 / math.sqrt(h.number(None, "query_pre_attn_scalar", 256.0))


def _cap(h: Hyper, key: str, default: float | None) -> float | None:
    if key in h.metadata or h.is_gguf:  # null in a config means none, an absent key the default
        return h.optional_number(key, key)
    return default
