"""The engine over real backends with tiny random models: the same tokens however they come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.helpers import drive, make_engine, request
from support.tiny_models import CASES, write_folder
from tidemill.backends import cpu, reference
from tidemill.backends.base import KVCacheSpec, Runner
from tidemill.models import Model, load_model
from tidemill.weights import open_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    case = next(c for c in CASES if str(c).startswith("llama"))
    folder: Path = write_folder(case, tmp_path_factory.mktemp("model"))
    return load_model(open_checkpoint(folder))


BACKENDS = {"reference": reference.compile, "cpu": cpu.compile}


def compiled(model: Model, backend: str, n_blocks: int = 32) -> Runner:
    kv = KVCacheSpec(n_blocks, 8, "f32")
    return BACKENDS[backend](model, kv=kv, max_batch_tokens=48, max_logit_rows=20, threads=1)


@pytest.fixture(params=sorted(BACKENDS))
def runner(request: pytest.FixtureRequest, model: Model) -> Iterator[Runner]:
    runner = compiled(model, request.param)
    yield runner
    runner.close()


def prompt_of(runner: Runner, n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, runner.vocab_size, n).tolist()


def test_greedy_is_the_same_cold_warm_partial_evicted_chunked_and_in_company(
    runner: Runner,
) -> None:
    prompt = prompt_of(runner, 22)

    def engine(**config):
        return make_engine(runner, max_context=100, **config)

    def tokens(engine, id: str, others: int = 0) -> list[int]:
        rest = [request(f"{id}-{i}", prompt_of(runner, 3 + i, 50 + i)) for i in range(others)]
        return drive(engine, [*rest, request(id, prompt, max_tokens=24)])[id].tokens

    one_shot = engine()
    cold = tokens(one_shot, "cold")
    assert len(set(cold)) > 1
    assert tokens(one_shot, "warm") == cold
    assert one_shot.stats.cached_prompt_tokens == 16
    drive(one_shot, [request("branch", [*prompt[:13], *prompt_of(runner, 20, 1)])])
    assert tokens(one_shot, "partial") == cold
    for i in range(4):
        drive(one_shot, [request(f"o{i}", prompt_of(runner, 70, 10 + i))])
    before = one_shot.stats.cached_prompt_tokens
    assert tokens(one_shot, "evicted") == cold
    assert one_shot.stats.cached_prompt_tokens == before
    for chunk in (1, 3, 7):
        assert tokens(engine(max_batch_tokens=chunk), "chunked") == cold
    assert tokens(engine(max_sequences=17), "company", others=16) == cold


def test_preemption_forks_and_samples_change_nothing(model: Model) -> None:
    for backend in sorted(BACKENDS):
        expected = None
        for n_blocks in (32, 10):
            runner = compiled(model, backend, n_blocks)
            engine = make_engine(runner, max_context=60)
            requests = [
                request(f"r{i}", prompt_of(runner, 5 + i, i), n=2, temperature=0.8, top_p=0.9,
                        seed=i, max_tokens=20, logprobs=1, prompt_logprobs=0)
                for i in range(5)
            ]  # fmt: skip
            results = drive(engine, requests)
            if n_blocks == 10:
                assert engine.stats.preemptions > 0
            tokens = {r: [s.tokens for s in results[r].samples.values()] for r in results}
            expected = expected or tokens
            assert tokens == expected
            runner.close()


def test_prompt_logprobs_agree_with_those_of_generation(runner: Runner) -> None:
    """Teacher forcing: what a token's log-probability was when it was generated is what it is
    when prompt and answer come back as one prompt."""
    prompt = prompt_of(runner, 9)
    generated = drive(make_engine(runner), [request("g", prompt, logprobs=2, max_tokens=12)])["g"]
    again = drive(
        make_engine(runner, max_batch_tokens=5),
        [request("p", prompt + generated.tokens, prompt_logprobs=2, max_tokens=0)],
    )["p"]
    for ours, theirs in zip(
        generated.samples[0].logprobs, again.prompt.logprobs[len(prompt) :], strict=True
    ):
        assert [e.token_id for e in ours] == [e.token_id for e in theirs]
        assert [e.logprob for e in ours] == pytest.approx([e.logprob for e in theirs], abs=1e-5)
