"""Random schedules: arrivals, priorities, samples, salts, aborts, faults, too little memory.

Whatever happens, after every step each block is accounted for; at the end each sample of each
request has had exactly one final event, the tokens of what ran through are the model's own true
continuation, those of what did not are a prefix of it, and nothing is left behind.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from engine.fake_runner import FakeRunner
from engine.helpers import Collector, check_blocks, check_idle, embedding, make_engine, request
from engine.memory_tier import MemoryTier
from tidemill.engine.base import Request
from tidemill.engine.errors import ContextLengthError, QueueFullError

VOCAB = 12  # small: prompts share prefixes often
POISON, NAN = 10, 11


@dataclass(frozen=True)
class Setup:
    n_blocks: int
    block_size: int
    max_batch_tokens: int
    max_prefill_tokens: int
    max_sequences: int
    max_logit_rows: int
    max_preemptions: int
    prefix_caching: bool
    tier_seed: int | None


setups = st.builds(
    Setup,
    n_blocks=st.sampled_from([3, 8, 12, 20, 60]),
    block_size=st.sampled_from([1, 2, 4, 16]),
    max_batch_tokens=st.sampled_from([1, 2, 7, 32]),
    max_prefill_tokens=st.sampled_from([1, 3, 32]),
    max_sequences=st.sampled_from([1, 2, 5, 16]),
    max_logit_rows=st.sampled_from([1, 2, 16]),
    max_preemptions=st.sampled_from([0, 1, 8]),
    prefix_caching=st.booleans(),
    tier_seed=st.sampled_from([None, 1, 2]),
)

# Few letters and a common beginning, so that there is much to share.
plain = st.integers(0, 3)
prompts = st.one_of(
    st.lists(plain, min_size=1, max_size=30),
    st.integers(1, 40).map(lambda n: [0, 1, 2, 3] * (n // 4) + [1] * (n % 4 + 1)),
)


@st.composite
def actions(draw):
    """A list of (kind, argument) that a driver plays against an engine."""
    script: list[tuple[str, object]] = []
    for number in range(draw(st.integers(1, 14))):
        prompt = draw(prompts)
        fault = draw(st.sampled_from([None] * 8 + [POISON, NAN]))
        if fault is not None:
            prompt = [*prompt, fault]
        n = draw(st.sampled_from([1, 1, 1, 2, 4]))
        params = {
            "n": n,
            "best_of": draw(st.sampled_from([None, None, None, n + 1])),
            "max_tokens": draw(st.sampled_from([0, 1, 3, 8, 25])),
            "prompt_logprobs": draw(st.sampled_from([None, None, None, 1])),
            "logprobs": draw(st.sampled_from([None, None, 2])),
            "echo": draw(st.sampled_from([False, False, True])),
            "stop_token_ids": draw(st.sampled_from([(), (), (5,)])),
            # Faulty tokens may only come in prompts, so that the outcome is known beforehand.
            "logit_bias": {POISON: -100.0, NAN: -100.0},
        }
        r = request(
            f"r{number}", prompt, priority=draw(st.integers(0, 2)),
            salt=draw(st.sampled_from(["", "", "x"])), **params,
        )  # fmt: skip
        script.append(("add", replace(r, urgent=draw(st.sampled_from([False, False, True])))))
        for _ in range(draw(st.integers(0, 3))):
            script.append(("step", draw(st.integers(1, 6))))
        if draw(st.integers(0, 4)) == 0:
            script.append(("abort", f"r{draw(st.integers(0, number))}"))
        if draw(st.integers(0, 9)) == 0:
            script.append(("fault", None))
    return script


@given(setups, actions())
@settings(
    derandomize=True, max_examples=250, deadline=None, suppress_health_check=list(HealthCheck)
)
def test_random_schedules(setup: Setup, script: list[tuple[str, object]]) -> None:
    runner = FakeRunner(
        setup.n_blocks, setup.block_size, VOCAB, 32, setup.max_logit_rows,
        poison=POISON, nan_after=NAN,
    )  # fmt: skip
    runner._rows[:, [POISON, NAN]] = -50.0
    tier = None
    if setup.prefix_caching and setup.tier_seed is not None:
        tier = MemoryTier(runner.block_bytes, random.Random(setup.tier_seed))
    engine = make_engine(
        runner,
        tier=tier,
        max_context=60,
        max_waiting=10,
        max_batch_tokens=setup.max_batch_tokens,
        max_prefill_tokens=setup.max_prefill_tokens,
        max_sequences=setup.max_sequences,
        max_preemptions=setup.max_preemptions,
        prefix_caching=setup.prefix_caching,
    )
    collector = Collector()
    admitted: dict[str, Request] = {}
    groups = []
    aborted: set[str] = set()
    shaken = False

    def step() -> None:
        collector.take(engine.step(0.0))
        check_blocks(engine)
        assert len(engine._scheduler.running) <= setup.max_sequences

    for kind, argument in script:
        if kind == "add":
            try:
                engine.add(argument, 0.0)
            except ContextLengthError:
                longest = len(argument.prompt_token_ids) + argument.params.max_tokens
                assert longest > min(60, setup.n_blocks * setup.block_size)
            except QueueFullError:
                assert len(engine._scheduler.waiting) >= 10
            else:
                admitted[argument.id] = argument
                groups.append(engine._groups[argument.id])
        elif kind == "step":
            for _ in range(argument):
                step()
        elif kind == "abort":
            if engine.abort(argument):
                aborted.add(argument)
            check_blocks(engine)
        else:
            runner.fail_next, shaken = 1, True
            step()
            runner.fail_next = 0
    # Every step advances somebody, unless a preemption threw work away (bounded in number).
    work = sum((len(r.prompt_token_ids) + 26) * r.params.n_samples for r in admitted.values())
    limit = work * (2 + setup.max_preemptions) + 20
    if tier is not None:  # of which each take gives more than one block, or ends it, on average
        limit *= 4
    while engine.has_work:
        step()
        limit -= 1
        assert limit, "the engine does not come to an end"
    check_idle(engine)

    assert set(collector.results) == set(admitted)
    for group in groups:
        assert all(s.preemptions <= setup.max_preemptions for s in group.samples)
    if engine.stats.preemptions:
        event("preempted")
    if engine.stats.restored_tokens:
        event("restored")
    for id, r in admitted.items():
        result = collector.results[id]
        assert result.done
        faulty = POISON in r.prompt_token_ids or (
            # The row after the faulty token, which is the prompt's last, is looked at.
            NAN in r.prompt_token_ids and r.params.max_tokens > 0
        )
        truth = runner.greedy(r.prompt_token_ids, r.params.max_tokens,
                              frozenset(r.params.stop_token_ids))  # fmt: skip
        if result.error is not None:
            assert faulty or shaken
            assert not result.samples or not faulty
            continue
        assert sorted(result.samples) == list(range(r.params.n))
        if result.prompt is not None:
            assert (result.prompt.logprobs is None) == (r.params.prompt_scores is None)
        if r.params.prompt_scores is not None and result.prompt is not None:
            reported = [entry and entry[0].token_id for entry in result.prompt.logprobs]
            assert reported == [None, *r.prompt_token_ids[1:]]
        for sample in result.samples.values():
            if sample.finish.reason == "abort":
                assert id in aborted
                assert sample.tokens == truth[: len(sample.tokens)]
            else:
                assert not faulty
                assert sample.tokens == truth
                ended = bool(truth) and truth[-1] in r.params.stop_token_ids
                assert sample.finish.reason == ("stop" if ended else "length")


@pytest.mark.parametrize("seed", range(3))
def test_pressure_with_everything_on(seed: int) -> None:
    """One long run at several times the memory, deterministic, with every feature at once."""
    rng = random.Random(seed)
    runner = FakeRunner(n_blocks=30, block_size=4, vocab_size=VOCAB)
    tier = MemoryTier(runner.block_bytes, rng)
    engine = make_engine(runner, tier=tier, max_context=80, max_sequences=12, max_preemptions=3)
    collector = Collector()
    requests: dict[str, Request] = {}
    for i in range(250):
        prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 40))]
        place = {"priority": rng.randrange(3), "salt": rng.choice(["", "a"])}
        if rng.random() < 0.2:
            r = embedding(f"r{i}", prompt, rng.choice(["mean", "last"]), **place)
        else:
            r = request(
                f"r{i}", prompt, n=rng.choice([1, 1, 2, 3]), max_tokens=rng.randrange(1, 40),
                prompt_logprobs=rng.choice([None, None, 0]), **place,
            )  # fmt: skip
        r = replace(r, urgent=rng.random() < 0.2)
        requests[r.id] = r
        engine.add(r, 0.0)
        for _ in range(rng.randrange(3)):
            collector.take(engine.step(0.0))
            check_blocks(engine)
        if rng.random() < 0.1:
            engine.abort(f"r{rng.randrange(i + 1)}")
    while engine.has_work:
        collector.take(engine.step(0.0))
        check_blocks(engine)
    check_idle(engine)
    assert engine.stats.preemptions > 20
    assert engine.stats.cached_prompt_tokens > 0
    assert engine.stats.restored_tokens > 0
    for id, r in requests.items():
        if r.pooling is not None:
            found, finish = collector.results[id].embedding, collector.results[id].samples[0].finish
            assert (found is None) == (finish.reason == "abort")
            if found is not None:
                n = len(r.prompt_token_ids)
                ends = range(1 if r.pooling == "mean" else n, n + 1)
                states = [runner.hidden_after(r.prompt_token_ids[:end]) for end in ends]
                wanted = np.mean(states, axis=0, dtype=np.float64)
                assert found.tolist() == pytest.approx(wanted.tolist(), rel=1e-6)
            continue
        truth = runner.greedy(r.prompt_token_ids, r.params.max_tokens)
        for sample in collector.results[id].samples.values():
            whole = sample.finish.reason != "abort"
            assert sample.tokens == truth[: None if whole else len(sample.tokens)]
