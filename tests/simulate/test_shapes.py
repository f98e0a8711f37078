"""Shapes without weights: the same program and the same counts as of the model itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.program.ops import Attention
from tidemill.simulate.shapes import (
    Shape,
    ShapeError,
    imagined,
    load_shape,
    shape_from_config,
    shape_names,
)
from tidemill.weights.base import CheckpointError

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "vocab_size": 100, "tie_word_embeddings": False,
}  # fmt: skip

# Weights in billions, as the models' own pages state them.
SIZES = {
    "smollm2-135m": 0.1345, "llama-3.1-8b": 8.03, "llama-3.1-70b": 70.55, "qwen2.5-7b": 7.62,
    "qwen2.5-32b": 32.76, "mistral-7b": 7.25, "mixtral-8x7b": 46.7,
}  # fmt: skip


def test_the_shapes_that_are_shipped_have_the_sizes_that_are_known() -> None:
    assert set(SIZES) == set(shape_names())
    for name, billions in SIZES.items():
        assert load_shape(name).n_weights / 1e9 == pytest.approx(billions, rel=0.003), name


def test_each_shape_names_its_source() -> None:
    for name in shape_names():
        assert load_shape(name).source.startswith("https://"), name


def test_a_shape_counts_what_the_real_model_counts(real_model: Callable[[str], Path]) -> None:
    """SmolLM2's GGUF and its config.json, which know nothing of each other here."""
    real, imagined_ = load_shape(str(real_model("smollm2"))), load_shape("smollm2-135m")
    assert real.n_weights == imagined_.n_weights
    for n in (1, 7, 512):
        for of in (Shape.token_counts, Shape.row_counts):
            assert [(op.times, op.flops, op.moved, op.weights) for op in of(real, n)] == [
                (op.times, op.flops, op.moved, op.weights) for op in of(imagined_, n)
            ]
    for context in (1, 1000):
        assert real.attention(context, 2.0) == imagined_.attention(context, 2.0)
    assert real.kv_bytes(2.0) == imagined_.kv_bytes(2.0) == 30 * 2 * 3 * 64 * 2


def test_counts_by_hand() -> None:
    shape = shape_from_config("small", CONFIG, "made up")
    qkv, out, gate_up, down = 64 * (64 + 32 + 32), 64 * 64, 2 * 64 * 160, 160 * 64
    products = [op for op in shape.token_counts(5) if op.sharded]
    rows = [op for op in shape.row_counts(1) if op.sharded]
    layer = qkv + out + gate_up + down
    assert sum(op.times * op.flops for op in products) == 2 * 5 * 3 * layer
    assert sum(op.times * op.flops for op in rows) == 2 * 64 * 100
    assert sum(op.times * op.weight_bytes for op in [*products, *rows]) == 2 * (
        3 * layer + 64 * 100
    )
    assert [op.flops for op in rows if op.head] == [2 * 64 * 100]
    reads, flops = shape.attention(10, 2.0)
    assert reads == 3 * 2 * 2 * 16 * 2 * (10 + 1)  # the token's own is written too
    assert flops == 3 * 10 * 4 * (4 * 16 + 5)


def test_tensors_that_are_imagined_take_no_memory() -> None:
    checkpoint = imagined("large", {**CONFIG, "hidden_size": 2**16, "vocab_size": 2**20})
    embedding = checkpoint.tensors["model.embed_tokens.weight"]
    assert embedding.nbytes == 2 * 2**16 * 2**20
    assert embedding.data.strides == (0,)


@pytest.mark.parametrize(
    ("kind", "architecture", "more"),
    [
        ("qwen2", "Qwen2ForCausalLM", {}),
        ("qwen3", "Qwen3ForCausalLM", {"head_dim": 32}),
        ("mistral", "MistralForCausalLM", {"sliding_window": 100}),
        ("mixtral", "MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ],
)
def test_other_architectures_are_recorded_too(kind: str, architecture: str, more: dict) -> None:
    config = {**CONFIG, "model_type": kind, "architectures": [architecture], **more}
    shape = shape_from_config(kind, config, "made up")
    assert sum(isinstance(op, Attention) for op in shape.program.ops) == 3
    if kind == "mistral":  # no more than the window is read
        assert shape.attention(400, 2.0) == shape.attention(500, 2.0)
    if kind == "mixtral":  # few tokens need few experts
        weights = [sum(op.times * op.weights for op in shape.token_counts(n)) for n in (1, 64)]
        assert weights[0] < weights[1]


def test_a_config_json_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "tiny-llama" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(CONFIG))
    shape = load_shape(str(file))
    assert shape.name == "tiny-llama"
    assert shape.config.n_layers == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "not a config.json"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        (json.dumps({**CONFIG, "hidden_size": "wide"}), "hidden_size"),
        (json.dumps({**CONFIG, "num_hidden_layers": 10**9}), "num_hidden_layers"),
        (json.dumps({k: v for k, v in CONFIG.items() if k != "vocab_size"}), "vocab_size"),
        (json.dumps({**CONFIG, "model_type": "gemma2"}), "'gemma2' do not follow"),
        (json.dumps({**CONFIG, "architectures": ["Other"]}), "not supported"),
    ],
)
def test_configs_that_cannot_be_are_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises((ShapeError, CheckpointError), match=message):
        load_shape(str(file))


def test_a_model_that_is_not_there_names_the_shapes_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path))
    with pytest.raises(ShapeError, match=r"llama-3\.1-8b.*config\.json"):
        load_shape("llama-9")
