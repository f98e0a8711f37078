"""Phi-3, Phi-3.5 and Phi-4: fused QKV and gate/up matrices, LongRoPE (Abdin et al. 2024)."""

from __future__ import annotations

from typing import Any

from tidemill.models.config import ModelConfig
from tidemill.models.hyper import Hyper
from tidemill.models.names import HFNames
from tidemill.models.rope import read_rope
from tidemill.program.graph import Graph, Tensor, silu
from tidemill.program.ops import RopeSpec
from tidemill.records import dataclass

PHI_NAMES = HFNames(layer={"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PhiConfig(ModelConfig):
    rope: RopeSpec
    window: int | None


def phi3(g: Graph, c: PhiConfig) -> Tensor:
    d_q, d_kv = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    x = g.embed("token_embd")
    for layer in g.layers(c.n_layers):
        h = layer.rms_norm(x, "attn_norm", c.norm_eps)
        q, k, v = layer.linear(h, "attn_qkv").split(d_q, d_kv, d_kv)
        q = layer.rope(q.heads(c.n_heads, c.head_dim), c.rope)
        k = layer.rope(k.heads(c.n_kv_heads, c.head_dim), c.rope)
        v = v.heads(c.n_kv_heads, c.head_dim)
        x = x + layer.linear(layer.attention(q, k, v, window=c.window), "attn_output")
        h = layer.rms_norm(x, "ffn_norm", c.norm_eps)
        gate, up = layer.linear(h, "ffn_up").split(c.d_ff, c.d_ff)
        x = x + layer.linear(silu(gate) * up, "ffn_down")
    return g.logits(g.rms_norm(x, "output_norm", c.norm_eps), c.output)


def phi3_config(h: Hyper, base: dict[str, Any], max_context: int) -> PhiConfig:
    h.activation(("silu",), default="silu")
    return PhiConfig(
        **base,
        rope=read_rope(h, base["head_dim"], style="half", max_context=max_context),
        window=h.optional_integer("attention.sliding_window", "sliding_window"),
    )
