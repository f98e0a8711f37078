"""A scenario's lengths, and simulations of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from support.sizing import spec
from tidemill.bench import scenario as known
from tidemill.bench.arrivals import MIN_BURSTINESS, Gamma
from tidemill.bench.scenario import Scenario
from tidemill.bench.tasks import Task
from tidemill.bench.workload import Fixed, Shape
from tidemill.simulate.sizing.fluid import ceiling, first_token
from tidemill.simulate.sizing.goal import Kind
from tidemill.simulate.sizing.load import LoadError, ScenarioLoad


def scenario(**changes: Any) -> Scenario:
    fields: dict[str, Any] = {
        "name": "made", "summary": "", "load": Gamma(1.0),
        "shapes": (Shape("one", Fixed(100), Fixed(20)),),
    }  # fmt: skip
    return Scenario(**{**fields, **changes})


def loaded(seed: int = 0, kind: Kind = "rate", **changes: Any) -> ScenarioLoad:
    return ScenarioLoad(scenario(**changes), kind, seed)


def test_lengths_of_plain_requests() -> None:
    mix = loaded().mix
    assert (mix.prompt, mix.cached, mix.output) == (100, 0, 20)
    assert (mix.longest, mix.context) == (100, scenario().context)


def test_what_is_shared_is_not_computed_again() -> None:
    shape = Shape("one", Fixed(100), Fixed(20), prefix=1000, prefixes=3)
    mix = loaded(shapes=(shape,)).mix
    assert (mix.prompt, mix.cached) == (100, 1000)


def test_later_turns_have_the_earlier_ones_before_them() -> None:
    shape = Shape("one", Fixed(100), Fixed(20), prefix=50, system=True, turns=3)
    mix = loaded(shapes=(shape,)).mix
    assert mix.cached == pytest.approx((50 + 170 + 290) / 3)
    assert mix.context > 50 + 3 * 120


def test_of_several_shapes_the_mean() -> None:
    shapes = (Shape("a", Fixed(100), Fixed(20), 3.0), Shape("b", Fixed(500), Fixed(40), 1.0))
    mix = loaded(shapes=shapes).mix
    assert 170 < mix.prompt < 230
    assert mix.longest == 500


@pytest.mark.parametrize("name", [name for name in known.names() if name != "cold-start"])
def test_every_scenario_can_be_sized_for(name: str) -> None:
    mix = ScenarioLoad(known.load(name), "rate").mix
    assert mix.prompt > 0
    assert mix.output > 0
    assert mix.longest < mix.context


def test_starts_are_no_load() -> None:
    with pytest.raises(LoadError, match="cold-start measures starts"):
        ScenarioLoad(known.load("cold-start"), "rate")


def test_a_simulation_has_the_rate_that_was_asked_for() -> None:
    found = loaded()(spec(), 10.0)
    assert found.load == 10.0
    assert found.rate == pytest.approx(10, rel=0.15)
    assert found.requests >= 500
    assert not found.failed
    assert not found.growing
    assert found.output_rate == pytest.approx(10 * 20, rel=0.15)
    # Alone nearly always: one step for the prompt, 19 for the answer.
    assert found.latency["ttft"].p50 == pytest.approx(0.02, rel=0.5)
    assert 0 < found.in_flight < 10


def test_so_many_are_in_flight() -> None:
    found = loaded(kind="in flight")(spec(), 24, replicas=3)
    assert found.load == 24
    assert found.in_flight == pytest.approx(24, rel=0.1)
    assert found.requests >= 500
    assert not found.growing
    # As many as there are places, and more, take longer for all.
    more = loaded(kind="in flight")(spec(max_sequences=8), 48)
    assert more.latency["ttft"].p50 > 2 * found.latency["ttft"].p50
    assert more.no_slot > 0.5


def test_a_rate_counts_later_turns() -> None:
    shape = Shape("one", Fixed(30), Fixed(10), turns=4)
    found = loaded(shapes=(shape,))(spec(), 8.0)
    assert found.output_rate == pytest.approx(8 * 10, rel=0.2)


def test_the_same_seed_gives_the_same() -> None:
    first, second = (loaded(seed=5)(spec(), 20.0) for _ in range(2))
    assert first == second
    assert loaded(seed=6)(spec(), 20.0) != first


def test_replicas_share_the_load() -> None:
    load = loaded()
    one, four = load(spec(), 5.0), load(spec(), 20.0, replicas=4)
    assert four.replicas == 4
    assert four.busy == pytest.approx(one.busy, rel=0.3)


def test_too_much_is_seen() -> None:
    load = loaded()
    most = ceiling(spec(), load.mix).rate
    over = load(spec(), 1.3 * most)
    assert over.growing
    assert over.busy > 0.95
    assert not load(spec(), 0.4 * most).growing


def test_bounds_are_bounds() -> None:
    load = loaded()
    found = load(spec(), 0.5)
    assert found.latency["ttft"].p50 >= 0.99 * first_token(spec(), load.mix)


def test_full_memory_is_seen() -> None:
    few = dataclasses.replace(spec(), n_blocks=16, max_context=256)
    load = loaded()
    found = load(few, 3 * ceiling(few, load.mix).rate)
    assert found.no_memory > 0.3
    assert found.filled > 0.5


def test_bursts_stay_bursts() -> None:
    plain, bursty = (loaded(load=Gamma(1.0, burstiness))(spec(), 20.0) for burstiness in (1.0, 0.1))
    assert bursty.latency["ttft"].p99 > plain.latency["ttft"].p99


def test_the_scenarios_own_load_is_not_used() -> None:
    slow = msgspec.structs.replace(scenario(), load=Gamma(0.001), seconds=1.0, warmup=0.0)
    assert ScenarioLoad(slow, "rate")(spec(), 10.0).requests >= 500


def test_tasks_so_short_that_they_count_as_nothing() -> None:
    task = Task("$n", {"n": (1,)}, ("n",), schema={"type": "object"})
    load = loaded(shapes=(Shape("one", None, Fixed(10), task=task),))
    assert load.mix.prompt == 0
    assert ceiling(spec(), load.mix).rate > 0


def test_bursts_too_rare_to_size_for() -> None:
    rare = loaded(seed=2, load=Gamma(1.0, MIN_BURSTINESS))  # of which the first is late
    with pytest.raises(LoadError, match="its bursts are too rare to size for"):
        rare(spec(), 4.0)
