"""The search for the cheapest deployment, over simulations that are known by formula."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from support.sizing import MIX, Queue, option
from tidemill.bench.measures import Slo
from tidemill.simulate.base import ReplicaSpec
from tidemill.simulate.sizing.fluid import ceiling
from tidemill.simulate.sizing.goal import Goal, Load
from tidemill.simulate.sizing.option import Option
from tidemill.simulate.sizing.search import MOST_DEARER, PRECISION, Sizing, size
from tidemill.simulate.sizing.trial import Trial, meets

SLO = Slo(ttft=0.2, tpot=0.05)


def sized(
    options: list[Option], load: Load | float = 100.0, queue: Any = None, **goal: Any
) -> Sizing:
    load = load if isinstance(load, Load) else Load.per_second(load)
    return size(
        options, Goal(**{"slo": SLO, "load": load, "spare": 0, **goal}), MIX, queue or Queue()
    )


def highest(spec: ReplicaSpec, slo: Slo = SLO) -> float:
    """By bisection of the formula, fine."""
    queue, low, high = Queue(), 0.0, 2 * ceiling(spec, MIX).rate
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if meets(queue(spec, middle), slo) else (low, middle)
    return low


# ---- how many ----------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [1e-5, 1e-4, 3e-4])
@pytest.mark.parametrize("fixed", [0.001, 0.01, 0.02])
def test_the_highest_rate_is_found(fixed: float, each: float) -> None:
    found = sized([option(fixed=fixed, each=each, watts=1)]).winner
    assert found is not None
    assert found.trial is not None
    assert found.option.spec is not None
    best = highest(found.option.spec)
    assert best / PRECISION <= found.trial.load <= best


def test_replicas_carry_the_load_and_some_are_spare() -> None:
    for spare in (0, 1, 3):
        found = sized([option(watts=1)], 100.0, spare=spare).winner
        assert found is not None
        assert found.trial is not None
        assert (found.replicas - spare) * found.trial.load >= 100
        assert (found.replicas - spare - 1) * found.trial.load < 100


def test_requests_in_flight() -> None:
    queue = Queue("in flight")
    found = sized([option(watts=1)], Load.at_once(500), queue).winner
    assert found is not None
    assert found.trial is not None
    carried = round(found.trial.load)
    assert found.replicas == -(-500 // carried)
    assert found.option.spec is not None
    assert meets(queue(found.option.spec, carried), SLO)
    assert not meets(queue(found.option.spec, round(carried * PRECISION) + 1), SLO)
    assert all(load == round(load) for _, load, replicas in queue.calls if replicas == 1)


def test_the_error_band_is_held_against_it() -> None:
    exact, doubtful = (sized([option(watts=1, band=band)]) for band in (0.0, 0.5))
    assert exact.winner is not None
    assert doubtful.winner is not None
    assert doubtful.winner.replicas > exact.winner.replicas
    verified = doubtful.verified
    assert verified is not None
    assert meets(verified.slow, SLO)
    ttft = [t.latency["ttft"].p99 for t in (verified.fast, verified.expected, verified.slow)]
    assert ttft == sorted(ttft)
    assert ttft[0] < ttft[2]


def test_the_whole_is_held_against_the_load_too() -> None:
    easy, hard = (
        sized([option(watts=1)], 1000.0),
        sized([option(watts=1)], 1000.0, Queue(friction=0.2)),
    )
    assert easy.winner is not None
    assert hard.winner is not None
    assert hard.winner.replicas > easy.winner.replicas
    assert hard.verified is not None
    assert meets(hard.verified.slow, SLO)


def test_loads_of_any_size() -> None:
    tiny = sized([option(watts=1)], 1e-6).winner
    assert tiny is not None
    assert tiny.replicas == 1
    queue = Queue()
    huge = sized([option(watts=1)], 1e9, queue).winner
    assert huge is not None
    assert huge.replicas > 1_000_000
    assert max(replicas for _, _, replicas in queue.calls) <= 8  # a slice stands for all


# ---- which -------------------------------------------------------------------------------------


def variety() -> list[Option]:
    return [
        option(
            f"h{i}", tensor=tensor, fixed=fixed, each=each, watts=tensor * watts, hour=tensor * hour
        )
        for i, (fixed, each, tensor, watts, hour) in enumerate(
            itertools.product((0.004, 0.02), (1e-5, 2e-4), (1, 4), (100, 700), (0.5, 4.0))
        )
    ]  # fmt: skip


@pytest.mark.parametrize("priced", [True, False])
@pytest.mark.parametrize("rate", [5.0, 300.0])
def test_the_cheapest_is_found(rate: float, priced: bool) -> None:
    options = variety()
    if not priced:
        options = [
            dataclasses.replace(o, spec=dataclasses.replace(o.spec, hour=None))
            for o in options  # type: ignore[type-var]
        ]
    found = sized(options, rate)
    assert found.measure == ("cost" if priced else "watts")
    assert found.winner is not None
    each = {}
    for one in options:
        alone = sized([one], rate)
        if alone.winner is not None:
            each[one.hardware] = alone.winner.total(found.measure)
    assert found.winner.total(found.measure) == min(each.values())  # type: ignore[type-var]


def test_without_power_devices_are_counted() -> None:
    found = sized([option("slow", fixed=0.02), option("fast", fixed=0.005)], 200.0)
    assert found.measure == "devices"
    assert found.winner is not None
    assert found.winner.option.hardware == "fast"


def test_what_has_no_price_is_not_compared() -> None:
    found = sized([option("free", watts=1), option("priced", watts=9, hour=1.0)])
    assert found.winner is not None
    assert found.winner.option.hardware == "priced"
    outcomes = {entry.option.hardware: entry.outcome for entry in found.entries}
    assert outcomes == {"priced": "meets", "free": "no price"}


def test_why_options_are_out() -> None:
    options = [
        option("good", watts=1),
        Option("small", "gpu", "bf16", 1, 1, None, "needs 16 GB", 1),
        option("short", max_context=500, watts=1),
        option("late", fixed=0.001, each=0.001, watts=1),
        option("slow", fixed=0.06, watts=1),
    ]
    found = {entry.option.hardware: entry for entry in sized(options).entries}
    assert {name: entry.outcome for name, entry in found.items()} == {
        "good": "meets", "small": "memory", "short": "memory", "late": "ttft", "slow": "tpot",
    }  # fmt: skip
    assert found["small"].why == "needs 16 GB"
    assert "takes sequences of 500 tokens; some have 600" in found["short"].why
    assert (
        "computing 400 tokens of a prompt, alone, takes 0.401 s; limit 0.2 s" in found["late"].why
    )
    assert "a step of one sequence, alone, takes 0.0601 s; limit 0.05 s" in found["slow"].why


def test_an_answer_as_a_whole_can_be_the_limit() -> None:
    found = sized([option(watts=1)], slo=Slo(e2e=0.4))
    assert found.winner is None
    assert found.entries[0].outcome == "e2e"


def test_an_slo_that_nobody_can_meet() -> None:
    found = sized(variety(), slo=Slo(ttft=0.001))
    assert found.winner is None
    assert found.verified is None
    assert found.breaking is None
    assert found.front == ()
    assert {entry.outcome for entry in found.entries} == {"ttft"}
    assert sized([]).winner is None


class Stubborn(Queue):
    """Late even if nobody else is there, which bounds did not foresee."""

    def __call__(self, spec: ReplicaSpec, load: float, replicas: int = 1) -> Trial:
        found = super().__call__(spec, load, replicas)
        late = dataclasses.replace(found.latency["ttft"], p99=0.5)
        return dataclasses.replace(found, latency={**found.latency, "ttft": late})


def test_what_only_the_simulation_shows_is_said_too() -> None:
    queue = Stubborn()
    found = sized([option(watts=1)], queue=queue)
    assert found.winner is None
    (entry,) = found.entries
    assert entry.outcome == "ttft"
    assert entry.why.startswith("TTFT p99 0.5 s, limit 0.2 s, nearly alone")
    assert len(queue.calls) < 30


def test_without_limits_only_the_backlog_counts() -> None:
    found = sized([option(watts=1)], slo=Slo())
    assert found.winner is not None
    assert found.winner.trial is not None
    assert found.winner.trial.busy > 0.9


# ---- how it is searched ------------------------------------------------------------------------


def test_what_cannot_win_is_not_simulated() -> None:
    queue = Queue()
    dear = [option(f"dear{i}", fixed=0.02 + i / 1000, watts=1000) for i in range(5)]
    found = sized([*dear, option("good", watts=1)], queue=queue)
    assert [entry.outcome for entry in found.entries] == ["meets"] + 5 * ["outdone"]
    assert all("even at its best" in entry.why for entry in found.entries[1:])
    assert {made.name for made, _, _ in queue.calls} == {"good"}


def test_no_more_are_simulated_than_there_is_time_for() -> None:
    many = [
        option(f"h{i}", fixed=0.02 * 0.97**i, watts=100 * 1.5**i) for i in range(MOST_DEARER + 9)
    ]  # each faster than the last one, and dearer
    queue = Queue()
    found = sized(many, queue=queue)
    assert found.winner is not None
    assert found.winner.option.hardware == "h0"
    assert {made.name for made, _, _ in queue.calls} == {f"h{i}" for i in range(MOST_DEARER + 1)}
    assert found.simulated == len(queue.calls) < 300


class Chunky(Queue):
    """With 1024 prompt tokens in a step, or fewer, it carries more."""

    def __call__(self, spec: ReplicaSpec, load: float, replicas: int = 1) -> Trial:
        gain = 1.0 if spec.max_prefill_tokens > 1024 else 0.7
        found = super().__call__(spec, load * gain, replicas)
        return dataclasses.replace(found, load=load)


def test_batches_are_varied_where_that_helps() -> None:
    for queue, prefill in ((Queue(), {2048}), (Chunky(), {1024})):
        found = sized([option(watts=1)], queue=queue, slo=Slo(ttft=0.2)).winner
        assert found is not None
        assert found.option.spec is not None
        assert found.option.spec.max_prefill_tokens in prefill


def test_what_an_engine_cannot_set_is_not_varied() -> None:
    queue = Chunky()
    sized([option(watts=1, kind="cpu")], queue=queue)
    assert {made.max_prefill_tokens for made, _, _ in queue.calls} == {2048}


def test_the_front_runs_from_cheap_to_fast() -> None:
    found = sized(
        [
            option("slow", fixed=0.02, watts=100),
            option("fast", fixed=0.01, watts=400),
            option("faster", fixed=0.004, watts=2000),
        ],
        300.0,
    )
    totals = [point.total for point in found.front]
    speeds = [point.speed for point in found.front]
    assert {point.option.hardware for point in found.front} == {"slow", "fast", "faster"}
    assert totals == sorted(totals)
    assert speeds == sorted(speeds)


def test_what_breaks_when_the_load_doubles() -> None:
    found = sized([option(watts=1)], 1000.0).breaking
    assert found is not None
    assert found.metric == "ttft"
    assert found.factor is not None
    assert 1 < found.factor <= 2
    idle = sized([option(watts=1)], 0.1, spare=1).breaking
    assert idle is not None
    assert idle.factor is None


def test_replicas_alone_are_found_with_few_simulations() -> None:
    queue = Queue()
    options = [option("a", watts=1), option("b", fixed=0.004, watts=100)]
    found = size(
        options, Goal(SLO, Load.per_second(300.0), 1), MIX, queue, thorough=False
    )  # fmt: skip
    assert found.winner is not None
    assert found.winner.option.hardware == "a"
    assert found.verified is None
    assert {made.name for made, _, _ in queue.calls} == {"a"}
    assert len(queue.calls) < 15
