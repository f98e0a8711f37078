"""The parts of the sizing: limits and causes, bounds, counts of replicas, the front."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from support.sizing import MIX, option, spec, trial
from tidemill.bench.measures import Slo
from tidemill.simulate.base import FrontEnd
from tidemill.simulate.sizing.fluid import ceiling, first_token, fitted, next_token
from tidemill.simulate.sizing.goal import Load
from tidemill.simulate.sizing.option import Point, front, replicas_for
from tidemill.simulate.sizing.trial import Latency, cause, meets, misses

# ---- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slo", "metrics"),
    [
        (Slo(), []),
        (Slo(ttft=0.2, tpot=0.03, e2e=2.0), []),  # as long as the limit is within it
        (Slo(ttft=0.19), ["ttft"]),
        (Slo(tpot=0.02, ttft=0.19), ["tpot", "ttft"]),  # the worst first
        (Slo(e2e=0.2, tpot=0.02, ttft=0.19), ["e2e", "tpot", "ttft"]),
    ],
)
def test_what_is_missed(slo: Slo, metrics: list[str]) -> None:
    assert [miss.metric for miss in misses(trial(), slo)] == metrics
    assert meets(trial(), slo) == (not metrics)


def test_a_metric_that_no_request_has_is_not_missed() -> None:
    short = trial(latency={"ttft": Latency(0.1, 0.2)})  # answers of one token
    assert meets(short, Slo(ttft=1, tpot=0.001))
    assert short.speed == 0


@pytest.mark.parametrize("changes", [{"growing": True}, {"failed": 1}])
def test_a_backlog_or_a_refusal_is_never_enough(changes: dict[str, Any]) -> None:
    assert not meets(trial(**changes), Slo())


@pytest.mark.parametrize(
    ("metric", "changes", "words"),
    [
        ("ttft", {"no_memory": 0.3}, "KV memory is full 30% of the time"),
        ("ttft", {"preemptions": 200}, "KV memory"),
        ("ttft", {"no_slot": 0.2}, "all sequences are taken 20%"),
        ("ttft", {"no_slot": 0.2, "no_memory": 0.1}, "KV memory"),
        ("ttft", {"front": 0.97, "no_slot": 0.2}, "front ends are busy 97% of the time"),
        ("ttft", {"busy": 0.97}, "it computes 97% of the time"),
        ("ttft", {"growing": True, "busy": 0.9}, "it computes 90% of the time"),
        ("ttft", {}, "prompts take too long to compute"),
        ("tpot", {"prompts": 0.8}, "prompts of others are in 80% of the steps"),
        ("tpot", {"prompts": 0.2, "no_slot": 0.5}, "so many sequences take too long"),
        ("e2e", {"latency": {"ttft": Latency(1, 3), "e2e": Latency(1, 4)}}, "prompts take too"),
        ("e2e", {"prompts": 0.2}, "so many sequences take too long"),
        (None, {"no_slot": 0.2, "growing": True}, "all sequences are taken"),
        (None, {"growing": True, "busy": 1.0}, "it computes 100% of the time"),
    ],
)
def test_why_it_is_missed(metric: Any, changes: dict[str, Any], words: str) -> None:
    assert words in cause(trial(**changes), metric)


# ---- bounds ------------------------------------------------------------------------------------


def test_the_ceiling_is_that_of_the_largest_batch() -> None:
    # 64 sequences of 50 tokens: 64 decodes and 128 prompt tokens a step of 10 + 19.2 ms.
    best = ceiling(spec(), MIX)
    assert best.sequences == 64
    assert best.step == pytest.approx(0.0292)
    assert best.rate == pytest.approx(64 / 50 / 0.0292)


def test_the_ceiling_keeps_to_a_limit_of_steps() -> None:
    # 3 tokens a sequence: steps of 10 ms + 0.3 ms each; 16 sequences fit into 15 ms, not 32.
    best = ceiling(spec(), MIX, tpot=0.015)
    assert best.sequences == 16
    assert best.step <= 0.015
    # None fits into 1 ms: what one alone does.
    assert ceiling(spec(), MIX, tpot=0.001).sequences == 1


def test_the_ceiling_is_bounded_by_kv_memory() -> None:
    # A sequence holds 125 tokens in the mean: 8 blocks of 16, so that 20 blocks hold two.
    assert ceiling(spec(n_blocks=20), MIX).sequences == 2
    assert ceiling(spec(n_blocks=1), MIX).sequences == 1


def test_the_ceiling_is_bounded_by_the_front_end() -> None:
    best = ceiling(spec(front=FrontEnd(0.1)), MIX)
    assert best.rate == pytest.approx(10)
    assert best.sequences == 64  # it bounds the rate, not how many are there at once


def test_long_prompts_keep_sequences_from_decoding() -> None:
    long = dataclasses.replace(MIX, prompt=10_000.0)
    best = ceiling(spec(max_batch_tokens=512), long)
    # 512 tokens a step, 61 ms: no more than 512 / 10,000 requests a step.
    assert best.rate <= 512 / 10_000 / 0.0612 * 1.3
    assert best.rate > 0


def test_first_and_next_token_of_who_is_alone() -> None:
    assert next_token(spec(), MIX) == pytest.approx(0.0101)
    # 400 tokens in one step; in steps of 150 three of them.
    assert first_token(spec(), MIX) == pytest.approx(0.05)
    assert first_token(spec(max_batch_tokens=150), MIX) == pytest.approx(0.03 + 0.04)
    assert first_token(spec(front=FrontEnd(1.0)), MIX) == pytest.approx(1.05)
    # Each token of the prompt, those from the cache too.
    longer = spec(front=FrontEnd(1.0, prompt_token=0.01))
    assert first_token(longer, MIX) == pytest.approx(1.05 + 0.01 * (MIX.cached + MIX.longest))


def test_limits_are_fitted_to_the_slo() -> None:
    both = ("max_prefill_tokens", "max_sequences")
    assert fitted(spec(), MIX, None, both) == spec()
    made = fitted(spec(), MIX, 0.05, both)
    # 64 decodes leave 0.05 - 0.0164 s: 336 prompt tokens, of powers of two below 2048 it is 256.
    assert (made.max_sequences, made.max_prefill_tokens) == (64, 256)
    assert fitted(spec(), MIX, 0.05, ("max_sequences",)).max_prefill_tokens == 2048
    assert fitted(spec(), MIX, 0.0001, both).max_prefill_tokens == 32


# ---- counts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "each", "spare", "replicas"),
    [
        (10, 10, 0, 1), (10, 10, 1, 2), (10.1, 10, 0, 2), (0.001, 10, 0, 1), (30, 10, 0, 3),
        (0.3, 0.1, 0, 3),  # 0.3 / 0.1 is more than 3 by rounding
        (1e9, 1, 2, 1_000_000_002),
    ],
)  # fmt: skip
def test_replicas(load: float, each: float, spare: int, replicas: int) -> None:
    assert abs(replicas_for(load, each, spare) - replicas) <= (1 if load > 1e6 else 0)


def test_loads() -> None:
    assert Load.per_second(3).amount == 3
    assert Load.per_day(86_400, 3).amount == pytest.approx(3)
    assert "86,400 requests a day, 3 times the mean" in Load.per_day(86_400, 3).words
    assert Load.at_once(7).kind == "in flight"


def point(total: float, speed: float, ttft: float = 1.0) -> Point:
    return Point(option(), 1, total, speed, ttft)


def test_the_front_has_what_none_outdoes() -> None:
    points = [point(5, 50), point(1, 10), point(2, 10), point(3, 40), point(4, 30), point(3, 41)]
    assert [(p.total, p.speed) for p in front(points)] == [(1, 10), (3, 41), (5, 50)]
    assert front([]) == []
    assert [p.ttft for p in front([point(1, 10, 3.0), point(1, 10, 2.0)])] == [2.0]
