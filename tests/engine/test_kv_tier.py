"""KV blocks that fall out of memory come back from a tier: exactly, and in nobody's way.

The runner's tokens depend on every token of a sequence as read back from its blocks, so a block
that came back wrong, too late or to the wrong place gives wrong tokens.
"""

from __future__ import annotations

import random
from array import array

import pytest

from engine.fake_runner import FakeRunner
from engine.helpers import Collector, check_blocks, check_idle, drive, make_engine, request
from engine.memory_tier import MemoryTier
from tidemill.engine.engine import Engine
from tidemill.engine.kv_blocks import block_hash, root_hash
from tidemill.engine.step_time import Work

SIZE = 4
LONG = [(3 * i + i // 7) % 40 for i in range(41)]  # 10 full blocks and a token
OTHER = [(5 * i + i // 3 + 1) % 40 for i in range(41)]


def tiered(**config: object) -> tuple[FakeRunner, MemoryTier, Engine]:
    runner = FakeRunner(n_blocks=config.pop("n_blocks", 16))
    tier = MemoryTier(runner.block_bytes)
    return runner, tier, make_engine(runner, tier=tier, **config)


def evicted(runner: FakeRunner, engine: Engine) -> None:
    """Compute LONG, and then so much else that nothing of it is left in memory."""
    drive(engine, [request("long", LONG, max_tokens=2)])
    drive(engine, [request("other", [39 - t for t in LONG[::-1]], max_tokens=22)])
    assert not engine._kv.match(names_of(LONG))
    runner.tokens_computed = 0


def test_an_evicted_prompt_comes_back() -> None:
    runner, _, engine = tiered()
    evicted(runner, engine)
    result = drive(engine, [request("again", LONG, max_tokens=5)])["again"]
    assert result.tokens == runner.greedy(LONG, 5)
    assert result.prompt.cached_tokens == 40
    assert runner.tokens_computed == 1 + 4
    assert (engine.stats.restored_tokens, engine.stats.tier.read) == (40, 10)
    # It is in memory now.
    drive(engine, [request("thrice", LONG, max_tokens=5)])
    assert engine.stats.tier.read == 10


def test_another_engine_goes_on_from_what_one_has_left() -> None:
    runner, tier, engine = tiered()
    first = drive(engine, [request("a", LONG, max_tokens=20)])["a"]
    fresh = FakeRunner()
    after = make_engine(fresh, tier=tier)
    conversation = [*LONG, *first.tokens, 7, 8, 9]
    result = drive(after, [request("b", conversation, max_tokens=5)])["b"]
    assert result.tokens == runner.greedy(conversation, 5)
    assert result.prompt.cached_tokens == 60  # answers are kept as well; their last is not computed
    assert fresh.tokens_computed == 4 + 4


def test_what_is_in_memory_is_not_fetched() -> None:
    _, tier, engine = tiered(n_blocks=64)
    drive(engine, [request("a", LONG[:20], max_tokens=1)])
    drive(make_engine(FakeRunner(), tier=tier), [request("b", LONG, max_tokens=1)])
    drive(engine, [request("c", LONG, max_tokens=1)])
    assert [len(fetch.names) for fetch in tier.fetches] == [0, 0]
    assert tier.read == 4 + 6  # the second engine's memory had nothing, the first one's 4 blocks


def test_others_go_on_while_blocks_are_on_their_way() -> None:
    runner, tier, engine = tiered(n_blocks=40)
    drive(make_engine(FakeRunner(), tier=tier), [request("a", LONG, max_tokens=1)])
    engine.add(request("running", OTHER, max_tokens=30), 0.0)
    collector = Collector()
    while not collector.results.get("running"):
        collector.take(engine.step(0.0))
    tier.arriving = 0
    engine.add(request("waiting", LONG, max_tokens=3), 0.0)
    for _ in range(10):
        collector.take(engine.step(0.0))
        check_blocks(engine)
    assert len(collector.results["running"].tokens) >= 10
    assert "waiting" not in collector.results
    assert tier.waited == 0  # there was something to do
    tier.arriving = 3
    while engine.has_work:
        collector.take(engine.step(0.0))
        check_blocks(engine)
    check_idle(engine)
    assert collector.results["running"].tokens == runner.greedy(OTHER, 30)
    assert collector.results["waiting"].tokens == runner.greedy(LONG, 3)
    assert collector.results["waiting"].prompt.cached_tokens == 40


def test_with_nothing_else_to_do_the_engine_waits_for_the_tier() -> None:
    runner, tier, engine = tiered()
    evicted(runner, engine)
    tier.arriving = 1
    steps = engine.stats.steps
    drive(engine, [request("again", LONG, max_tokens=1)], pace=0)
    assert tier.waited == 10
    assert engine.stats.steps == steps + 1


def test_requests_with_one_beginning_fetch_it_once() -> None:
    runner, tier, engine = tiered(n_blocks=64)
    drive(make_engine(FakeRunner(), tier=tier), [request("a", LONG, max_tokens=1)])
    tier.arriving = 2
    prompts = {f"r{i}": [*LONG[:40], i, i + 1] for i in range(4)}
    requests = [request(id, prompt, max_tokens=4) for id, prompt in prompts.items()]
    results = drive(engine, requests, pace=0)
    for id, prompt in prompts.items():
        assert results[id].tokens == runner.greedy(prompt, 4)
        assert results[id].prompt.cached_tokens == 40
    assert tier.read == 10
    assert engine.stats.free_blocks >= 64 - 10 - 4 * 2


@pytest.mark.parametrize("lost", [0, 1, 5, 9])
def test_what_cannot_be_read_is_computed(lost: int) -> None:
    runner, tier, engine = tiered()
    evicted(runner, engine)
    tier.lost = {names_of(LONG)[lost]}
    result = drive(engine, [request("again", LONG, max_tokens=5)])["again"]
    assert result.tokens == runner.greedy(LONG, 5)
    assert result.prompt.cached_tokens == lost * SIZE
    assert tier.read == lost
    assert runner.tokens_computed == 41 - lost * SIZE + 4


def test_a_tier_that_never_answers_is_not_waited_for_for_ever() -> None:
    runner, tier, engine = tiered()
    evicted(runner, engine)
    tier.arriving = 0
    result = drive(engine, [request("again", LONG, max_tokens=5)], max_steps=40)["again"]
    assert result.tokens == runner.greedy(LONG, 5)
    assert result.prompt.cached_tokens == 0
    assert tier.fetches[-1].cancelled


def test_a_tier_that_is_slow_and_goes_on_is_waited_for() -> None:
    runner, tier, engine = tiered()
    evicted(runner, engine)
    tier.arriving = 1
    result = drive(engine, [request("again", LONG, max_tokens=5)], pace=1.5)["again"]
    assert result.tokens == runner.greedy(LONG, 5)
    assert result.prompt.cached_tokens == 40


@pytest.mark.parametrize("arriving", [0, 2])
def test_a_request_is_dropped_while_its_blocks_are_on_their_way(arriving: int) -> None:
    runner, tier, engine = tiered()
    evicted(runner, engine)
    tier.arriving = arriving
    engine.add(request("again", LONG, max_tokens=5), 0.0)
    for _ in range(3):
        engine.step(0.0)
    assert engine.abort("again")
    assert tier.fetches[-1].cancelled
    engine.step(0.0)
    check_idle(engine)
    tier.arriving = None
    result = drive(engine, [request("once more", LONG, max_tokens=5)])["once more"]
    assert result.tokens == runner.greedy(LONG, 5)


def test_a_more_urgent_request_takes_the_place_of_one_that_waits_for_its_blocks() -> None:
    runner, tier, engine = tiered(n_blocks=16)
    evicted(runner, engine)
    tier.arriving = 1
    engine.add(request("again", LONG, max_tokens=5, priority=1), 0.0)
    collector = Collector()
    for _ in range(4):
        collector.take(engine.step(0.0))
    engine.add(request("urgent", OTHER, max_tokens=5), 0.0)
    while engine.has_work:
        collector.take(engine.step(0.0))
        check_blocks(engine)
    check_idle(engine)
    assert engine.stats.preemptions == 1
    for id, prompt in (("again", LONG), ("urgent", OTHER)):
        assert collector.results[id].tokens == runner.greedy(prompt, 5)


def test_what_is_quicker_to_compute_is_computed() -> None:
    runner, tier, engine = tiered()
    evicted(runner, engine)
    for _ in range(20):
        engine.step_time.observe(Work(100, 5000, 1), 0.1)  # a millisecond for each token
    for seconds_each, fetched in ((0.1, False), (0.001, True)):
        tier.seconds_each = seconds_each
        result = drive(engine, [request("again", LONG, max_tokens=5)])["again"]
        assert result.tokens == runner.greedy(LONG, 5)
        assert (result.prompt.cached_tokens == 40) == fetched
        drive(engine, [request("other", OTHER, max_tokens=22, salt=str(fetched))])


def test_prompts_that_are_scored_are_computed() -> None:
    runner, tier, engine = tiered()
    evicted(runner, engine)
    result = drive(engine, [request("again", LONG, max_tokens=5, prompt_logprobs=1)])["again"]
    assert result.prompt.cached_tokens == 0
    assert len(result.prompt.logprobs) == 41
    assert not tier.fetches


def test_nobody_finds_what_was_kept_under_another_salt() -> None:
    """Secrets of many tenants, far more than memory holds, all behind the same words."""
    tier = MemoryTier(FakeRunner().block_bytes)
    rng = random.Random(5)
    secrets = {f"tenant {i}": [rng.randrange(40) for _ in range(20)] for i in range(12)}
    for _ in range(3):  # each time with an empty memory, as after a restart
        runner = FakeRunner(n_blocks=24)
        engine = make_engine(runner, tier=tier, max_sequences=4)
        prompts = {salt: [*LONG[:16], *secret] for salt, secret in secrets.items()}
        results = drive(
            engine,
            [request(salt, p, salt=salt, max_tokens=9) for salt, p in prompts.items()],
        )
        for salt, prompt in prompts.items():
            assert results[salt].tokens == runner.greedy(prompt, 9)
    assert engine.stats.tier.read > 0
    # One tenant's words, asked for by another one: what the others have left is no help.
    for salt in ("tenant 13", ""):
        read = tier.read
        result = drive(engine, [request("x", prompts["tenant 3"], salt=salt, max_tokens=1)])["x"]
        assert result.prompt.cached_tokens == 0
        assert tier.read == read


def test_it_needs_the_prefix_cache() -> None:
    with pytest.raises(ValueError, match="prefix_caching"):
        tiered(prefix_caching=False)


def names_of(prompt: list[int]) -> list[bytes]:
    names = [root_hash("", "")]
    for start in range(0, len(prompt) // SIZE * SIZE, SIZE):
        names.append(block_hash(names[-1], array("i", prompt[start : start + SIZE]).tobytes()))
    return names[1:]
