"""Every architecture on the CPU backend, against Transformers' logits and the reference's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.batches import run_tokens
from support.cpu_backend import ISAS
from support.tiny_models import (
    CASE,
    CASES,
    GGUF_CASES,
    TinyCase,
    expected,
    relative_error,
    write_folder,
    write_gguf,
)
from tidemill.backends import cpu, reference
from tidemill.backends.base import KVCacheSpec, KVDtype
from tidemill.backends.cpu.build import build
from tidemill.backends.cpu.runner import CpuRunner
from tidemill.models import Model, load_model
from tidemill.program.passes import PASSES
from tidemill.weights import open_checkpoint

CHUNKINGS = {"whole": [40], "pieces": [1, 7, 16, 3, 13], "decoded": [1] * 40}


def chunks_of(name: str, n: int) -> list[int]:
    """The chunking cut to n tokens."""
    sizes, left = [], n
    for size in CHUNKINGS[name]:
        if left > 0:
            sizes.append(min(size, left))
            left -= sizes[-1]
    return sizes


def folder_model(case: TinyCase, tmp_path: Path) -> Model:
    checkpoint = open_checkpoint(write_folder(case, tmp_path))
    return load_model(checkpoint, max_context=case.max_context)


def compiled(model: Model, dtype: KVDtype = "f32", threads: int = 2) -> CpuRunner:
    kv = KVCacheSpec(16, 8, dtype)
    return cpu.compile(model, kv=kv, max_batch_tokens=64, max_logit_rows=64, threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_are_those_of_transformers(case: TinyCase, threads: int, tmp_path: Path) -> None:
    runner = compiled(folder_model(case, tmp_path), threads=threads)
    tokens, rows, logits = expected(case)
    for chunking in CHUNKINGS:
        found = run_tokens(runner, tokens, chunks_of(chunking, len(tokens)))
        assert relative_error(found[rows], logits) < 1e-5, chunking


@pytest.mark.parametrize("case", CASES, ids=str)
def test_passes_save_instructions_and_change_no_result(case: TinyCase, tmp_path: Path) -> None:
    model = folder_model(case, tmp_path)
    tokens, _, _ = expected(case)
    kv = KVCacheSpec(16, 8, "f32")
    results, instructions = [], []
    for passes in (PASSES, ()):
        runner = cpu.compile(
            model, kv=kv, max_batch_tokens=64, max_logit_rows=64, threads=1, passes=passes
        )
        runner.profile(True)
        results.append(run_tokens(runner, tokens, chunks_of("pieces", len(tokens))))
        instructions.append(len(runner.timings()))
        runner.close()
    assert relative_error(*results) < 1e-5
    assert instructions[0] < instructions[1]


@pytest.mark.parametrize("case", GGUF_CASES, ids=str)
def test_gguf_logits_are_those_of_transformers(case: TinyCase, tmp_path: Path) -> None:
    path = write_gguf(case, tmp_path / "model.gguf")
    model = load_model(open_checkpoint(path), max_context=case.max_context)
    tokens, rows, logits = expected(case)
    found = run_tokens(compiled(model), tokens, chunks_of("pieces", len(tokens)))
    assert relative_error(found[rows], logits) < 1e-5


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "phi3_partial", "qwen3moe"])
def test_every_kernel_table_gives_the_same_logits(name: str, isa: str, tmp_path: Path) -> None:
    model = folder_model(CASE[name], tmp_path)
    kv = KVCacheSpec(16, 8, "f32")
    built = build(
        model.program, model.weights.sources, kv=kv, max_batch_tokens=64, max_logit_rows=64,
        threads=2, isa=isa,
    )  # fmt: skip
    runner = CpuRunner(built, kv, 64, 64, vocab_size=model.config.vocab_size)
    runner.load(built, model.weights)
    tokens, rows, logits = expected(CASE[name])
    found = run_tokens(runner, tokens, chunks_of("pieces", len(tokens)))
    assert relative_error(found[rows], logits) < 1e-5


# Rounding keys and values moves these logits by as much as storage of that type allows.
@pytest.mark.parametrize(("dtype", "bound"), [("f16", 2e-3), ("q8_0", 6e-2)])
@pytest.mark.parametrize("name", ["llama_wide_heads", "qwen3", "gemma2", "gemma3", "smollm3"])
def test_kv_in_fewer_bits_stays_close(
    name: str, dtype: KVDtype, bound: float, tmp_path: Path
) -> None:
    tokens, rows, logits = expected(CASE[name])
    runner = compiled(folder_model(CASE[name], tmp_path), dtype)
    found = run_tokens(runner, tokens, chunks_of("pieces", len(tokens)))
    error = relative_error(found[rows], logits)
    assert 1e-7 < error < bound


@pytest.mark.parametrize("quantise", ["Q8_0", "Q4_0", "F16", "BF16"])
@pytest.mark.parametrize("name", ["llama", "llama_biases", "gemma3", "mixtral"])
def test_quantised_files_agree_with_the_reference(name: str, quantise: str, tmp_path: Path) -> None:
    """Both hold the same weights; the activations of quantised products are rounded to 8 bits."""
    path = write_gguf(CASE[name], tmp_path / "model.gguf", quantise=quantise)
    model = load_model(open_checkpoint(path))
    tokens, _, _ = expected(CASE[name])
    chunks = chunks_of("pieces", len(tokens))
    found = run_tokens(compiled(model), tokens, chunks)
    oracle = reference.compile(
        model, kv=KVCacheSpec(16, 8, "f32"), max_batch_tokens=64, max_logit_rows=64
    )
    wanted = run_tokens(oracle, tokens, chunks)
    exact = quantise in ("F16", "BF16")
    # The mean is what counts: single logits of a 64-wide model can move far, or an expert flip.
    mean = np.abs(found - wanted).mean() / np.abs(wanted).mean()
    assert mean < (1e-5 if exact else 0.06)


def test_a_vocabulary_that_is_asked_for_no_logits(tmp_path: Path) -> None:
    """A prefill chunk that is not the last wants none."""
    from support.batches import Chunk, make_batch

    runner = compiled(folder_model(CASE["llama"], tmp_path))
    tokens, rows, logits = expected(CASE["llama"])
    assert runner.forward(make_batch([Chunk(tokens[:30], 0, range(5))], [])).shape == (0, 96)
    found = runner.forward(make_batch([Chunk(tokens[30:], 30, range(5))], [8, 9]))
    assert relative_error(found, logits[[rows.index(38), rows.index(39)]]) < 1e-5
