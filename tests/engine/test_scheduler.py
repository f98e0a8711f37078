"""What runs when: bounds on steps and gaps, order, preemption, and KV memory near its end."""

from __future__ import annotations

import random

import numpy as np
import pytest

from engine.fake_runner import FakeRunner
from engine.helpers import Collector, check_blocks, check_idle, drive, make_engine, request
from tidemill.engine.base import TokenEvent
from tidemill.engine.engine import Engine


def prompt_of(n: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(40) for _ in range(n)]


def tokens_of(events, id: str) -> int:
    return sum(isinstance(e, TokenEvent) and e.request_id == id for e in events)


def test_every_decode_goes_on_in_every_step_while_a_long_prompt_prefills() -> None:
    """The stated bound: with others decoding, a step holds at most max_prefill_tokens prompt
    tokens, every decode gets a token in every step, and the prompt advances in every step."""
    runner = FakeRunner(n_blocks=300, max_batch_tokens=200)
    runner.keep_batches = True
    engine = make_engine(runner, max_context=600, max_batch_tokens=64, max_prefill_tokens=10)
    for i in range(4):
        engine.add(request(str(i), prompt_of(3, i), max_tokens=80), 0.0)
    for _ in range(2):
        engine.step(0.0)
    engine.add(request("long", prompt_of(300), max_tokens=5), 0.0)
    runner.batches.clear()
    for step in range(30):
        events = engine.step(0.0)
        assert [tokens_of(events, str(i)) for i in range(4)] == [1] * 4
        assert len(runner.batches[-1].tokens) == 4 + 10
        assert tokens_of(events, "long") == (step == 29)


def test_prompts_alone_use_the_whole_budget() -> None:
    runner = FakeRunner(n_blocks=300, max_batch_tokens=50)
    engine = make_engine(runner, max_context=600, max_batch_tokens=64, max_prefill_tokens=10)
    drive(engine, [request("long", prompt_of(300), max_tokens=1)])
    assert runner.steps == 6  # the runner's own limit of 50 holds, too


def test_more_decodes_than_budget_cannot_be() -> None:
    runner = FakeRunner(max_batch_tokens=64, max_logit_rows=5)
    engine = make_engine(runner, max_batch_tokens=12, max_sequences=100)
    requests = [request(str(i), prompt_of(5, i)) for i in range(20)]
    results = drive(engine, requests)
    for r in requests:
        assert results[r.id].tokens == runner.greedy(r.prompt_token_ids, 16)


def start_order(engine: Engine, max_steps: int = 500) -> list[str]:
    order: list[str] = []
    while engine.has_work:
        for event in engine.step(0.0):
            if isinstance(event, TokenEvent) and event.request_id not in order:
                order.append(event.request_id)
        max_steps -= 1
        assert max_steps
    return order


def test_priority_then_arrival() -> None:
    engine = make_engine(FakeRunner(), max_sequences=1)
    for id, priority in (("a", 5), ("b", 0), ("c", 5), ("d", -3), ("e", 0)):
        engine.add(request(id, prompt_of(4), priority=priority), 0.0)
    assert start_order(engine) == ["d", "b", "e", "a", "c"]


def test_priorities_of_narrow_integer_types() -> None:
    engine = make_engine(FakeRunner(), max_sequences=1)
    for id, priority in (("a", np.int8(100)), ("b", 0), ("c", np.uint8(200)), ("d", np.int8(-100))):
        engine.add(request(id, prompt_of(4), priority=priority), 0.0)
    assert start_order(engine) == ["d", "b", "a", "c"]


def test_a_more_urgent_request_takes_the_place_of_a_less_urgent_one() -> None:
    runner = FakeRunner(n_blocks=24)
    engine = make_engine(runner, max_sequences=2)
    low = [request(f"low{i}", prompt_of(20, i), priority=1, max_tokens=20) for i in range(2)]
    for r in low:
        engine.add(r, 0.0)
    collector = Collector()
    for _ in range(5):
        collector.take(engine.step(0.0))
    urgent = request("urgent", prompt_of(30, 7), priority=0)
    engine.add(urgent, 0.0)
    collector.take(engine.step(0.0))
    assert {s.group.request.id for s in engine._scheduler.running} == {"urgent", "low0"}
    check_blocks(engine)
    while engine.has_work:
        collector.take(engine.step(0.0))
    for r in (urgent, *low):
        expected = runner.greedy(r.prompt_token_ids, r.params.max_tokens)
        assert collector.results[r.id].tokens == expected
    assert engine.stats.preemptions == 1


