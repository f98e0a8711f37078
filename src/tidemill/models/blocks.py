"""Feed-forward blocks that several architectures share."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.program.graph import Layer, Tensor, silu


def gated_mlp(layer: Layer, h: Tensor, act: Callable[[Tensor], Tensor] = silu) -> Tensor:
    """down(act(gate(h)) * up(h)), as in SwiGLU and GeGLU (Shazeer 2020)."""
    gated = act(layer.linear(h, "ffn_gate")) * layer.linear(h, "ffn_up")
    return layer.linear(gated, "ffn_down")


def mixture(layer: Layer, h: Tensor, k: int, *, normalise: bool) -> Tensor:
    """The weighted sum of the SwiGLU blocks of the k best experts (Mixtral, Qwen)."""
    experts = layer.route(layer.linear(h, "ffn_gate_inp"), k, normalise=normalise)
    gated = silu(experts.linear(h, "ffn_gate_exps")) * experts.linear(h, "ffn_up_exps")
    return experts.combine(experts.linear(gated, "ffn_down_exps"))
