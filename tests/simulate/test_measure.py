"""The meter: an engine comes to the step that was asked for, and its seconds are those measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.timed_runner import TimedRunner
from tidemill.engine.base import EngineConfig
from tidemill.engine.engine import Engine
from tidemill.engine.step_time import Work, attended
from tidemill.simulate.base import StepWork
from tidemill.simulate.calibration import fit_points
from tidemill.simulate.grid import Case, Room, cases
from tidemill.simulate.measure import StepMeter, measure_steps

LIMITS = {"max_context": 256, "max_batch_tokens": 32, "max_prefill_tokens": 16}
SEQUENCES = 8


def cost(work: Work) -> float:
    """What a forward step takes on this machine."""
    return 1e-3 + 1e-4 * work.tokens + 2e-6 * work.context + 5e-5 * work.rows


def meter() -> tuple[StepMeter, TimedRunner]:
    runner = TimedRunner(
        cost, n_blocks=600, block_size=4, max_batch_tokens=32, max_logit_rows=SEQUENCES
    )
    config = EngineConfig(max_sequences=SEQUENCES, **LIMITS)
    return StepMeter(runner, lambda seen: Engine(seen, None, config), clock=runner.clock), runner


@pytest.mark.parametrize(
    ("case", "work"),
    [
        (Case(prompts=1, new=5), StepWork(5, 15, 0, 0, 1)),
        (Case(prompts=1, new=5, past=64), StepWork(5, attended(64, 5), 0, 0, 1)),
        (Case(prompts=1, new=32, past=32, ends=False), StepWork(32, attended(32, 32), 0, 0, 0)),
        (Case(prompts=3, new=4), StepWork(12, 30, 0, 0, 3)),
    ],
)
def test_prompt_steps_are_those_that_were_asked_for(case: Case, work: StepWork) -> None:
    one, _ = meter()
    assert one.measure(case)[0] == work


def test_decodes_are_behind_about_the_context_that_was_asked_for() -> None:
    one, _ = meter()
    work, _ = one.measure(Case(decodes=4, context=20))
    assert (work.decodes, work.rows, work.prompt_tokens) == (4, 4, 0)
    assert 4 * 20 <= work.decode_context <= 4 * 40


def test_mixed_steps_have_both() -> None:
    one, _ = meter()
    work, _ = one.measure(Case(decodes=3, context=20, prompts=1, new=16, past=32, ends=False))
    assert (work.decodes, work.prompt_tokens, work.rows) == (3, 16, 3)
    assert work.prompt_context == attended(32, 16)
    work, _ = one.measure(Case(decodes=3, context=20, prompts=1, new=7))
    assert (work.decodes, work.prompt_tokens, work.rows) == (3, 7, 4)


def test_the_seconds_are_those_of_the_step_alone() -> None:
    one, _ = meter()
    for case in (Case(prompts=1, new=9, past=96), Case(decodes=5, context=40)):
        work, seconds = one.measure(case)
        tokens = work.prompt_tokens + work.decodes
        context = work.prompt_context + work.decode_context
        assert seconds == pytest.approx(cost(Work(tokens, context, work.rows)))


def test_the_way_to_a_step_is_not_computed() -> None:
    one, runner = meter()
    before = runner.tokens_computed
    one.measure(Case(prompts=1, new=9, past=160))
    assert runner.tokens_computed - before < 20


def test_nothing_is_left_behind() -> None:
    one, runner = meter()
    for _ in range(30):  # far more blocks than there are, if they were not given back
        one.measure(Case(decodes=8, context=100))
    assert not runner.violations
    assert not one._engine.has_work


def test_every_block_has_been_written_before() -> None:
    _, runner = meter()
    assert (runner._blocks >= 0).all()


def test_rounds_give_medians_and_the_spread_of_repeats() -> None:
    one, runner = meter()
    slow = iter([1.0, 1.0, 1.0, 1.5] * 1000)
    honest = runner.cost
    runner.cost = lambda work: honest(work) * next(slow)
    todo = [Case(prompts=1, new=n) for n in (4, 8, 16, 32)]
    points = measure_steps(one, todo, seconds=1e9)
    assert [point.prompt_tokens for point in points] == [4, 8, 16, 32]
    assert all(point.repeats == 15 for point in points)  # the most
    assert any(point.spread > 0.01 for point in points)
    for point in points:
        least = cost(Work(point.prompt_tokens, point.prompt_context, 1))
        assert least * 0.999 <= point.seconds <= least * 1.5


def test_without_time_there_are_three_rounds() -> None:
    one, runner = meter()
    points = measure_steps(one, [Case(prompts=1, new=4)], seconds=1e-9, clock=runner.clock)
    assert points[0].repeats == 3


def test_a_calibration_of_a_machine_that_is_known() -> None:
    """Everything together: grid, meter, fit. The clock is the machine's own, so nothing is off."""
    one, runner = meter()
    points = measure_steps(one, cases(one.room), seconds=1e-9, clock=runner.clock)
    points, fit = fit_points(points)
    assert fit.error.steps == sum(point.held_out for point in points) >= 5
    assert fit.error.p95 < 0.01
    assert fit.noise.p95 < 1e-6
    assert fit.costs.per_prompt_context == pytest.approx(2e-6, rel=0.05)
    assert fit.costs.per_decode_context == pytest.approx(2e-6, rel=0.05)


ROOM = Room(
    max_context=8192, max_sequences=64, max_batch_tokens=512, max_prefill_tokens=256,
    kv_tokens=40_000,
)  # fmt: skip


def test_the_grid_has_every_kind_of_step_within_the_limits() -> None:
    full, quick = cases(ROOM), cases(ROOM, quick=True)
    assert set(quick) < set(full)
    for chosen in (full, quick):
        assert all(ROOM.has(case) for case in chosen)
        assert len(set(chosen)) == len(chosen)
        kinds = {(bool(c.decodes), bool(c.prompts), bool(c.past), c.ends) for c in chosen}
        assert {(True, False, False, True), (False, True, False, True)} <= kinds
        assert {(False, True, True, True), (True, True, False, True)} <= kinds
        assert max(c.decodes for c in chosen) == 64
        assert max(c.prompts * c.new for c in chosen) == 512
    assert 60 <= len(full) <= 140
    assert 20 <= len(quick) <= 50


@pytest.mark.parametrize(
    "case",
    [
        Case(decodes=65, context=32),
        Case(decodes=60, context=4096),
        Case(decodes=1, context=8180),
        Case(prompts=1, new=513),
        Case(prompts=1, new=100, past=100),
        Case(prompts=1, new=100, ends=False),
        Case(decodes=4, context=32, prompts=1, new=300),
        Case(decodes=40, context=32, prompts=40, new=1),
    ],
)
def test_steps_that_cannot_be_are_not_in_it(case: Case) -> None:
    assert not ROOM.has(case)


def test_small_engines_have_small_grids() -> None:
    tiny = replace(ROOM, max_context=128, max_sequences=1, max_batch_tokens=16)
    found = cases(replace(tiny, max_prefill_tokens=16, kv_tokens=200))
    assert found
    assert all(case.decodes + case.prompts == 1 for case in found)