def test_nobody_is_preempted_for_a_request_that_still_would_not_fit() -> None:
    engine = make_engine(FakeRunner(n_blocks=20), max_sequences=3)
    engine.add(request("first", prompt_of(40), priority=0, max_tokens=30), 0.0)
    engine.add(request("low", prompt_of(4), priority=1, max_tokens=20), 0.0)
    collector = Collector()
    for _ in range(4):
        collector.take(engine.step(0.0))
    engine.add(request("urgent", prompt_of(60, 1), priority=0), 0.0)
    for _ in range(3):
        collector.take(engine.step(0.0))
    assert [s.group.request.id for s in engine._scheduler.running] == ["first", "low"]
    assert engine.stats.preemptions == 0
    while engine.has_work:
        collector.take(engine.step(0.0))
    assert all(result.done for result in collector.results.values())


@pytest.mark.parametrize("max_preemptions", [0, 1, 3])
@pytest.mark.parametrize("caching", [True, False])
def test_exhausted_kv_preempts_boundedly_and_changes_no_text(
    max_preemptions: int, caching: bool
) -> None:
    runner = FakeRunner(n_blocks=24)
    engine = make_engine(
        runner, max_sequences=16, max_preemptions=max_preemptions, prefix_caching=caching
    )
    requests = [request(f"r{i}", prompt_of(3 + i % 4, i), max_tokens=60) for i in range(16)]
    for r in requests:
        engine.add(r, 0.0)
    groups = list(engine._groups.values())
    results = drive(engine)
    for r in requests:
        assert results[r.id].tokens == runner.greedy(r.prompt_token_ids, 60)
    counts = [s.preemptions for group in groups for s in group.samples]
    assert max(counts) <= max_preemptions
    if max_preemptions:
        assert sum(counts) > 0
    assert engine.stats.preemptions == sum(counts)


def test_who_owns_all_it_needs_is_left_alone_even_by_the_more_urgent() -> None:
    runner = FakeRunner(n_blocks=20)
    engine = make_engine(runner, max_preemptions=1)
    scheduler = engine._scheduler
    low = request("low", prompt_of(4), priority=9, max_tokens=36)
    engine.add(low, 0.0)
    victim = scheduler.waiting[0]
    victim.preemptions = 1  # as if it had been preempted as often as may be
    collector = Collector()
    collector.take(engine.step(0.0))
    assert victim.reserved
    assert len(victim.blocks) == 10
    scheduler._growth = 0.0  # optimistic: lets the urgent ones in, although they will not fit
    urgent = [request(f"u{i}", prompt_of(12, i + 1), max_tokens=25) for i in range(2)]
    for r in urgent:
        engine.add(r, 0.0)
    while engine.has_work:
        collector.take(engine.step(0.0))
        check_blocks(engine)
        assert victim.slot >= 0 or victim.finished
    assert engine.stats.preemptions > 0
    for r in (low, *urgent):
        expected = runner.greedy(r.prompt_token_ids, r.params.max_tokens)
        assert collector.results[r.id].tokens == expected


def test_a_prompt_preempted_half_way_reports_each_logprob_once() -> None:
    runner = FakeRunner(n_blocks=20)
    engine = make_engine(runner, max_prefill_tokens=2)
    first = request("first", prompt_of(4), max_tokens=60)
    engine.add(first, 0.0)
    collector = Collector()
    collector.take(engine.step(0.0))
    engine._scheduler._growth = 0.0
    scored = request("scored", prompt_of(70, 1), prompt_logprobs=0, max_tokens=2)
    engine.add(scored, 0.0)
    for _ in range(15):
        collector.take(engine.step(0.0))
    assert engine.stats.preemptions == 1
    assert "scored" not in collector.results
    while engine.has_work:
        collector.take(engine.step(0.0))
    result = collector.results["scored"]
    entries = result.prompt.logprobs
    assert entries[0] is None
    assert [e[0].token_id for e in entries[1:]] == list(scored.prompt_token_ids[1:])
    assert result.tokens == runner.greedy(scored.prompt_token_ids, 2)


