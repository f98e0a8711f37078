"""Embeddings beside generation: what is pooled, how it is scheduled, and what is left behind."""

from __future__ import annotations

import random

import numpy as np
import pytest

from engine.fake_runner import FakeRunner
from engine.helpers import (
    Collector,
    check_blocks,
    check_idle,
    drive,
    embedding,
    make_engine,
    request,
)
from tidemill.engine.base import FinishEvent, Request, TokenEvent
from tidemill.engine.errors import ContextLengthError, RequestError
from tidemill.engine.lookup import PromptLookup
from tidemill.engine.params import SamplingParams


def prompt_of(n: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(40) for _ in range(n)]


def pooled(runner: FakeRunner, prompt: list[int], pooling: str) -> np.ndarray:
    """What the fake model makes of ``prompt``, all at once."""
    states = [runner.hidden_after(prompt[: i + 1]) for i in range(len(prompt))]
    if pooling == "last":
        return states[-1]
    return np.mean(np.array(states, np.float64), axis=0).astype(np.float32)


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("budget", [1, 3, 4, 7, 64])
@pytest.mark.parametrize("length", [1, 4, 5, 33, 100])
def test_chunks_are_pooled_as_the_whole(pooling: str, budget: int, length: int) -> None:
    runner = FakeRunner()
    engine = make_engine(runner, max_batch_tokens=budget)
    found = drive(engine, [embedding("e", prompt_of(length), pooling)])["e"]
    assert found.embedding.dtype == np.float32
    assert found.embedding.tolist() == pytest.approx(
        pooled(runner, prompt_of(length), pooling).tolist(), rel=1e-6
    )
    whole = drive(make_engine(FakeRunner()), [embedding("e", prompt_of(length), pooling)])["e"]
    assert found.embedding.tobytes() == whole.embedding.tobytes()
    assert (found.prompt.prompt_tokens, found.prompt.cached_tokens) == (length, 0)
    assert found.samples[0].finish == FinishEvent("e", 0, "stop")
    assert runner.steps == -(-length // budget)


def test_only_rows_that_are_pooled_are_asked_for_and_none_of_logits() -> None:
    runner = FakeRunner()
    runner.keep_batches = True
    engine = make_engine(runner, max_batch_tokens=8)
    drive(engine, [embedding("m", prompt_of(6), "mean"), embedding("l", prompt_of(9, 1), "last")])
    asked = [(b.logit_rows.tolist(), b.hidden_rows.tolist()) for b in runner.batches]
    assert asked == [([], [0, 1, 2, 3, 4, 5]), ([], [6])]


def test_generation_beside_embeddings_is_unchanged_and_the_other_way_round() -> None:
    runner = FakeRunner(n_blocks=200)
    engine = make_engine(runner, max_sequences=12, max_batch_tokens=24, proposer=PromptLookup())
    texts = {f"e{i}": (prompt_of(1 + 5 * i, i), ("mean", "last")[i % 2]) for i in range(12)}
    prompts = {f"g{i}": prompt_of(3 * i + 1, 50 + i) for i in range(8)}
    requests: list[Request] = [embedding(id, *text) for id, text in texts.items()]
    requests += [request(id, p, max_tokens=20) for id, p in prompts.items()]
    random.Random(1).shuffle(requests)
    results = drive(engine, requests)
    for id, prompt in prompts.items():
        assert results[id].tokens == runner.greedy(prompt, 20)
    for id, (prompt, pooling) in texts.items():
        found = results[id].embedding
        assert found.tolist() == pytest.approx(pooled(runner, prompt, pooling).tolist(), rel=1e-6)


def test_a_batch_of_the_same_shape_has_its_own_hidden_rows() -> None:
    """Batches of equal shape are made once, but for these rows."""
    runner = FakeRunner()
    runner.keep_batches = True
    engine = make_engine(runner, max_batch_tokens=8)
    texts = {"a": prompt_of(5, 1), "b": prompt_of(7, 2), "c": prompt_of(12, 3)}
    results = drive(engine, [embedding(id, text, "last") for id, text in texts.items()])
    shapes = [(len(b.tokens), *b.block_tables.shape, len(b.hidden_rows)) for b in runner.batches]
    assert shapes[0] == shapes[1]
    assert [b.hidden_rows.tolist() for b in runner.batches] == [[4], [3], [7]]
    for id, text in texts.items():
        assert results[id].embedding.tolist() == runner.hidden_after(text).tolist()


def test_a_step_after_one_with_embeddings_asks_for_none() -> None:
    runner = FakeRunner()
    runner.keep_batches = True
    engine = make_engine(runner, max_prefill_tokens=1)
    engine.add(request("g", prompt_of(5), max_tokens=3), 0.0)
    engine.step(0.0)
    engine.add(embedding("e", [1]), 0.0)
    engine.step(0.0)  # a decode, and the text
    engine.add(request("h", prompt_of(4, 1), max_tokens=1), 0.0)
    engine.step(0.0)  # a decode, and a token of another prompt
    before, after = runner.batches[-2:]
    assert len(before.tokens) == len(after.tokens) == 2
    assert before.block_tables.shape == after.block_tables.shape
    assert (before.logit_rows.tolist(), before.hidden_rows.tolist()) == ([0], [1])
    assert (after.logit_rows.tolist(), after.hidden_rows.tolist()) == ([0], [])


def test_a_mean_takes_nothing_from_the_prefix_cache_and_leaves_nothing_there() -> None:
    runner = FakeRunner()
    engine = make_engine(runner)
    prompt = prompt_of(40)
    drive(engine, [request("g", prompt, max_tokens=1)])
    before, cached = runner.tokens_computed, engine.stats.cached_blocks
    found = drive(engine, [embedding("e", prompt)])["e"]
    assert found.prompt.cached_tokens == 0
    assert runner.tokens_computed - before == 40
    assert engine.stats.cached_blocks == cached
    assert found.embedding.tolist() == pytest.approx(
        pooled(runner, prompt, "mean").tolist(), rel=1e-6
    )
    drive(engine, [embedding("f", prompt_of(40, 5))])
    assert engine.stats.cached_blocks == cached
    again = drive(engine, [request("h", prompt, max_tokens=1)])["h"]
    assert again.prompt.cached_tokens == 36


@pytest.mark.parametrize("length", [4, 8, 9, 40])
def test_the_last_state_may_come_from_behind_cached_blocks(length: int) -> None:
    runner = FakeRunner()
    engine = make_engine(runner)
    prompt = prompt_of(length)
    cold = drive(engine, [embedding("a", prompt, "last")])["a"]
    warm = drive(engine, [embedding("b", prompt, "last")])["b"]
    assert (cold.prompt.cached_tokens, warm.prompt.cached_tokens) == (0, (length - 1) // 4 * 4)
    assert cold.embedding.tolist() == warm.embedding.tolist()
    assert warm.embedding.tolist() == runner.hidden_after(prompt).tolist()
    salted = drive(engine, [embedding("c", prompt, "last", salt="x")])["c"]
    assert salted.prompt.cached_tokens == 0


def test_a_preempted_text_is_pooled_anew() -> None:
    """It gives its blocks up half-way; what had been added up must not be added again."""
    runner = FakeRunner(n_blocks=16)
    engine = make_engine(runner, max_batch_tokens=8, max_context=64)
    engine.add(request("g", prompt_of(16), max_tokens=40), 0.0)
    collector = Collector()
    collector.take(engine.step(0.0))
    engine.add(embedding("e", prompt_of(30, 3), priority=1), 0.0)
    for _ in range(2):
        collector.take(engine.step(0.0))
    assert any(s.pool is not None and s.computed for s in engine._scheduler.running)
    engine.add(request("h", prompt_of(40, 4), max_tokens=4, priority=-1), 0.0)
    while engine.has_work:
        collector.take(engine.step(0.0))
        check_blocks(engine)
    check_idle(engine)
    assert engine.stats.preemptions
    expected = pooled(runner, prompt_of(30, 3), "mean")
    found = collector.results["e"].embedding
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-6)


def test_priorities_hold_for_embeddings_too() -> None:
    engine = make_engine(FakeRunner(), max_sequences=1)
    order = []
    for i, priority in enumerate((2, 0, 1)):
        engine.add(embedding(str(i), prompt_of(5, i), priority=priority), 0.0)
    while engine.has_work:
        order += [e.request_id for e in engine.step(0.0) if isinstance(e, FinishEvent)]
    assert order == ["1", "2", "0"]


def test_decodes_go_on_while_long_texts_are_embedded() -> None:
    engine = make_engine(FakeRunner(n_blocks=200), max_batch_tokens=16, max_prefill_tokens=8)
    engine.add(request("g", prompt_of(3), max_tokens=20), 0.0)
    engine.step(0.0)
    for i in range(3):
        engine.add(embedding(f"e{i}", prompt_of(60, i)), 0.0)
    for _ in range(10):
        events = engine.step(0.0)
        assert [e.request_id for e in events if isinstance(e, TokenEvent)] == ["g"]


def test_an_abort_frees_the_blocks_at_once() -> None:
    engine = make_engine(FakeRunner(), max_batch_tokens=8)
    engine.add(embedding("e", prompt_of(60)), 0.0)
    engine.step(0.0)
    assert engine.stats.free_blocks < 64
    assert engine.abort("e")
    assert engine.stats.free_blocks == 64
    assert engine.step(1.0) == [FinishEvent("e", 0, "abort")]
    check_idle(engine)


def test_a_failing_text_takes_nobody_with_it() -> None:
    runner = FakeRunner(poison=39)
    engine = make_engine(runner)
    good, bad = [1, 2, 3, 4, 5], [1, 2, 39]
    results = drive(
        engine,
        [embedding("good", good), embedding("bad", bad), request("g", good, max_tokens=4)],
    )
    assert "poisoned" in results["bad"].error.message
    assert results["g"].tokens == runner.greedy(good, 4)
    found = results["good"].embedding
    assert found.tolist() == pytest.approx(pooled(runner, good, "mean").tolist(), rel=1e-6)


def test_a_step_that_fails_once_is_not_added_twice() -> None:
    runner = FakeRunner()
    engine = make_engine(runner, max_batch_tokens=8)
    texts = {"a": prompt_of(20), "b": prompt_of(20, 1)}
    for id, prompt in texts.items():
        engine.add(embedding(id, prompt), 0.0)
    collector = Collector()
    while engine.has_work:
        runner.fail_next = 1 if len(engine._scheduler.running) == 2 else 0
        collector.take(engine.step(0.0))
    for id, prompt in texts.items():
        result = collector.results[id]
        if result.error is None:
            expected = pooled(runner, prompt, "mean").tolist()
            assert result.embedding.tolist() == pytest.approx(expected, rel=1e-6)
    assert any(result.embedding is not None for result in collector.results.values())


def test_states_that_are_no_numbers_are_the_requests_own_error() -> None:
    engine = make_engine(FakeRunner(nan_after=7))
    results = drive(engine, [embedding("bad", [1, 7, 2]), embedding("good", [1, 2])])
    assert "not finite" in results["bad"].error.message
    assert results["good"].embedding is not None


def test_what_is_refused() -> None:
    engine = make_engine(FakeRunner(), max_context=32)
    for wrong, param in (
        (embedding("e", []), "prompt"),
        (embedding("e", [40]), "prompt"),
        (embedding("e", [1], pooling="cls"), "pooling"),
        (Request("e", (1,), SamplingParams(max_tokens=0, n=2), pooling="mean"), "pooling"),
        (Request("e", (1,), SamplingParams(), pooling="mean"), "pooling"),
    ):
        with pytest.raises(RequestError) as caught:
            engine.add(wrong, 0.0)
        assert caught.value.param == param
    with pytest.raises(ContextLengthError):
        engine.add(embedding("e", [1] * 33), 0.0)
    check_idle(engine)
    assert drive(engine, [embedding("e", [1] * 32)])["e"].embedding is not None
