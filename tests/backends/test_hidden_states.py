"""Final hidden states: those of Transformers, on both backends, in any company and any chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.batches import Chunk, make_batch, run_hidden, run_tokens
from support.cpu_backend import both_runners
from support.tiny_models import (
    CASE,
    CASES,
    TinyCase,
    expected,
    expected_pooled,
    relative_error,
    write_folder,
    write_gguf,
)
from tidemill.backends import cpu, reference
from tidemill.backends.base import KVCacheSpec
from tidemill.models import Model, load_model
from tidemill.program.graph import Graph, Tensor
from tidemill.weights import open_checkpoint
from tidemill.weights.base import TensorType, WeightTensor

LIMITS: dict[str, Any] = {"kv": KVCacheSpec(16, 8, "f32"), "max_batch_tokens": 64}
CHUNKINGS = ([40], [1, 7, 16, 3, 13], [1] * 40)


def folder_model(case: TinyCase, tmp_path: Path) -> Model:
    checkpoint = open_checkpoint(write_folder(case, tmp_path))
    return load_model(checkpoint, max_context=case.max_context)


def pooled(states: np.ndarray) -> dict[str, np.ndarray]:
    return {"mean": states.mean(axis=0, dtype=np.float64), "last": states[-1]}


@pytest.mark.parametrize("backend", ["reference", "optimised", "cpu"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_pooled_states_are_those_of_transformers(
    case: TinyCase, backend: str, tmp_path: Path
) -> None:
    model = folder_model(case, tmp_path)
    if backend == "cpu":
        runner: Any = cpu.compile(model, max_logit_rows=4, threads=2, **LIMITS)
    else:
        runner = reference.compile(
            model, max_logit_rows=4, optimised=backend == "optimised", **LIMITS
        )
    tokens, _, _ = expected(case)
    wanted = expected_pooled(case)
    for sizes in CHUNKINGS:
        if sum(sizes) != len(tokens):
            sizes = [len(tokens)] if len(sizes) == 1 else [1, 7, len(tokens) - 8]
        for way, vector in pooled(run_hidden(runner, tokens, sizes)).items():
            assert relative_error(vector, wanted[way]) < 1e-5, (sizes, way)


@pytest.mark.parametrize("quantise", ["Q8_0", "Q4_0", "F16"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "mixtral", "qwen3moe"])
def test_states_are_the_same_whatever_else_is_in_the_step(
    name: str, quantise: str, tmp_path: Path
) -> None:
    """To the last bit: in chunks of any size, from 1 token with replicated quantisation to all, and
    beside rows of logits, which are the same as well."""
    model = load_model(
        open_checkpoint(write_gguf(CASE[name], tmp_path / "m.gguf", quantise=quantise))
    )
    runner = cpu.compile(model, max_logit_rows=64, threads=2, **LIMITS)
    tokens, _, _ = expected(CASE[name])
    states = run_hidden(runner, tokens, [40])
    for sizes in CHUNKINGS:
        assert np.array_equal(run_hidden(runner, tokens, sizes), states)
    logits = run_tokens(runner, tokens, [40])
    batch = make_batch([Chunk(tokens.tolist(), 0, range(5))], [39, 2, 7], [5, 38, 0, 39])
    assert np.array_equal(runner.forward(batch), logits[[39, 2, 7]])
    assert np.array_equal(runner.hidden(), states[[5, 38, 0, 39]])
    # Two sequences of one token: a small step.
    runner.forward(make_batch([Chunk(tokens[:20].tolist(), 0, range(3))], []))
    batch = make_batch(
        [Chunk([int(tokens[20])], 20, range(3)), Chunk([int(tokens[0])], 0, [9])], [0], [1]
    )
    assert np.array_equal(runner.forward(batch)[0], logits[20])
    assert np.array_equal(runner.hidden()[0], states[0])


def test_states_of_quantised_files_agree_with_the_reference(tmp_path: Path) -> None:
    model = load_model(
        open_checkpoint(write_gguf(CASE["llama"], tmp_path / "m.gguf", quantise="Q8_0"))
    )
    tokens, _, _ = expected(CASE["llama"])
    found, wanted = (
        run_hidden(backend.compile(model, max_logit_rows=4, **LIMITS), tokens, [40])
        for backend in (cpu, reference)
    )
    # The activations of quantised products are rounded to 8 bits.
    assert np.abs(found - wanted).mean() / np.abs(wanted).mean() < 0.06


def test_no_states_unless_asked_for(tmp_path: Path) -> None:
    model = folder_model(CASE["llama"], tmp_path)
    for backend in (cpu, reference):
        runner = backend.compile(model, max_logit_rows=4, **LIMITS)
        assert runner.hidden().shape == (0, 64)
        runner.forward(make_batch([Chunk([3, 4, 5], 0, [0])], [2], [1]))
        assert runner.hidden().shape == (1, 64)
        runner.forward(make_batch([Chunk([6], 3, [0])], [0]))
        assert runner.hidden().shape == (0, 64)


def test_rows_that_are_asked_for_too_often_or_are_not_there(tmp_path: Path) -> None:
    model = folder_model(CASE["llama"], tmp_path)
    chunk = [Chunk([3, 4, 5], 0, [0])]
    for backend in (cpu, reference):
        runner = backend.compile(model, max_logit_rows=4, **LIMITS)
        for rows in ([3], [-1]):
            with pytest.raises(ValueError, match="hidden_rows"):
                runner.forward(make_batch(chunk, [], rows))
        with pytest.raises(ValueError, match="hidden_rows"):
            runner.forward(make_batch(chunk, [0, 1], [0] * 63))
        runner.forward(make_batch(chunk, [0, 1], [0] * 62))
        assert runner.hidden().shape == (62, 64)


@pytest.mark.parametrize("rows", [[0] * 40, [0]])
def test_a_small_step_with_many_rows(rows: list[int], tmp_path: Path) -> None:
    """Threads quantise for themselves in steps of one or two rows, whatever those rows are of."""
    path = write_gguf(CASE["llama"], tmp_path / "m.gguf", quantise="Q8_0")
    runner = cpu.compile(load_model(open_checkpoint(path)), max_logit_rows=64, threads=2, **LIMITS)
    wanted = runner.forward(make_batch([Chunk([3, 4, 5, 6], 0, [0])])).copy()
    runner.forward(make_batch([Chunk([3, 4, 5], 0, [1])], []))
    found = runner.forward(make_batch([Chunk([6], 3, [1])], rows, rows[:20]))
    assert np.array_equal(found, wanted[[3] * len(rows)])
    assert np.ptp(runner.hidden(), axis=0).max() == 0


@pytest.mark.parametrize("norm", [False, True])
def test_a_hidden_state_that_is_nothing_but_an_embedding(norm: bool) -> None:
    """Nothing stands between it and rows of all tokens."""
    rng = np.random.default_rng(3)

    def tensor(name: str, *shape: int) -> WeightTensor:
        values = rng.standard_normal(shape).astype(np.float32)
        return WeightTensor(name, TensorType.F32, shape, values.view(np.uint8).reshape(-1))

    weights = {
        name: tensor(name, *shape)
        for name, shape in {
            "token_embd.weight": (12, 32), "output.weight": (12, 32), "output_norm.weight": (32,),
        }.items()
    }  # fmt: skip

    def graph(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        return g.logits(g.rms_norm(x, "output_norm", 1e-5) if norm else x, "output")

    batch = make_batch([Chunk([3, 4, 5, 6], 0, [0])], [2], [3, 1])
    runners = both_runners(graph, weights)
    logits = [np.array(runner.forward(batch)) for runner in runners]
    states = [np.array(runner.hidden()) for runner in runners]
    assert states[0].shape == (2, 32)
    assert relative_error(states[0], states[1]) < 1e-5
    assert relative_error(logits[0], logits[1]) < 1e-5