def test_goodput_near_full_kv_stays_near_the_saturated_one() -> None:
    """At twice the KV demand and more, recomputation must not eat the throughput: tokens computed
    per token generated stay close to what they are with memory enough."""

    def work(n_blocks: int) -> tuple[float, int, int]:
        runner = FakeRunner(n_blocks=n_blocks, max_batch_tokens=128)
        engine = make_engine(runner, max_sequences=32, max_batch_tokens=128)
        requests = [request(f"r{i}", prompt_of(16, i), max_tokens=48) for i in range(64)]
        drive(engine, requests, check=False)
        check_idle(engine)
        return runner.tokens_computed / (64 * 48), runner.steps, engine.stats.preemptions

    roomy, _, none = work(32 * 16)
    assert none == 0
    for share in (2, 4):
        tight, steps, preemptions = work(32 * 16 // share)
        assert tight < roomy * 1.25
        assert preemptions <= 64
        # 64 x 48 tokens over the sequences that fit on average: no more than half is lost.
        fitting = 32 * 16 // share / 12
        assert steps < 1.6 * 64 * 48 / fitting


def test_sequences_that_fit_exactly_run_together_without_preemption() -> None:
    runner = FakeRunner(n_blocks=16)
    engine = make_engine(runner)
    requests = [request(f"r{i}", prompt_of(16, i), max_tokens=1) for i in range(4)]
    for r in requests:
        engine.add(r, 0.0)
    engine._scheduler._growth = 0.0  # only the blocks of the prompts count
    drive(engine)
    assert runner.steps == 2
    assert engine.stats.preemptions == 0


def test_a_long_request_is_not_starved_by_short_ones_behind_it() -> None:
    runner = FakeRunner(n_blocks=20)
    engine = make_engine(runner)
    for i in range(6):
        engine.add(request(f"a{i}", prompt_of(8, i), max_tokens=12), 0.0)
    long = request("long", prompt_of(70, 50), max_tokens=8)
    engine.add(long, 0.0)
    collector = Collector()
    arrived = 0
    for step in range(400):
        if step % 2 == 0 and arrived < 100:  # a stream of short ones that never dries up
            arrived += 1
            engine.add(request(f"b{arrived}", prompt_of(4, arrived), max_tokens=6), 0.0)
        collector.take(engine.step(0.0))
        if "long" in collector.results and collector.results["long"].done:
            break
    assert step < 80
    assert collector.results["long"].tokens == runner.greedy(long.prompt_token_ids, 8)


def test_canary_no_secret_reaches_another_conversation() -> None:
    """Distinct secrets in salted prompts, concurrent, through forced evictions and preemptions.
    The fake model's tokens depend on every token it reads, so an answer that equals the true one
    cannot have been computed over anybody else's KV; on top of that the blocks that a step reads
    are compared with the secrets."""
    runner = FakeRunner(n_blocks=40)
    engine = make_engine(runner, max_sequences=6)
    secrets = {f"u{i}": prompt_of(12, 1000 + i) for i in range(30)}
    shared = prompt_of(8)
    forward = runner.forward

    def spying_forward(batch):
        logits = forward(batch)
        for s, table in enumerate(batch.block_tables):
            length = int(batch.context_lens[s])
            seen = runner._blocks[table[: -(-length // 4)]].reshape(-1)[:length]
            present = [u for u, secret in secrets.items() if contains(seen.tolist(), secret)]
            assert len(present) == 1 or (length < 20 and not present), f"one sequence: {present}"
        return logits

    def contains(tokens: list[int], secret: list[int]) -> bool:
        return any(tokens[i : i + 12] == secret for i in range(len(tokens) - 11))

    runner.forward = spying_forward
    expected, collector = {}, Collector()
    for turn in range(2):
        for user, secret in secrets.items():
            prompt = secret + shared if user < "u2" else shared + secret
            id = f"{user}/{turn}"
            expected[id] = runner.greedy(prompt, 30)
            salt = user if turn else ""
            engine.add(request(id, prompt, max_tokens=30, salt=salt), 0.0)
        while engine.has_work:
            collector.take(engine.step(0.0))
            check_blocks(engine)
    assert engine.stats.preemptions > 0
    for id, tokens in expected.items():
        assert collector.results[id].error is None, collector.results[id].error
        assert collector.results[id].tokens == tokens


def test_the_block_tables_end_where_the_context_does() -> None:
    runner = FakeRunner()
    runner.keep_batches = True
    engine = make_engine(runner)
    drive(engine, [request("a", prompt_of(9)), request("b", prompt_of(2))])
    for batch in runner.batches:
        assert batch.block_tables.shape[1] == -(-int(batch.context_lens.max()) // 4)
        assert np.all(batch.block_tables >= -1)
