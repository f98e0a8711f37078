"""What fails in the engine, and what is dropped: nobody else pays, and nothing is left."""

from __future__ import annotations

import random

import pytest

from engine.fake_runner import FakeRunner
from engine.helpers import (
    Collector,
    check_blocks,
    check_idle,
    drive,
    make_engine,
    prompt_of,
    request,
)
from tidemill.engine.base import FinishEvent
from tidemill.engine.errors import QueueFullError

# ---- failures ----------------------------------------------------------------------------------


def test_logits_that_are_not_finite_fail_only_their_request() -> None:
    runner = FakeRunner(nan_after=39)
    engine = make_engine(runner)
    good = [request(f"g{i}", prompt_of(5 + i, i, 30), logit_bias={39: -100}) for i in range(5)]
    bad = [
        request("b0", [1, 2, 39]),
        request("b1", [39], n=3),
        request("b2", [3], logit_bias={39: 100}),
    ]
    results = drive(engine, [good[0], bad[0], *good[1:3], bad[1], *good[3:], bad[2]])
    for r in good:
        assert results[r.id].done
        assert results[r.id].error is None
        assert len(results[r.id].tokens) == 16
    for r in bad:
        assert "not finite" in results[r.id].error.message
    assert results["b2"].tokens == [39]
    assert engine.stats.failures == 3


def test_samples_of_a_request_that_failed_are_not_run_any_more() -> None:
    runner = FakeRunner(poison=39)
    engine = make_engine(runner)
    bad = request("bad", [1, 2], n=3, logit_bias={39: 100})  # all three choose the poison
    good = [request(f"g{i}", prompt_of(6, i, 30), logit_bias={39: -100}) for i in range(3)]
    results = drive(engine, [good[0], bad, *good[1:]])
    assert "poisoned" in results["bad"].error.message
    assert [s.tokens for s in results["bad"].samples.values()] == [[39]] * 3
    assert all(len(results[r.id].tokens) == 16 for r in good)


def test_a_prompt_that_scores_nan_fails() -> None:
    engine = make_engine(FakeRunner(nan_after=39))
    result = drive(engine, [request("r", [1, 39, 2, 3], prompt_logprobs=0)])["r"]
    assert "not finite" in result.error.message


@pytest.mark.parametrize("n", [1, 3])
def test_a_raising_step_fails_only_the_request_at_fault(n: int) -> None:
    runner = FakeRunner(poison=39)
    engine = make_engine(runner)
    good = [request(f"g{i}", prompt_of(9, i, 30), n=n, logit_bias={39: -100}) for i in range(5)]
    bad = [request("b0", [1, 39, 2]), request("b1", [*prompt_of(50, 1, 30), 39])]
    results = drive(engine, [*good[:2], *bad, *good[2:]])
    for r in good:
        assert [len(s.tokens) for s in results[r.id].samples.values()] == [16] * n
    for r in bad:
        assert "a poisoned token" in results[r.id].error.message
    # Nothing of a failed step may be found in the prefix cache.
    retry = drive(engine, [request("again", good[0].prompt_token_ids, logit_bias={39: -100})])
    assert retry["again"].tokens == results["g0"].samples[0].tokens


def test_a_passing_fault_costs_nobody_anything() -> None:
    runner, prompts = FakeRunner(), [prompt_of(9 + i, i) for i in range(6)]
    engine = make_engine(runner)
    for i, prompt in enumerate(prompts):
        engine.add(request(str(i), prompt), 0.0)
    collector = Collector()
    for step in range(60):
        if step % 4 == 1 and engine.stats.running > 1:
            runner.fail_next = 1
        collector.take(engine.step(0.0))
        check_blocks(engine)
    for i, prompt in enumerate(prompts):
        assert collector.results[str(i)].tokens == runner.greedy(prompt, 16)
    check_idle(engine)


def test_a_broken_device_fails_everything_it_is_asked_and_nothing_hangs() -> None:
    runner = FakeRunner()
    engine = make_engine(runner)
    runner.fail_next = 10**9
    results = drive(engine, [request(str(i), prompt_of(30, i), n=2) for i in range(20)])
    assert all("the device is busy" in r.error.message for r in results.values())
    runner.fail_next = 0
    assert drive(engine, [request("r", [1])])["r"].tokens == runner.greedy([1], 16)


def test_a_failing_copy_fails_only_that_request() -> None:
    runner = FakeRunner()
    runner.fail_copies = True
    engine = make_engine(runner)
    results = drive(
        engine, [request("a", [1, 2], n=2), request("b", [3]), request("c", [1] * 4, n=2)]
    )
    assert "no copying" in results["a"].error.message
    assert results["b"].tokens == runner.greedy([3], 16)
    assert len(results["c"].samples) == 2  # a prompt of full blocks has nothing to copy


