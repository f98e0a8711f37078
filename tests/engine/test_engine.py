"""The engine over a fake model that knows its own continuation: what comes out."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from engine import sampling_oracle as oracle
from engine.fake_runner import FakeRunner
from engine.helpers import Collector, check_idle, drive, make_engine, prompt_of, request
from engine.sampling_oracle import logprobs as true_logprobs
from tidemill.engine.base import EngineConfig, FinishEvent, PromptEvent, Request, TokenEvent
from tidemill.engine.errors import ContextLengthError, QueueFullError, RequestError
from tidemill.engine.params import SamplingParams


def run_alone(prompt, runner=None, **params):
    engine = make_engine(runner or FakeRunner())
    return drive(engine, [request("r", prompt, **params)])["r"]


# ---- the same tokens, however they come about --------------------------------------------------


@pytest.mark.parametrize("budget", [1, 3, 4, 7, 32, 64])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 33, 100])
def test_chunked_prefill_gives_the_one_shot_output(budget: int, length: int) -> None:
    runner = FakeRunner()
    prompt = prompt_of(length)
    engine = make_engine(runner, max_batch_tokens=budget)
    result = drive(engine, [request("r", prompt, max_tokens=12)])["r"]
    assert result.tokens == runner.greedy(prompt, 12)
    assert runner.steps == -(-length // budget) + 11


@pytest.mark.parametrize("length", [4, 7, 8, 9, 40])
def test_cold_warm_partial_and_evicted_are_equal(length: int) -> None:
    runner = FakeRunner(n_blocks=32)
    engine = make_engine(runner)
    prompt = prompt_of(length)
    expected = runner.greedy(prompt, 20)

    def run(id: str) -> tuple[list[int], int]:
        result = drive(engine, [request(id, prompt, max_tokens=20)])[id]
        return result.tokens, result.prompt.cached_tokens

    assert run("cold") == (expected, 0)
    assert run("warm") == (expected, (length - 1) // 4 * 4)
    branch = prompt[: length // 2] + prompt_of(30, seed=9)
    partial = drive(engine, [request("branch", branch)])["branch"]
    assert partial.tokens == runner.greedy(branch, 16)
    assert partial.prompt.cached_tokens == length // 2 // 4 * 4
    for i in range(8):  # 8 x 15 blocks push everything else out
        drive(engine, [request(f"other{i}", prompt_of(50, seed=100 + i), max_tokens=10)])
    assert run("evicted") == (expected, 0)


def test_prompts_that_end_with_a_full_cached_block_still_compute_their_last_token() -> None:
    runner = FakeRunner()
    engine = make_engine(runner)
    prompt = prompt_of(8)
    drive(engine, [request("a", prompt)])
    before = runner.tokens_computed
    result = drive(engine, [request("b", prompt, max_tokens=1)])["b"]
    assert result.prompt.cached_tokens == 4
    assert runner.tokens_computed - before == 4
    assert result.tokens == runner.greedy(prompt, 1)


def test_generated_tokens_are_cached_for_the_next_turn() -> None:
    runner = FakeRunner()
    engine = make_engine(runner)
    prompt = prompt_of(10)
    answer = drive(engine, [request("a", prompt, max_tokens=14)])["a"].tokens
    turn = prompt + answer + [5, 6, 7]
    result = drive(engine, [request("b", turn)])["b"]
    assert result.prompt.cached_tokens == 20  # of 23 computed ones, the full blocks
    assert result.tokens == runner.greedy(turn, 16)


def test_no_hits_across_salts_or_without_caching() -> None:
    prompt = prompt_of(40)
    runner = FakeRunner()
    engine = make_engine(runner)
    for i, (salt, cached) in enumerate([("a", 0), ("a", 36), ("b", 0), ("", 0), ("b", 36)]):
        result = drive(engine, [request(str(i), prompt, salt=salt)])[str(i)]
        assert result.prompt.cached_tokens == cached
        assert result.tokens == runner.greedy(prompt, 16)
    engine = make_engine(FakeRunner(), prefix_caching=False)
    for id in ("a", "b"):
        assert drive(engine, [request(id, prompt)])[id].prompt.cached_tokens == 0
    assert engine.stats.cached_blocks == 0


def test_alone_and_with_others_are_equal() -> None:
    runner = FakeRunner(n_blocks=200)
    params = {"temperature": 0.9, "top_p": 0.9, "seed": 11, "max_tokens": 25, "logprobs": 2}
    prompt = prompt_of(21)
    alone = run_alone(prompt, **params)
    engine = make_engine(runner, max_sequences=17, max_batch_tokens=40)
    others = [
        request(f"o{i}", prompt_of(i * 3 + 1, seed=i), temperature=1.0, n=1 + i % 3)
        for i in range(16)
    ]
    together = drive(engine, [*others[:8], request("r", prompt, **params), *others[8:]])["r"]
    assert together.tokens == alone.tokens
    assert together.samples[0].logprobs == alone.samples[0].logprobs


def test_seeds() -> None:
    prompt = prompt_of(9)
    params = {"temperature": 1.0, "max_tokens": 30}

    def tokens(entropy: int = 1, **more) -> list[int]:
        engine = make_engine(FakeRunner(), entropy=entropy)
        return drive(engine, [request("r", prompt, **params, **more)])["r"].tokens

    assert tokens(seed=1) == tokens(seed=1) == tokens(seed=1, entropy=2)
    assert tokens(seed=1) != tokens(seed=2)
    assert tokens(seed=-1) == tokens(seed=2**64 - 1)
    assert tokens() == tokens()  # the same entropy and arrival
    assert tokens() != tokens(entropy=2)
    engine = make_engine(FakeRunner())
    results = drive(engine, [request(str(i), prompt, **params) for i in range(5)])
    assert len({tuple(r.tokens) for r in results.values()}) == 5


def test_sampled_tokens_are_the_oracles() -> None:
    """Penalties count every token so far, and each position has a uniform number of its own."""
    runner, prompt, seed = FakeRunner(), prompt_of(9), 77
    params = {
        "temperature": 0.9, "top_k": 12, "top_p": 0.95, "repetition_penalty": 1.3,
        "presence_penalty": 0.4, "frequency_penalty": 0.3,
    }  # fmt: skip
    samples = run_alone(prompt, n=2, seed=seed, max_tokens=40, **params).samples
    rules = oracle.Rules(**params, bias={})
    decided = 0
    for index, sample in samples.items():
        output: list[int] = []
        for position, token in enumerate(sample.tokens):
            logits = runner.logits_after([*prompt, *output])
            x = oracle.adjusted(logits, rules, prompt, output)
            u = oracle.philox_uniform(seed, index, position)
            expected = oracle.choose_clearly(x, rules, u)
            assert expected is None or token == expected
            decided += expected is not None
            output.append(token)
    assert decided > 70


# ---- samples -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 4, 6, 8, 13])
@pytest.mark.parametrize("slots", [2, 8])
def test_n_samples_share_the_prompt(length: int, slots: int) -> None:
    runner = FakeRunner()
    engine = make_engine(runner, max_sequences=slots)
    prompt = prompt_of(length)
    result = drive(engine, [request("r", prompt, n=5, temperature=1.0, seed=3)])["r"]
    assert sorted(result.samples) == [0, 1, 2, 3, 4]
    streams = {tuple(sample.tokens) for sample in result.samples.values()}
    assert len(streams) == 5
    if slots == 8:
        assert runner.tokens_computed == length + 5 * 15  # the prompt once
    # What a sample says does not depend on how many there are, nor on having to wait for a slot.
    fewer = drive(make_engine(FakeRunner()), [request("r", prompt, n=2, temperature=1.0, seed=3)])
    for i in (0, 1):
        assert fewer["r"].samples[i].tokens == result.samples[i].tokens


def test_forks_without_a_block_to_copy_to_wait_their_turn() -> None:
    runner = FakeRunner(n_blocks=4)
    engine = make_engine(runner)
    prompt = prompt_of(14)  # all four blocks, the last one partial
    result = drive(engine, [request("r", prompt, n=3, max_tokens=2)])["r"]
    assert [s.tokens for s in result.samples.values()] == [runner.greedy(prompt, 2)] * 3


def test_best_of_gives_the_best_by_mean_logprob_at_the_end() -> None:
    prompt, params = prompt_of(9), {"temperature": 1.5, "seed": 4, "max_tokens": 12}
    stop = [1, 2, 3, 4, 5]
    all_of_them = drive(
        make_engine(FakeRunner()),
        [request("r", prompt, n=6, logprobs=0, stop_token_ids=stop, **params)],
    )["r"].samples
    mean = {
        i: s.finish.cumulative_logprob / len(s.tokens) for i, s in all_of_them.items()
    }  # fmt: skip
    for i, s in all_of_them.items():
        total = sum(entry[0].logprob for entry in s.logprobs)
        assert s.finish.cumulative_logprob == pytest.approx(total), i
    best = sorted(mean, key=lambda i: -mean[i])
    engine = make_engine(FakeRunner())
    engine.add(request("r", prompt, n=2, best_of=6, stop_token_ids=stop, **params), 0.0)
    collector, seen = Collector(), []
    while engine.has_work:
        events = engine.step(0.0)
        seen.append([type(event) for event in events])
        collector.take(events)
    result = collector.results["r"]
    assert all(set(types) <= {PromptEvent} for types in seen[:-1])
    assert [result.samples[i].tokens for i in (0, 1)] == [all_of_them[i].tokens for i in best[:2]]
    assert result.samples[0].finish.cumulative_logprob == pytest.approx(
        all_of_them[best[0]].finish.cumulative_logprob
    )
    assert result.samples[0].logprobs[0] is None
    check_idle(engine)


# ---- ends --------------------------------------------------------------------------------------


def test_stop_token_ids_and_min_tokens() -> None:
    runner, prompt = FakeRunner(), prompt_of(6)
    truth = runner.greedy(prompt, 40)
    stop = truth[5]
    first = truth.index(stop)
    result = run_alone(prompt, stop_token_ids=[stop], max_tokens=40)
    assert result.tokens == truth[: first + 1]
    assert (result.samples[0].finish.reason, result.samples[0].finish.stop_reason) == ("stop", stop)
    late = run_alone(prompt, stop_token_ids=[stop], max_tokens=40, min_tokens=10)
    assert len(late.tokens) > 10
    assert stop not in late.tokens[:10]
    assert late.tokens[:first] == truth[:first]


def test_lengths() -> None:
    prompt = prompt_of(6)
    result = run_alone(prompt, max_tokens=7)
    assert len(result.tokens) == 7
    assert result.samples[0].finish.reason == "length"
    assert len(run_alone(prompt, max_tokens=None).tokens) == 128 - 6
    nothing = run_alone(prompt, max_tokens=0, prompt_logprobs=1, n=2)
    assert nothing.prompt.prompt_tokens == 6
    assert len(nothing.prompt.logprobs) == 6
    assert [s.finish.reason for s in nothing.samples.values()] == ["length"] * 2
    assert not nothing.tokens


def test_the_default_length_is_cut_to_the_context_and_an_explicit_one_is_not() -> None:
    def engine(context: int):
        return make_engine(FakeRunner(n_blocks=100), max_context=context)

    def run(context: int, params: SamplingParams):
        return drive(engine(context), [Request("r", tuple(prompt_of(6)), params)])["r"]

    default = SamplingParams(temperature=0)
    assert default.max_tokens == 256
    for context, expected in ((256, 250), (7, 1), (300, 256)):
        for params in (default, replace(default, seed=3), deepcopy(default)):
            result = run(context, params)
            assert len(result.tokens) == expected
            assert result.samples[0].finish.reason == "length"
        if expected < 256:
            with pytest.raises(ContextLengthError, match=f"256 are to be .* context of {context}"):
                run(context, SamplingParams(max_tokens=256))
    with pytest.raises(ContextLengthError, match="up to 1 are to be generated"):
        run(6, default)
    with pytest.raises(ContextLengthError, match="up to 9 are to be generated"):
        run(14, replace(default, min_tokens=9))


def test_the_usable_context_is_the_advertised_one() -> None:
    runner = FakeRunner(n_blocks=10)
    engine = make_engine(runner)
    assert engine.max_context == 40  # what the KV memory holds, less than the 128 configured
    for length, tokens in ((40, 1), (10, 31), (10, 1000), (41, None), (40, None), (41, 0)):
        with pytest.raises(ContextLengthError, match="context of 40") as caught:
            engine.add(request("r", prompt_of(length), max_tokens=tokens), 0.0)
        assert caught.value.code == "context_length_exceeded"
    results = drive(
        engine,
        [
            request("a", prompt_of(39), max_tokens=1),
            request("b", prompt_of(1), max_tokens=39),
            request("c", prompt_of(20), max_tokens=None),
            request("d", prompt_of(40), max_tokens=0),
        ],
    )
    assert [len(results[id].tokens) for id in "abc"] == [1, 39, 20]
    assert results["d"].done


@pytest.mark.parametrize(
    ("param", "arguments"),
    [
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": [40]}),
        ("prompt", {"prompt": [-1]}),
        ("prompt", {"prompt": [2**40]}),
        ("prompt", {"prompt": [1.5]}),
        ("prompt", {"prompt": ["a"]}),
        ("stop_token_ids", {"prompt": [1], "stop_token_ids": [40]}),
        ("logit_bias", {"prompt": [1], "logit_bias": {-1: 1.0}}),
        ("stop", {"prompt": [1], "stop": ["x"]}),
    ],
)
def test_requests_that_cannot_be_served_are_refused(param: str, arguments: dict) -> None:
    engine = make_engine(FakeRunner())
    with pytest.raises(RequestError) as caught:
        engine.add(request("r", **arguments), 0.0)
    assert caught.value.param == param
    check_idle(engine)


@pytest.mark.parametrize(
    ("param", "value"),
    [("priority", "first"), ("priority", 1.5), ("priority", None), ("salt", 3), ("salt", None)],
)
def test_a_priority_or_salt_of_the_wrong_type_leaves_other_requests_alone(
    param: str, value: object
) -> None:
    engine = make_engine(FakeRunner())
    engine.add(request("good", [1]), 0.0)
    wrong = replace(request("bad", [1]), **{param: value})
    with pytest.raises(RequestError) as caught:
        engine.add(wrong, 0.0)
    assert caught.value.param == param
    assert drive(engine).keys() == {"good"}
    check_idle(engine)


def test_ids_are_unique_while_they_run_and_the_queue_is_bounded() -> None:
    engine = make_engine(FakeRunner(), max_waiting=3)
    engine.add(request("r", [1]), 0.0)
    with pytest.raises(RequestError, match="'r'"):
        engine.add(request("r", [1]), 0.0)
    engine.add(request("s", [1]), 0.0)
    engine.add(request("t", [1]), 0.0)
    with pytest.raises(QueueFullError, match="try again later"):
        engine.add(request("u", [1]), 0.0)
    drive(engine)
    drive(engine, [request("r", [1])])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_context", 0), ("max_batch_tokens", 0), ("max_prefill_tokens", 0),
        ("max_sequences", 0), ("max_waiting", 0), ("max_preemptions", -1), ("max_draft", 0),
        ("sampling_threads", 0), ("target_itl", 0.0), ("target_itl", math.nan),
    ],
)  # fmt: skip
def test_limits_that_make_no_sense_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        EngineConfig(**{"max_context": 64, name: value})


# ---- log-probabilities -------------------------------------------------------------------------


def test_logprobs_are_the_models_own() -> None:
    runner, prompt = FakeRunner(), prompt_of(7)
    result = run_alone(
        prompt, logprobs=4, temperature=0.6, top_k=3, logit_bias={2: 9.0}, seed=1, max_tokens=9,
        repetition_penalty=1.4,
    )  # fmt: skip
    tokens = list(prompt)
    for token, entries in zip(result.tokens, result.samples[0].logprobs, strict=True):
        truth = true_logprobs(runner.logits_after(tokens))
        order = np.argsort(-truth)
        assert entries[0].token_id == token
        assert [e.token_id for e in entries[1:]] == order[:4].tolist()
        assert [e.rank for e in entries[1:]] == [1, 2, 3, 4]
        for entry in entries:
            assert entry.logprob == pytest.approx(truth[entry.token_id], abs=1e-5)
        assert entries[0].rank == order.tolist().index(token) + 1
        tokens.append(token)


@pytest.mark.parametrize("budget", [1, 5, 64])
@pytest.mark.parametrize("rows", [2, 32])
def test_prompt_logprobs_whatever_the_chunks_and_the_cache(budget: int, rows: int) -> None:
    runner, prompt = FakeRunner(max_logit_rows=rows), prompt_of(23)
    engine = make_engine(runner, max_batch_tokens=budget)
    drive(engine, [request("warm", prompt)])
    others = [request(f"o{i}", prompt_of(9, seed=i)) for i in range(4)]
    result = drive(engine, [*others, request("r", prompt, prompt_logprobs=2, n=2)])["r"]
    entries = result.prompt.logprobs
    assert result.prompt.cached_tokens == 0
    assert entries[0] is None
    assert len(entries) == 23
    for i in range(1, 23):
        truth = true_logprobs(runner.logits_after(prompt[:i]))
        assert entries[i][0].token_id == prompt[i]
        assert [e.token_id for e in entries[i][1:]] == np.argsort(-truth)[:2].tolist()
        for entry in entries[i]:
            assert entry.logprob == pytest.approx(truth[entry.token_id], abs=1e-5)
    for sample in result.samples.values():
        assert sample.tokens == runner.greedy(prompt, 16)
    again = drive(engine, [request("again", prompt, max_tokens=1)])["again"]
    assert again.prompt.cached_tokens == 20


# ---- what it tells of itself ---------------------------------------------------------------------


def test_events_of_a_request_come_in_order() -> None:
    engine = make_engine(FakeRunner())
    engine.add(request("r", prompt_of(40), max_tokens=3), 0.0)
    events = []
    while engine.has_work:
        events += engine.step(0.0)
    assert [type(e) for e in events] == [
        PromptEvent,
        TokenEvent,
        TokenEvent,
        TokenEvent,
        FinishEvent,
    ]


def test_stats_count_and_time_is_what_it_is_told() -> None:
    engine = make_engine(FakeRunner())
    engine.add(request("a", prompt_of(9), max_tokens=3), 10.0)
    engine.step(12.5)
    engine.add(request("b", prompt_of(9), max_tokens=2), 20.0)
    while engine.has_work:
        engine.step(21.0)
    stats = engine.stats
    assert (stats.started, stats.queue_seconds) == (2, 3.5)
    assert (stats.prompt_tokens, stats.cached_prompt_tokens) == (18, 8)
    assert (stats.generated_tokens, stats.failures, stats.preemptions) == (5, 0, 0)


def test_stats_tell_how_large_the_steps_were() -> None:
    engine = make_engine(FakeRunner(), max_batch_tokens=8)
    drive(engine, [request("r", prompt_of(20), max_tokens=3)])
    tokens, sequences = engine.stats.step_tokens, engine.stats.step_sequences
    assert tokens.total == 20 + 2  # the last token is not computed
    assert tokens.counts[:3] == [2, 3, 0]  # steps of 1 token, of up to 8, of up to 16
    assert sequences.total == sum(sequences.counts) == engine.stats.steps == 5


def test_a_prompt_tells_when_it_was_begun() -> None:
    engine = make_engine(FakeRunner(), max_batch_tokens=4, max_sequences=1)
    engine.add(request("first", prompt_of(4), max_tokens=1), 10.0)
    engine.add(request("second", prompt_of(8), max_tokens=1), 10.0)
    found = {}
    for now in (11.0, 12.0, 13.0):
        found |= {e.request_id: e.started for e in engine.step(now) if isinstance(e, PromptEvent)}
    assert found == {"first": 11.0, "second": 12.0}
    assert engine.stats.queue_seconds == 3.0
