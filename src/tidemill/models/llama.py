"""Llama 1 to 3.3, and what is built like it: Mistral, Mixtral, SmolLM2, SmolLM3.

Touvron et al. 2023; Jiang et al. 2023 (sliding window) and 2024 (mixture of experts); SmolLM3
leaves the rotation out of every fourth layer (NoPE, Yang et al. 2025).
"""

from __future__ import annotations

from typing import Any

from tidemill.models.blocks import gated_mlp, mixture
from tidemill.models.config import ModelConfig
from tidemill.models.hyper import Hyper
from tidemill.models.rope import read_rope
from tidemill.program.graph import Graph, Tensor
from tidemill.program.ops import RopeSpec
from tidemill.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """``windows`` and ``rotated`` have one entry per layer."""

    rope: RopeSpec
    windows: tuple[int | None, ...]
    rotated: tuple[bool, ...]


def llama(g: Graph, c: LlamaConfig) -> Tensor:
    x = g.embed("token_embd")
    for layer in g.layers(c.n_layers):
        h = layer.rms_norm(x, "attn_norm", c.norm_eps)
        q = layer.linear(h, "attn_q").heads(c.n_heads, c.head_dim)
        k = layer.linear(h, "attn_k").heads(c.n_kv_heads, c.head_dim)
        v = layer.linear(h, "attn_v").heads(c.n_kv_heads, c.head_dim)
        if c.rotated[layer.index]:
            q, k = layer.rope(q, c.rope), layer.rope(k, c.rope)
        x = x + layer.linear(layer.attention(q, k, v, window=c.windows[layer.index]), "attn_output")
        h = layer.rms_norm(x, "ffn_norm", c.norm_eps)
        if c.n_experts:
            x = x + mixture(layer, h, c.n_experts_used, normalise=True)
        else:
            x = x + gated_mlp(layer, h)
    return g.logits(g.rms_norm(x, "output_norm", c.norm_eps), c.output)


def llama_config(h: Hyper, base: dict[str, Any], max_context: int) -> LlamaConfig:
    n_layers = base["n_layers"]
    h.activation(("silu",), default="silu")
    window = h.optional_integer("attention.sliding_window", "sliding_window")
    return LlamaConfig(
        **base,
        rope=read_llama_rope(h, base, max_context),
        windows=(window,) * n_layers,
        rotated=(True,) * n_layers,
    )


def smollm3_config(h: Hyper, base: dict[str, Any], max_context: int) -> LlamaConfig:
    n_layers = base["n_layers"]
    h.activation(("silu",), default="silu")
    interval = h.integer(None, "no_rope_layer_interval", 4)
    flags = h.per_layer(None, "no_rope_layers", n_layers)
    rotated = (
        tuple((index + 1) % interval != 0 for index in range(n_layers))
        if flags is None
        else tuple(bool(flag) for flag in flags)
    )
    windows: tuple[int | None, ...] = (None,) * n_layers
    if h.flag(None, "use_sliding_window", False):
        window = h.optional_integer(None, "sliding_window")
        sliding = h.sliding(n_layers) or [not turned for turned in rotated]
        windows = tuple(window if slides else None for slides in sliding)
    rope = read_llama_rope(h, base, max_context, default_theta=2e6)
    return LlamaConfig(**base, rope=rope, windows=windows, rotated=rotated)


def mixtral_config(h: Hyper, base: dict[str, Any], max_context: int) -> LlamaConfig:
    config = llama_config(h, base, max_context)
    if not config.n_experts:
        raise h.fail("expert_count", "num_local_experts", "is missing")
    return config


def read_llama_rope(
    h: Hyper, base: dict[str, Any], max_context: int, default_theta: float = 10000.0
) -> RopeSpec:
    """GGUF converters permute the rows of this family's Q and K to the interleaved pairing."""
    return read_rope(
        h,
        base["head_dim"],
        style="interleaved" if h.is_gguf else "half",
        max_context=max_context,
        default_theta=default_theta,
    )
