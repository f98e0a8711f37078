"""Writes a tiny model as GGUF the way converters do: names, metadata, transforms.

Names come from the ``gguf`` package's own table, not from Tidemill's.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from support.tiny_models import Floats, TinyCase, weights_of

_EXPERT = re.compile(
    r"(model\.layers\.\d+\.(?:mlp|block_sparse_moe)\.experts)\.(\d+)\.(\w+)\.weight"
)
# Families whose converters reorder Q and K rows from halves to interleaved pairs.
_PERMUTED = ("llama", "smollm3")


def write(case: TinyCase, path: Path, *, quantise: str | None = None) -> Path:
    """Write ``case`` to ``path``. ``quantise`` names a storage type (such as "Q8_0", "Q4_0" or
    "F16") for the matrices; the rest stays F32."""
    assert case.gguf_arch is not None, f"{case} cannot be said in GGUF"
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(str(path), case.gguf_arch)
    _add_metadata(writer, case)
    for name, values in _tensors(case).items():
        if quantise is not None and values.ndim > 1 and not name.endswith("ffn_gate_inp.weight"):
            kind = gguf.GGMLQuantizationType[quantise]
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(case: TinyCase) -> dict[str, Floats]:
    c, arch = case.config, case.gguf_arch
    names = gguf.get_tensor_name_map(
        next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch), c["num_hidden_layers"]
    )
    tensors: dict[str, Floats] = {}
    experts: dict[str, dict[int, Floats]] = defaultdict(dict)
    for name, values in weights_of(case).items():
        if match := _EXPERT.fullmatch(name):
            experts[f"{match[1]}.{match[3]}.weight"][int(match[2])] = values
            continue
        if arch in _PERMUTED and re.search(r"\.(q|k)_proj\.", name):
            key = "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
            values = _interleave(values, c[key])
        if arch in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            values = values + np.float32(1.0)
        tensors[_named(names, name)] = values
    for name, by_index in experts.items():
        tensors[_named(names, name)] = np.stack([by_index[i] for i in range(len(by_index))])
    scaling = c.get("rope_scaling") or c.get("rope_parameters") or {}
    if scaling.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = _llama3_divisors(c, scaling)
    for kind in ("long", "short"):
        if f"{kind}_factor" in scaling:
            divisors = np.asarray(scaling[f"{kind}_factor"], np.float32)
            tensors[f"rope_factors_{kind}.weight"] = divisors
    return tensors


def _named(names: gguf.TensorNameMap, name: str) -> str:
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def _interleave(values: Floats, n_heads: int) -> Floats:
    """Row i of a head's first half and row i of its second half become rows 2i and 2i + 1."""
    halves = values.reshape(n_heads, 2, values.shape[0] // n_heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _llama3_divisors(c: dict[str, Any], scaling: dict[str, Any]) -> Floats:
    """What a frequency is divided by, pair after pair, by the rule published with Llama 3.1."""
    dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    divisors = []
    for pair in range(dim // 2):
        wavelength = 2 * math.pi * c["rope_theta"] ** (2 * pair / dim)
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.asarray(divisors, np.float32)


def _add_metadata(writer: gguf.GGUFWriter, case: TinyCase) -> None:
    c, arch = case.config, case.gguf_arch
    d, heads = c["hidden_size"], c["num_attention_heads"]
    head_dim = c.get("head_dim") or d // heads
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(d)
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    if "head_dim" in c:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if c.get("sliding_window"):
        writer.add_sliding_window(c["sliding_window"])

    rope = c.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope.get("rope_theta") or c["rope_theta"])
    partial = c.get("partial_rotary_factor", 1.0)
    writer.add_rope_dimension_count(int(head_dim * partial))
    scaling = c.get("rope_scaling") or rope
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(scaling["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        if "beta_fast" in scaling:
            writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])
        if "attention_factor" in scaling:  # readers multiply it into YaRN's own
            usual = 0.1 * math.log(scaling["factor"]) + 1.0
            writer.add_rope_scaling_attn_factors(scaling["attention_factor"] / usual)
    if kind == "longrope":
        original = c["original_max_position_embeddings"]
        factor = c["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(factor) / math.log(original)))

    if (experts := c.get("num_experts") or c.get("num_local_experts")) is not None:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(c["num_experts_per_tok"])
    if "moe_intermediate_size" in c:
        writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if c.get("norm_topk_prob") is False:
        writer.add_expert_weights_norm(False)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(c["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(c["final_logit_softcapping"])
