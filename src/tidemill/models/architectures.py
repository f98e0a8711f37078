"""The table of architectures: the one place where they are known by name."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from tidemill.models.config import ModelConfig
from tidemill.models.gemma import GEMMA3_DEFAULTS, gemma, gemma2_config, gemma3_config
from tidemill.models.hyper import Hyper
from tidemill.models.llama import llama, llama_config, mixtral_config, smollm3_config
from tidemill.models.names import HFNames
from tidemill.models.phi import PHI_NAMES, phi3, phi3_config
from tidemill.models.qwen import qwen, qwen2_config, qwen3_config, qwen3moe_config
from tidemill.program.graph import Graph, Tensor
from tidemill.records import dataclass
from tidemill.weights.base import Checkpoint, CheckpointError

_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_GEMMA_LAYER = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    **_HEAD_NORMS,
}
_GEMMA_NAMES = HFNames(
    layer=_GEMMA_LAYER,
    plus_one=frozenset(
        (
            "attn_norm",
            "ffn_norm",
            "post_attention_norm",
            "post_ffw_norm",
            "attn_q_norm",
            "attn_k_norm",
            "output_norm",
        )
    ),
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row: how files call it, how to read its hyper-parameters, and how to record it.

    ``gguf`` is the ``general.architecture`` of GGUF files, ``hf`` the class name under
    ``architectures`` in Hugging Face configs, ``model_type`` what stands there if that is missing,
    ``hf_defaults`` what those configs leave out.
    """

    gguf: str | None
    hf: tuple[str, ...]
    model_type: tuple[str, ...]
    config: Callable[[Hyper, dict[str, Any], int], ModelConfig]
    record: Callable[[Graph, Any], Tensor]
    names: HFNames = field(default_factory=HFNames)
    hf_defaults: Mapping[str, Any] = field(default_factory=dict)


ARCHITECTURES = (
    Architecture(
        "llama",
        ("LlamaForCausalLM", "MistralForCausalLM"),
        ("llama", "mistral"),
        llama_config,
        llama,
    ),
    Architecture(
        None,  # GGUF files say llama, with experts
        ("MixtralForCausalLM",),
        ("mixtral",),
        mixtral_config,
        llama,
        HFNames(
            layer={"block_sparse_moe.gate": "ffn_gate_inp", "mlp.gate": "ffn_gate_inp"},
        ),
    ),
    Architecture("smollm3", ("SmolLM3ForCausalLM",), ("smollm3",), smollm3_config, llama),
    Architecture("qwen2", ("Qwen2ForCausalLM",), ("qwen2",), qwen2_config, qwen),
    Architecture(
        "qwen3", ("Qwen3ForCausalLM",), ("qwen3",), qwen3_config, qwen, HFNames(layer=_HEAD_NORMS)
    ),
    Architecture(
        "qwen3moe",
        ("Qwen3MoeForCausalLM",),
        ("qwen3_moe",),
        qwen3moe_config,
        qwen,
        HFNames(layer={**_HEAD_NORMS, "mlp.gate": "ffn_gate_inp"}),
    ),
    Architecture("gemma2", ("Gemma2ForCausalLM",), ("gemma2",), gemma2_config, gemma, _GEMMA_NAMES),
    Architecture(
        "gemma3",
        ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        ("gemma3_text", "gemma3"),
        gemma3_config,
        gemma,
        _GEMMA_NAMES,
        GEMMA3_DEFAULTS,
    ),
    Architecture("phi3", ("Phi3ForCausalLM",), ("phi3",), phi3_config, phi3, PHI_NAMES),
)


def find_architecture(checkpoint: Checkpoint) -> Architecture:
    """The row for a checkpoint; a ``CheckpointError`` that lists what is supported otherwise."""
    where = checkpoint.files[0]
    if checkpoint.format == "gguf":
        name = checkpoint.metadata.get("general.architecture")
        for row in ARCHITECTURES:
            if isinstance(name, str) and name == row.gguf:  # a file may hold an array here
                return row
        known = ", ".join(row.gguf for row in ARCHITECTURES if row.gguf)
        raise CheckpointError(
            f"{where}: architecture {reprlib.repr(name)} (general.architecture) is not supported; "
            f"supported: {known}"
        )
    classes = checkpoint.metadata.get("architectures")
    model_type = checkpoint.metadata.get("model_type")
    for row in ARCHITECTURES:
        if isinstance(classes, list) and classes:
            if any(name in row.hf for name in classes if isinstance(name, str)):
                return row
        elif model_type in row.model_type:
            return row
    known = ", ".join(name for row in ARCHITECTURES for name in row.hf)
    raise CheckpointError(
        f"{where}: architecture {reprlib.repr(classes or model_type)} is not supported; "
        f"supported: {known}"
    )
