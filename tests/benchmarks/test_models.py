"""Models written for the comparison: Hugging Face folders, and random weights in a given shape."""

from __future__ import annotations

import numpy as np
import pytest

from models import llama_1b_random
from models.hf_folder import write_folder
from support.batches import run_tokens
from support.programs import reference_runner
from support.tiny_models import CASES, relative_error, tokens_of, write_gguf
from tidemill.models import load_model
from tidemill.text import load_tokenizer
from tidemill.weights import open_checkpoint
from tidemill.weights.base import TensorType
from tidemill.weights.quants import dequantize

BY_NAME = {case.name: case for case in CASES}


def logits(path, case):
    model = load_model(open_checkpoint(path), max_context=case.max_context)
    tokens = tokens_of(case)
    return run_tokens(reference_runner(model.program, model.weights), tokens, [len(tokens)])


@pytest.mark.parametrize("name", ["llama", "llama_wide_heads", "gemma3"])
def test_a_folder_computes_what_its_gguf_file_does(name, tmp_path):
    case = BY_NAME[name]
    gguf = write_gguf(case, tmp_path / "model.gguf")
    write_folder(gguf, tmp_path / "folder")
    # Gemma's norms lose a rounding of float32: one is taken from the weights and added again.
    assert relative_error(logits(tmp_path / "folder", case), logits(gguf, case)) < 1e-5


def test_a_folder_of_another_architecture_is_refused(tmp_path):
    gguf = write_gguf(BY_NAME["qwen3"], tmp_path / "model.gguf")
    with pytest.raises(ValueError, match="qwen3"):
        write_folder(gguf, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("type_", ["Q4_0", "Q8_0", "Q4_K", "Q6_K", "BF16"])
def test_random_blocks_have_the_spread_of_trained_weights(type_):
    n, sigma = 256 * 512, 0.02
    data = llama_1b_random._MAKERS[type_](np.random.default_rng(0), n, sigma)
    values = dequantize(data.reshape(-1), TensorType[type_], (n,))
    assert values.std() == pytest.approx(sigma, rel=0.06)
    assert abs(values.mean()) < 0.02 * sigma


@pytest.fixture
def small(monkeypatch, tmp_path):
    """The random model, two layers deep and narrow."""
    monkeypatch.setenv("TIDEMILL_PEERS", str(tmp_path))
    sizes = {"LAYERS": 2, "WIDTH": 256, "HEADS": 4, "KV_HEADS": 2, "FFN": 512}
    for name, size in sizes.items():
        monkeypatch.setattr(llama_1b_random, name, size)
    return llama_1b_random.write


def test_a_random_model_loads_and_its_tokenizer_gives_text_back(small):
    path = small("Q4_K_M")
    checkpoint = open_checkpoint(path)
    model = load_model(checkpoint)
    assert model.config.vocab_size == 128_256
    assert {t.type for t in checkpoint.tensors.values()} == {
        TensorType.F32, TensorType.Q4_K, TensorType.Q6_K
    }  # fmt: skip
    tokenizer = load_tokenizer(checkpoint.format, checkpoint.metadata, checkpoint.folder)
    for text in ("The tide turns, 潮 🌊\n", " a b"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert len(ids) < len(text.encode())  # pairs of bytes are merged


def test_a_random_model_is_written_once_and_always_alike(small):
    path = small("Q4_0")
    first, when = path.read_bytes(), path.stat().st_mtime_ns
    assert small("Q4_0").stat().st_mtime_ns == when
    path.unlink()
    assert small("Q4_0").read_bytes() == first


def test_types_of_the_mixes_are_those_of_the_quantiser_of_llama_cpp():
    def types(part):
        return "".join(
            llama_1b_random.type_of(f"blk.{i}.{part}.weight", "Q4_K_M")[1] for i in range(16)
        )

    assert types("ffn_down") == types("attn_v") == "6644644644644666"
    assert types("ffn_up") == "4" * 16
    assert llama_1b_random.type_of("token_embd.weight", "Q4_0") == "Q6_K"
