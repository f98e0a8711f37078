"""Tiny random models of every architecture, with logits that Transformers gives for them.

A case holds a Hugging Face config; its weights come from a seed, so that nothing but a few rows
of expected logits has to be recorded (``tests/fixtures/logits/<case>.json``, made by
``tests/oracles/make_logits.py``). Import it in a test (``tests`` is on pytest's path)::

    from support.tiny_models import CASES, expected, write_folder, write_gguf

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_something(case, tmp_path):
        model = load_model(open_checkpoint(write_folder(case, tmp_path)))
        tokens, rows, logits = expected(case)   # (T,), (R,), (R, vocab): row r is of token rows[r]

``support.batches.run_tokens`` drives a runner over ``tokens`` in chunks of any sizes. For GGUF,
take ``GGUF_CASES`` and ``write_gguf(case, path, quantise="Q8_0")``; pass
``max_context=case.max_context`` to ``load_model``.

This module needs NumPy alone, so that the oracle script can use it too; the writers import
``safetensors`` and ``gguf`` when called.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FIXTURES = Path(__file__).parents[1] / "fixtures" / "logits"
VOCAB = 96
N_TOKENS = 40
ROWS = (0, 1, 7, 20, 38, 39)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TinyCase:
    """One model: ``config`` is its config.json; ``gguf_arch`` is None where GGUF cannot say what
    the config says. ``max_context`` is what the model is to be loaded for."""

    name: str
    config: dict[str, Any] = field(hash=False)
    gguf_arch: str | None
    max_context: int | None = None

    def __str__(self) -> str:
        return self.name


def _config(model_type: str, cls: str, **changes: Any) -> dict[str, Any]:
    config = {
        "architectures": [cls],
        "model_type": model_type,
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config.update(changes)
    return config


def _llama(**changes: Any) -> dict[str, Any]:
    return _config("llama", "LlamaForCausalLM", **{"rope_theta": 10000.0, **changes})


def _gemma(model_type: str, cls: str, **changes: Any) -> dict[str, Any]:
    gemma = {
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 8,
        "rms_norm_eps": 1e-6,
    }
    config = _config(model_type, cls, **{**gemma, **changes})
    del config["hidden_act"]
    return config


def _phi3(**changes: Any) -> dict[str, Any]:
    return _config("phi3", "Phi3ForCausalLM", **changes)


def _phi3_longrope() -> dict[str, Any]:
    rng = np.random.RandomState(7)
    return _phi3(
        max_position_embeddings=128,
        original_max_position_embeddings=32,
        rope_theta=10000.0,
        rope_scaling={
            "type": "longrope",
            "short_factor": [round(float(f), 3) for f in 1 + 0.3 * rng.random_sample(8)],
            "long_factor": [round(float(f), 3) for f in 1 + 6 * rng.random_sample(8)],
        },
    )


def _qwen3(**changes: Any) -> dict[str, Any]:
    return _config("qwen3", "Qwen3ForCausalLM", **{"head_dim": 32, "rope_theta": 1e6, **changes})


def _qwen3moe(**changes: Any) -> dict[str, Any]:
    moe = {
        "head_dim": 32,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }
    return _config("qwen3_moe", "Qwen3MoeForCausalLM", **{**moe, **changes})


_GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
}

CASES = (
    TinyCase("llama", _llama(), "llama"),
    # Transformers 5 writes rope_parameters, earlier versions rope_theta and rope_scaling: both.
    TinyCase(
        "llama3",
        _llama(
            tie_word_embeddings=True,
            num_key_value_heads=1,
            rope_theta=500000.0,
            rope_scaling={
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
        "llama",
    ),
    TinyCase(
        "llama_linear",
        _llama(
            rope_theta=None,
            rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
        ),
        "llama",
    ),
    TinyCase(
        "llama_yarn",
        _llama(
            rope_parameters={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 10000.0,
            },
        ),
        "llama",
    ),
    TinyCase(
        "llama_yarn_betas",
        _llama(
            rope_parameters={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 10000.0,
                "beta_fast": 8.0,
                "beta_slow": 2.0,
            },
        ),
        "llama",
    ),
    TinyCase(
        "llama_yarn_mscale",
        _llama(
            rope_parameters={
                "rope_type": "yarn",
                "factor": 16.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 10000.0,
                "mscale": 0.7,
                "mscale_all_dim": 1.9,
                "truncate": False,
            },
        ),
        None,
    ),
    TinyCase(
        "llama_yarn_attention_factor",
        _llama(
            rope_parameters={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 10000.0,
                "attention_factor": 0.6,
            },
        ),
        "llama",
    ),
    TinyCase("llama_biases", _llama(attention_bias=True, mlp_bias=True), "llama"),
    TinyCase("llama_wide_heads", _llama(head_dim=32), "llama"),
    TinyCase(
        "mistral",
        _config("mistral", "MistralForCausalLM", sliding_window=8, rope_theta=1e6, head_dim=16),
        "llama",
    ),
    TinyCase(
        "smollm3",
        _config(
            "smollm3",
            "SmolLM3ForCausalLM",
            num_hidden_layers=5,
            no_rope_layer_interval=4,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 2e6},
        ),
        "smollm3",
    ),
    TinyCase(
        "smollm3_window",
        _config(
            "smollm3",
            "SmolLM3ForCausalLM",
            num_hidden_layers=4,
            no_rope_layers=[1, 0, 1, 0],
            use_sliding_window=True,
            sliding_window=8,
            rope_theta=2e6,
        ),
        None,
    ),
    TinyCase(
        "qwen2",
        _config("qwen2", "Qwen2ForCausalLM", tie_word_embeddings=True, rope_theta=1e6),
        "qwen2",
    ),
    TinyCase(
        "qwen2_window",
        _config(
            "qwen2",
            "Qwen2ForCausalLM",
            use_sliding_window=True,
            sliding_window=8,
            max_window_layers=1,
            rope_theta=1e6,
        ),
        None,
    ),
    TinyCase("qwen3", _qwen3(), "qwen3"),
    TinyCase(
        "qwen3_yarn",
        _qwen3(
            tie_word_embeddings=True,
            rope_scaling={
                "rope_type": "yarn",
                "factor": 2.0,
                "original_max_position_embeddings": 128,
            },
        ),
        "qwen3",
    ),
    TinyCase(
        "gemma2",
        _gemma(
            "gemma2",
            "Gemma2ForCausalLM",
            attn_logit_softcapping=5.0,
            final_logit_softcapping=4.0,
            num_hidden_layers=4,
            rope_theta=10000.0,
        ),
        "gemma2",
    ),
    TinyCase(
        "gemma2_scalar",
        _gemma(
            "gemma2",
            "Gemma2ForCausalLM",
            query_pre_attn_scalar=11,
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        ),
        None,
    ),
    TinyCase(
        "gemma3",
        _gemma(
            "gemma3_text",
            "Gemma3ForCausalLM",
            num_hidden_layers=7,
            num_key_value_heads=1,
            rope_parameters=_GEMMA3_ROPE,
        ),
        "gemma3",
    ),
    TinyCase(
        "gemma3_layer_types",
        _gemma(
            "gemma3_text",
            "Gemma3ForCausalLM",
            layer_types=["full_attention", "sliding_attention", "full_attention"],
            query_pre_attn_scalar=20,
            final_logit_softcapping=4.0,
            rope_theta=20000.0,
            rope_local_base_freq=500.0,
        ),
        None,
    ),
    TinyCase("phi3", _phi3(sliding_window=8, rope_theta=10000.0), "phi3"),
    TinyCase(
        "phi3_partial",
        _phi3(tie_word_embeddings=True, partial_rotary_factor=0.5, rope_theta=10000.0),
        "phi3",
    ),
    TinyCase("phi3_short", _phi3_longrope(), "phi3", max_context=32),
    TinyCase("phi3_long", _phi3_longrope(), "phi3", max_context=128),
    TinyCase(
        "mixtral",
        _config(
            "mixtral",
            "MixtralForCausalLM",
            num_local_experts=4,
            num_experts_per_tok=2,
            rope_theta=1e6,
            sliding_window=None,
            head_dim=16,
        ),
        "llama",
    ),
    TinyCase("qwen3moe", _qwen3moe(), "qwen3moe"),
    TinyCase("qwen3moe_raw", _qwen3moe(norm_topk_prob=False, num_experts_per_tok=3), "qwen3moe"),
    TinyCase("qwen3moe_mixed", _qwen3moe(mlp_only_layers=[1]), None),
)
CASE = {case.name: case for case in CASES}
GGUF_CASES = tuple(case for case in CASES if case.gguf_arch is not None)


def tokens_of(case: TinyCase) -> npt.NDArray[np.int32]:
    """The prompt (T,): 40 tokens, 32 where the model is loaded for no more."""
    n = min(N_TOKENS, case.max_context or N_TOKENS)
    return np.random.RandomState(5).randint(3, VOCAB, n).astype(np.int32)


def rows_of(case: TinyCase) -> list[int]:
    """The token positions whose logits are recorded."""
    n = len(tokens_of(case))
    return sorted({min(row, n - 1) for row in ROWS})


def expected(case: TinyCase) -> tuple[npt.NDArray[np.int32], list[int], Floats]:
    """Tokens (T,), positions (R,) and the recorded logits (R, vocab)."""
    record = json.loads((FIXTURES / f"{case.name}.json").read_text())
    logits = np.asarray(record["logits"], np.float32)
    return np.asarray(record["tokens"], np.int32), record["rows"], logits


def expected_pooled(case: TinyCase) -> dict[str, Floats]:
    """The recorded last hidden states of all tokens, pooled: (d_model,) by "mean" and "last"."""
    record = json.loads((FIXTURES / f"{case.name}.json").read_text())
    return {way: np.asarray(vector, np.float32) for way, vector in record["pooled"].items()}


def relative_error(found: Floats, wanted: Floats) -> float:
    """max |found - wanted| / max |wanted|"""
    return float(np.abs(found.astype(np.float64) - wanted).max() / np.abs(wanted).max())


def weights_of(case: TinyCase) -> dict[str, Floats]:
    """The model's tensors by their Hugging Face names, from the case's seed."""
    # RandomState's streams are frozen (NEP 19), so that the records stay valid.
    rng = np.random.RandomState(zlib.crc32(case.name.encode()))
    weights = {}
    for name, shape in _shapes(case.config):
        values = rng.standard_normal(shape)
        if name.endswith("bias"):
            values = 0.3 * values
        elif "norm" in name:
            values = 0.2 * values + (0.0 if "gemma" in case.config["model_type"] else 1.0)
        elif "embed_tokens" in name:
            values = 0.5 * values
        else:
            # Sharp attention and routing make every position and expert count.
            sharp = "q_proj" in name or "k_proj" in name or "mlp.gate.weight" in name
            values = (1.7 if sharp else 1.0) * values / np.sqrt(shape[-1])
        weights[name] = values.astype(np.float32)
    return weights


def _shapes(c: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    d, f, heads, kv = (
        c["hidden_size"],
        c["intermediate_size"],
        c["num_attention_heads"],
        c["num_key_value_heads"],
    )
    head_dim = c.get("head_dim") or d // heads
    kind = c["model_type"]
    shapes: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (VOCAB, d))]

    def linear(name: str, d_out: int, d_in: int, bias: bool = False) -> None:
        shapes.append((f"{name}.weight", (d_out, d_in)))
        if bias:
            shapes.append((f"{name}.bias", (d_out,)))

    for index in range(c["num_hidden_layers"]):
        p = f"model.layers.{index}."
        norms = ["input_layernorm", "post_attention_layernorm"]
        if kind.startswith("gemma"):
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        shapes += [(f"{p}{norm}.weight", (d,)) for norm in norms]
        bias = kind == "qwen2" or bool(c.get("attention_bias"))
        if kind == "phi3":
            linear(p + "self_attn.qkv_proj", (heads + 2 * kv) * head_dim, d)
        else:
            linear(p + "self_attn.q_proj", heads * head_dim, d, bias)
            linear(p + "self_attn.k_proj", kv * head_dim, d, bias)
            linear(p + "self_attn.v_proj", kv * head_dim, d, bias)
        linear(p + "self_attn.o_proj", d, heads * head_dim, bool(c.get("attention_bias")))
        if kind in ("qwen3", "qwen3_moe", "gemma3_text"):
            shapes += [(f"{p}self_attn.{n}_norm.weight", (head_dim,)) for n in "qk"]
        if kind == "mixtral":
            linear(p + "block_sparse_moe.gate", c["num_local_experts"], d)
            for expert in range(c["num_local_experts"]):
                q = f"{p}block_sparse_moe.experts.{expert}."
                linear(q + "w1", f, d)
                linear(q + "w3", f, d)
                linear(q + "w2", d, f)
        elif kind == "qwen3_moe" and index not in c["mlp_only_layers"]:
            linear(p + "mlp.gate", c["num_experts"], d)
            for expert in range(c["num_experts"]):
                q = f"{p}mlp.experts.{expert}."
                linear(q + "gate_proj", c["moe_intermediate_size"], d)
                linear(q + "up_proj", c["moe_intermediate_size"], d)
                linear(q + "down_proj", d, c["moe_intermediate_size"])
        else:
            bias = bool(c.get("mlp_bias"))
            if kind == "phi3":
                linear(p + "mlp.gate_up_proj", 2 * f, d)
            else:
                linear(p + "mlp.gate_proj", f, d, bias)
                linear(p + "mlp.up_proj", f, d, bias)
            linear(p + "mlp.down_proj", d, f, bias)
    shapes.append(("model.norm.weight", (d,)))
    if not c["tie_word_embeddings"]:
        linear("lm_head", VOCAB, d)
    return shapes


def write_folder(case: TinyCase, folder: Path) -> Path:
    """Write config.json and model.safetensors (F32) into ``folder``; returns it."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in case.config.items() if value is not None}
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if key in case.config:  # here null differs from absent
            config[key] = case.config[key]
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights_of(case), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_gguf(case: TinyCase, path: Path, *, quantise: str | None = None) -> Path:
    """Write the case as a GGUF file; see ``support.tiny_gguf``."""
    from support import tiny_gguf

    return tiny_gguf.write(case, path, quantise=quantise)
