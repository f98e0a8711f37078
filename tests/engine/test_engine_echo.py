"""What the engine owes to ``echo``: the prompt's log-probabilities, and nothing else changed."""

from __future__ import annotations

import pytest

from engine.fake_runner import FakeRunner
from engine.helpers import Result, drive, make_engine, request
from engine.sampling_oracle import logprobs as true_logprobs

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def run(runner: FakeRunner | None = None, *, budget: int = 32, **params) -> Result:
    engine = make_engine(runner or FakeRunner(), max_batch_tokens=budget)
    return drive(engine, [request("r", PROMPT, **params)])["r"]


def tokens(result: Result) -> list[list[int]]:
    return [sample.tokens for sample in result.samples.values()]


@pytest.mark.parametrize("budget", [1, 4, 32])
@pytest.mark.parametrize(
    ("params", "n_top"),
    [
        ({"logprobs": 3}, 3),
        ({"logprobs": 0}, 0),
        ({"logprobs": 1, "prompt_logprobs": 4}, 4),
        ({"logprobs": 4, "prompt_logprobs": 0}, 4),
        ({"prompt_logprobs": 2}, 2),
        ({"logprobs": 2, "max_tokens": 0}, 2),
        ({"logprobs": 2, "n": 3, "temperature": 1.0, "seed": 1}, 2),
    ],
)
def test_the_prompt_is_scored_with_the_most_top_tokens_asked_for(
    budget: int, params: dict[str, int], n_top: int
) -> None:
    runner = FakeRunner()
    result = run(runner, budget=budget, echo=True, **params)
    scores = result.prompt.logprobs
    assert len(scores) == len(PROMPT)
    assert scores[0] is None
    for i, entry in enumerate(scores[1:], 1):
        expected = true_logprobs(runner.logits_after(PROMPT[:i]))
        assert entry[0].token_id == PROMPT[i]
        assert entry[0].logprob == pytest.approx(expected[PROMPT[i]], abs=1e-5)
        assert len(entry) == 1 + n_top
        best = sorted(expected, reverse=True)[:n_top]
        assert [e.logprob for e in entry[1:]] == pytest.approx(best, abs=1e-5)


def test_without_logprobs_echo_costs_nothing() -> None:
    runner = FakeRunner()
    runner.keep_batches = True
    assert run(runner, echo=True).prompt.logprobs is None
    assert len(runner.batches[0].logit_rows) == 1


@pytest.mark.parametrize("params", [{}, {"n": 3, "temperature": 0.9, "seed": 5}])
def test_what_is_generated_is_as_without(params: dict[str, float]) -> None:
    assert tokens(run(echo=True, logprobs=1, **params)) == tokens(run(logprobs=1, **params))


def test_scoring_alone_ends_by_length() -> None:
    runner = FakeRunner()
    result = run(runner, echo=True, logprobs=0, max_tokens=0, n=2)
    assert tokens(result) == [[], []]
    assert [s.finish.reason for s in result.samples.values()] == ["length", "length"]
    assert runner.tokens_computed == len(PROMPT)


def test_a_warm_prompt_is_scored_like_a_cold_one() -> None:
    engine = make_engine(FakeRunner())
    requests = [request(id, PROMPT, echo=True, logprobs=2) for id in ("cold", "warm")]
    cold, warm = (drive(engine, [r])[r.id] for r in requests)
    assert warm.prompt.logprobs == cold.prompt.logprobs
    assert warm.tokens == cold.tokens


def test_echoed_prompts_survive_preemption() -> None:
    runner = FakeRunner(n_blocks=14)
    engine = make_engine(runner, max_context=48)
    requests = [request(f"r{i}", [*PROMPT, i], echo=True, logprobs=1, max_tokens=20)
                for i in range(4)]  # fmt: skip
    results = drive(engine, requests)
    assert engine.stats.preemptions > 0
    for i, r in enumerate(requests):
        assert [e and e[0].token_id for e in results[r.id].prompt.logprobs] == [
            None, *PROMPT[1:], i
        ]  # fmt: skip
        assert results[r.id].tokens == runner.greedy([*PROMPT, i], 20)
