"""What every architecture has in common: its plain hyper-parameters."""

from __future__ import annotations

from typing import Any

from tidemill.models import hyper
from tidemill.models.hyper import Hyper
from tidemill.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Plain hyper-parameters; each architecture adds its own.

    ``d_ff`` is the width of a dense feed-forward block; the matrices of a mixture say how wide its
    experts are. ``n_experts`` is 0 for dense models. ``context_length`` is what the model was
    trained for, in tokens.
    """

    architecture: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    vocab_size: int
    context_length: int
    norm_eps: float
    tied_embeddings: bool
    n_experts: int = 0
    n_experts_used: int = 0

    @property
    def output(self) -> str:
        """The name of the matrix that gives logits."""
        return "token_embd" if self.tied_embeddings else "output"


def context_length(h: Hyper) -> int:
    """Tokens of a sequence that the model was trained for."""
    return h.integer("context_length", "max_position_embeddings", high=hyper.MAX_CONTEXT)


def common(h: Hyper, *, vocab_size: int, tied_embeddings: bool) -> dict[str, Any]:
    """The fields of ``ModelConfig``, for ``Config(**common(...), ...)``."""
    n_heads = h.integer("attention.head_count", "num_attention_heads", high=hyper.MAX_HEADS)
    n_kv_heads = h.integer(
        "attention.head_count_kv", "num_key_value_heads", n_heads, high=hyper.MAX_HEADS
    )
    if n_heads % n_kv_heads:
        raise h.fail(
            "attention.head_count_kv",
            "num_key_value_heads",
            f"is {n_kv_heads}, which does not divide the {n_heads} attention heads",
        )
    d_model = h.integer("embedding_length", "hidden_size")
    head_dim = h.optional_integer("attention.key_length", "head_dim", high=hyper.MAX_WIDTH)
    if head_dim is None:
        if d_model % n_heads:
            raise h.fail(
                "embedding_length",
                "hidden_size",
                f"is {d_model}, not a multiple of {n_heads} heads",
            )
        head_dim = d_model // n_heads
    if head_dim % 2:
        raise h.fail("attention.key_length", "head_dim", f"is {head_dim}; it must be even")
    if h.integer("attention.value_length", None, head_dim) != head_dim:
        raise h.fail(
            "attention.value_length", None, f"must equal the key length {head_dim} (not supported)"
        )
    n_experts = h.integer("expert_count", None, 0, low=0, high=hyper.MAX_EXPERTS)
    if not h.is_gguf:
        n_experts = h.integer(
            None,
            "num_local_experts",
            h.integer(None, "num_experts", 0, low=0, high=hyper.MAX_EXPERTS),
            low=0,
            high=hyper.MAX_EXPERTS,
        )
    n_experts_used = 0
    if n_experts:
        n_experts_used = h.integer("expert_used_count", "num_experts_per_tok", high=n_experts)
    return {
        "architecture": h.prefix[:-1] if h.is_gguf else h.text(None, "model_type", "unknown"),
        "n_layers": h.integer("block_count", "num_hidden_layers", high=hyper.MAX_LAYERS),
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim": head_dim,
        "d_ff": h.integer("feed_forward_length", "intermediate_size"),
        "vocab_size": vocab_size,
        "context_length": context_length(h),
        "norm_eps": h.number("attention.layer_norm_rms_epsilon", "rms_norm_eps", high=1.0),
        "tied_embeddings": tied_embeddings,
        "n_experts": n_experts,
        "n_experts_used": n_experts_used,
    }
