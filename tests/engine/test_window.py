"""KV blocks that no window reaches are given back, and only those.

The runner makes them unreadable at once and its tokens depend on all of the window: a block that
is given back too early changes an answer.
"""

from __future__ import annotations

import pytest

from engine.fake_runner import FakeRunner
from engine.helpers import drive, make_engine, request
from tidemill.engine.lookup import PromptLookup

SIZE = 4


def prompt_of(n: int, seed: int = 0) -> list[int]:
    return [(7 * i + i // 5 + seed) % 40 for i in range(n)]


@pytest.mark.parametrize("window", [1, 2, 4, 5, 7, 8, 9, 64])
@pytest.mark.parametrize("n_prompt", [1, 6, 40])
def test_a_sequence_leaves_all_blocks_behind_its_window(window: int, n_prompt: int) -> None:
    runner = FakeRunner(window=window)
    engine = make_engine(runner, prefix_caching=False)
    results = drive(engine, [request("a", prompt_of(n_prompt), max_tokens=30)])
    assert results["a"].tokens == runner.greedy(prompt_of(n_prompt), 30)
    # The last token is never computed; the one after those that are sees window - 1 of them.
    computed = n_prompt + 29
    assert runner.forgotten == max(0, computed - (window - 1)) // SIZE


def test_nothing_is_given_back_without_a_window_or_with_a_prefix_cache() -> None:
    for window, caching in ((None, False), (5, True)):
        runner = FakeRunner(window=window)
        engine = make_engine(runner, prefix_caching=caching)
        for _ in range(2):
            results = drive(engine, [request("a", prompt_of(40), max_tokens=30)])
            assert results["a"].tokens == runner.greedy(prompt_of(40), 30)
        assert runner.forgotten == 0


def test_samples_keep_what_they_share() -> None:
    """They go on from one prompt, and need not be equally far."""
    runner = FakeRunner(window=6)
    engine = make_engine(runner, prefix_caching=False)
    requests = [request("a", prompt_of(23), max_tokens=40, n=3, temperature=1.0, seed=3)]
    samples = drive(engine, requests)["a"].samples
    assert len({tuple(sample.tokens) for sample in samples.values()}) == 3
    alone = make_engine(FakeRunner(), prefix_caching=False)
    alone._runner.logits_after = runner.logits_after
    expected = drive(alone, requests)["a"].samples
    assert {i: s.tokens for i, s in samples.items()} == {i: s.tokens for i, s in expected.items()}
    assert 0 < runner.forgotten <= 3 * (40 // SIZE + 1)


def test_preempted_sequences_are_computed_anew() -> None:
    runner = FakeRunner(n_blocks=24, window=6)
    engine = make_engine(runner, max_sequences=16, prefix_caching=False)
    requests = [request(f"r{i}", prompt_of(3 + i % 4, i), max_tokens=60) for i in range(16)]
    results = drive(engine, requests)
    for r in requests:
        assert results[r.id].tokens == runner.greedy(r.prompt_token_ids, 60)
    assert engine.stats.preemptions > 0
    assert runner.forgotten > 16 * (60 - 6) // SIZE


@pytest.mark.parametrize("window", [3, 4, 9])
def test_guesses_that_fail_lose_nothing(window: int) -> None:
    """Their positions are written, and written again."""
    runner = FakeRunner(n_blocks=128, window=window)
    engine = make_engine(
        runner, prefix_caching=False, proposer=PromptLookup(), adaptive_drafts=False
    )
    prompts = [prompt_of(9, seed) * 3 for seed in range(4)]
    results = drive(engine, [request(str(i), p, max_tokens=50) for i, p in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        assert results[str(i)].tokens == runner.greedy(prompt, 50)
    assert engine.stats.drafted_tokens > 0
    assert runner.forgotten == 4 * (max(0, 27 + 49 - (window - 1)) // SIZE)