def test_a_runner_that_gives_the_wrong_shape_is_noticed() -> None:
    runner = FakeRunner()
    forward = runner.forward
    runner.forward = lambda batch: forward(batch)[:, :-1]
    result = drive(make_engine(runner), [request("r", [1])])["r"]
    assert "shape (1, 39)" in result.error.message


# ---- aborts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["queued", "prefill", "decode", "forked", "preempted", "held"])
def test_abort_in_any_state(state: str) -> None:
    runner = FakeRunner(n_blocks=80)
    engine = make_engine(runner, max_sequences=6)
    scheduler = engine._scheduler
    n, best_of = {"forked": (3, None), "held": (2, 3)}.get(state, (1, None))
    victim = request("v", prompt_of(90), n=n, best_of=best_of, max_tokens=20, priority=1)
    collector = Collector()
    if state == "queued":
        for i in range(6):
            engine.add(request(f"q{i}", prompt_of(2, i), max_tokens=30), 0.0)
    engine.add(victim, 0.0)
    bystander = request("b", prompt_of(11, 5), max_tokens=40)
    for step in range({"queued": 3, "prefill": 2}.get(state, 9)):
        if step == 1:
            engine.add(bystander, 0.0)
        collector.take(engine.step(0.0))

    samples = engine._groups["v"].samples
    if state == "preempted":
        scheduler._preempt(samples[0])
    in_state = {
        "queued": samples[0] in scheduler.waiting and not samples[0].preemptions,
        "prefill": 0 < samples[0].computed < 90,
        "decode": samples[0].n_output > 2,
        "forked": len(samples) == 3 and all(s.slot >= 0 for s in samples),
        "preempted": samples[0] in scheduler.waiting and samples[0].n_output > 2,
        "held": len((engine._groups["v"].held or [[]] * 3)[2]) > 2,
    }
    assert in_state[state]
    assert engine.abort("v")
    check_blocks(engine)
    everywhere = scheduler.running + scheduler.waiting
    assert not any(s.group.request is victim for s in everywhere)
    assert not engine.abort("v")
    assert engine.has_work
    collector.take(engine.step(0.0))
    reasons = [s.finish.reason for s in collector.results["v"].samples.values()]
    assert reasons == ["abort"] * n
    while engine.has_work:
        collector.take(engine.step(0.0))
    check_idle(engine)
    assert collector.results["b"].tokens == runner.greedy(bystander.prompt_token_ids, 40)


def test_aborting_what_is_unknown_or_over_says_so() -> None:
    engine = make_engine(FakeRunner())
    assert not engine.abort("never")
    drive(engine, [request("r", [1])])
    assert not engine.abort("r")
    assert not engine.has_work


def test_an_abort_of_one_sample_set_tells_only_of_what_had_not_ended() -> None:
    runner = FakeRunner()
    engine = make_engine(runner)
    engine.add(request("r", prompt_of(5), n=4, temperature=1.0, seed=2, max_tokens=60,
                       stop_token_ids=[0, 1, 2]), 0.0)  # fmt: skip
    collector = Collector()
    while not any(s.finish for r in collector.results.values() for s in r.samples.values()):
        collector.take(engine.step(0.0))
    engine.abort("r")
    events = engine.step(0.0)
    collector.take(events)
    assert all(isinstance(e, FinishEvent) and e.reason == "abort" for e in events)
    reasons = sorted(s.finish.reason for s in collector.results["r"].samples.values())
    assert len(reasons) == 4
    assert reasons[-1] == "stop"
    check_idle(engine)


def test_thousands_of_short_requests_and_aborts_leave_nothing() -> None:
    rng = random.Random(3)
    engine = make_engine(FakeRunner(n_blocks=40), max_waiting=50)
    collector = Collector()
    live: list[str] = []
    for i in range(3000):
        id = f"r{i}"
        try:
            prompt = prompt_of(rng.randrange(1, 12), rng.randrange(30))
            n, max_tokens = rng.choice([1, 1, 2]), rng.randrange(1, 6)
            engine.add(request(id, prompt, n=n, max_tokens=max_tokens), 0.0)
            live.append(id)
        except QueueFullError:
            pass
        if rng.random() < 0.3 and live:
            engine.abort(live.pop(rng.randrange(len(live))))
        if i % 2:
            collector.take(engine.step(0.0))
            live = [id for id in live if id in engine._groups]
        assert len(engine._groups) <= 60
    while engine.has_work:
        collector.take(engine.step(0.0))
    check_idle(engine)
    assert all(result.done for result in collector.results.values())
    assert len(engine._kv._by_hash) <= 40
