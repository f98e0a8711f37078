"""A GGUF file's weights as a Hugging Face folder, for engines that read nothing else.

The weights are dequantised, so the folder computes the same function as the file. The tokenizer in
it only maps ids to tokens (engines are handed ids), which is all that loading and conversion need.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.weights import open_checkpoint
from tidemill.weights.base import Checkpoint, TensorType

Floats = npt.NDArray[np.float32]

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS = {
    "llama": {"ffn_norm": "post_attention_layernorm"},
    "gemma3": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
}
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_DERIVED = {"rope_freqs.weight"}


def write_folder(gguf: Path, folder: Path) -> None:
    """Write the folder, atomically; nothing is done if it is there.

    Raises ValueError for an architecture other than llama and gemma3.
    """
    if folder.exists():
        return
    checkpoint = open_checkpoint(gguf)
    architecture = checkpoint.metadata.get("general.architecture")
    if architecture not in _NORMS:
        raise ValueError(f"no Hugging Face folder is written of the architecture {architecture}")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    config = _CONFIGS[architecture](checkpoint)
    _write_weights(checkpoint, architecture, config, partial / "model.safetensors")
    (partial / "config.json").write_text(json.dumps(config, indent=1))
    _write_tokenizer(checkpoint.metadata, partial)
    partial.rename(folder)


def _write_weights(
    checkpoint: Checkpoint, architecture: str, config: Mapping[str, Any], path: Path
) -> None:
    """A safetensors file: the length of a JSON header (u64), the header, then tensor after tensor.

    Format: https://huggingface.co/docs/safetensors. One tensor at a time is in memory.
    """
    kind, size = ("BF16", 2) if config["torch_dtype"] == "bfloat16" else ("F32", 4)
    written = {n: t for n, t in checkpoint.tensors.items() if n not in _DERIVED}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in written.items():
        begin, end = end, end + tensor.n_weights * size
        header[_hf_name(name, architecture)] = {
            "dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end],
        }  # fmt: skip
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in written.items():
            values = tensor.dequantize()
            part = name.removesuffix(".weight").rpartition(".")[2]
            if architecture == "llama" and part in ("attn_q", "attn_k"):
                heads = "num_attention_heads" if part == "attn_q" else "num_key_value_heads"
                values = _unpermute(values, config[heads])
            if architecture == "gemma3" and part.endswith("norm"):
                values = values - 1
            values = np.ascontiguousarray(values)
            (_to_bfloat16(values) if kind == "BF16" else values).tofile(file)


def _hf_name(name: str, architecture: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.weight"
    _, layer, part = stem.split(".")
    parts = {**_LAYER, **_NORMS[architecture]}
    if part not in parts:
        raise ValueError(f"the tensor {name} has no place in a Hugging Face {architecture} model")
    return f"model.layers.{layer}.{parts[part]}.weight"


def _unpermute(rows: Floats, heads: int) -> Floats:
    """Undo the order of rows that GGUF converters give to Llama's Q and K (pairs side by side)."""
    n_rows, width = rows.shape
    half = n_rows // heads // 2
    return rows.reshape(heads, half, 2, width).swapaxes(1, 2).reshape(n_rows, width)


def _to_bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    """Rounded to nearest, ties to even (there are no NaNs in weights)."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _base(checkpoint: Checkpoint, prefix: str) -> dict[str, Any]:
    get = checkpoint.metadata.get
    floats = any(t.type is TensorType.BF16 for t in checkpoint.tensors.values())
    return {
        "hidden_size": get(f"{prefix}.embedding_length"),
        "intermediate_size": get(f"{prefix}.feed_forward_length"),
        "num_hidden_layers": get(f"{prefix}.block_count"),
        "num_attention_heads": get(f"{prefix}.attention.head_count"),
        "num_key_value_heads": get(f"{prefix}.attention.head_count_kv"),
        "max_position_embeddings": get(f"{prefix}.context_length"),
        "rms_norm_eps": get(f"{prefix}.attention.layer_norm_rms_epsilon"),
        "vocab_size": checkpoint.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in checkpoint.tensors,
        "bos_token_id": get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": get("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "bfloat16" if floats else "float32",
    }


def _llama(checkpoint: Checkpoint) -> dict[str, Any]:
    config = _base(checkpoint, "llama")
    heads = config["num_attention_heads"]
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "head_dim": checkpoint.metadata.get(
            "llama.attention.key_length", config["hidden_size"] // heads
        ),
        "rope_theta": checkpoint.metadata.get("llama.rope.freq_base", 10000.0),
    }
    factors = checkpoint.tensors.get("rope_freqs.weight")
    if factors is not None:  # Llama 3.1's scaling: the largest divisor is its factor
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": float(factors.dequantize().max()),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    return config


def _gemma3(checkpoint: Checkpoint) -> dict[str, Any]:
    config = _base(checkpoint, "gemma3")
    get = checkpoint.metadata.get
    layers = config["num_hidden_layers"]
    head_dim = get("gemma3.attention.key_length")
    if get("gemma3.rope.scaling.type") == "linear":  # of the layers that attend to everything
        factor = get("gemma3.rope.scaling.factor")
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    return config | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": head_dim,
        "query_pre_attn_scalar": head_dim,
        "rope_theta": get("gemma3.rope.freq_base"),
        "rope_local_base_freq": 10000.0,
        "sliding_window": get("gemma3.attention.sliding_window"),
        "layer_types": [
            "full_attention" if i % 6 == 5 else "sliding_attention" for i in range(layers)
        ],
        "attention_bias": False,
    }


_CONFIGS: dict[str, Callable[[Checkpoint], dict[str, Any]]] = {"llama": _llama, "gemma3": _gemma3}


def _write_tokenizer(metadata: Mapping[str, Any], folder: Path) -> None:
    from tokenizers import Tokenizer, models

    tokens = [str(token) for token in metadata.get("tokenizer.ggml.tokens", ())]
    if not tokens:
        return
    vocabulary: dict[str, int] = {}
    for i, token in enumerate(tokens):
        vocabulary[token if token not in vocabulary else f"{token}<{i}>"] = i
    Tokenizer(models.WordLevel(vocabulary, unk_token=tokens[0])).save(
        str(folder / "tokenizer.json")
    )
    special = {
        f"{kind}_token": tokens[int(metadata[f"tokenizer.ggml.{kind}_token_id"])]
        for kind in ("bos", "eos")
        if f"tokenizer.ggml.{kind}_token_id" in metadata
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": tokens[0], **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
