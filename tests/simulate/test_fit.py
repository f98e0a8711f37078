"""The fit of step times: finds known costs again, never falls, and is tested on other steps."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.simulate.base import StepWork
from tidemill.simulate.fit import (
    Observation,
    error,
    fit,
    nonnegative_least_squares,
    split,
)


def true_seconds(work: StepWork) -> float:
    """A machine: weights read once, then arithmetic; logits likewise; attention."""
    n = work.prompt_tokens + work.decodes
    return (
        max(5e-3, 4e-4 * n) + 2e-4
        + 3e-4 * work.rows
        + 4e-8 * work.prompt_context
        + 6e-7 * work.decode_context
        + 1e-6 * work.prompt_context / max(1, work.prompt_tokens)
    )  # fmt: skip


def steps() -> list[StepWork]:
    sizes = (1, 2, 4, 8, 12, 16, 32, 64, 128, 256, 512)
    prompts = [StepWork(n, n * past + n * (n + 1) // 2, 0, 0, rows)
               for n in sizes for past in (0, 1024) for rows in (0, 1)]  # fmt: skip
    decodes = [
        StepWork(0, 0, n, n * context, n) for n in sizes if n <= 64 for context in (32, 256, 1024)
    ]
    mixed = [
        StepWork(n, n * (n + 1) // 2, d, d * 100, d + 1) for n in (16, 64, 256) for d in (1, 8, 32)
    ]
    return prompts + decodes + mixed


def observed(noise: float, seed: int = 0) -> list[Observation]:
    rng = random.Random(seed)
    return [
        Observation(work, true_seconds(work) * (1 + noise * rng.uniform(-1.7, 1.7)))
        for work in steps()
    ]


def test_known_costs_are_found_again() -> None:
    costs = fit(observed(noise=0.0))
    assert costs.per_prompt_context == pytest.approx(4e-8, rel=0.02)
    assert costs.per_decode_context == pytest.approx(6e-7, rel=0.02)
    assert costs.per_prompt_read == pytest.approx(1e-6, rel=0.1)
    rows = dict(costs.rows)
    assert rows[64] - rows[1] == pytest.approx(63 * 3e-4, rel=0.02)
    for work in steps():
        assert costs.seconds(work) == pytest.approx(true_seconds(work), rel=0.03)


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_three_percent_leaves_an_error_below_it(seed: int) -> None:
    fitted, held_out = split(observed(noise=0.03, seed=seed), seed)
    found = error(fit(fitted), [Observation(o.work, true_seconds(o.work)) for o in held_out])
    assert found.median < 0.03
    assert found.p95 < 0.08


def test_tokens_and_rows_are_told_apart_where_decodes_alone_cannot() -> None:
    """Steps of decodes have as many rows as tokens. A mixed step has not."""
    few = [o for o in observed(noise=0.0) if not (o.work.prompt_tokens in (4, 12) or
           (o.work.prompt_tokens and o.work.decodes))]  # fmt: skip
    costs = fit(few)
    for work in (StepWork(12, 78, 4, 400, 4), StepWork(100, 5050, 12, 1200, 13)):
        assert costs.seconds(work) == pytest.approx(true_seconds(work), rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_more_work_never_takes_less_time_however_noisy_the_steps(seed: int) -> None:
    costs = fit(observed(noise=0.3, seed=seed))
    for curve in (costs.tokens, costs.rows):
        values = [seconds for _, seconds in curve]
        assert values == sorted(values)
        assert min(values) >= 0
    assert costs.per_prompt_context >= 0
    assert costs.per_decode_context >= 0
    assert costs.per_prompt_read >= 0


def test_held_out_steps_are_not_fitted_and_not_at_the_ends() -> None:
    all_steps = observed(noise=0.02)
    fitted, held_out = split(all_steps, seed=3)
    assert len(held_out) == round(len(all_steps) / 4)
    assert not set(map(id, fitted)) & set(map(id, held_out))
    assert sorted(map(id, [*fitted, *held_out])) == sorted(map(id, all_steps))
    for held in held_out:
        work = held.work
        assert work.rows < 64 or any(o.work.rows == 64 for o in fitted)
        assert work.prompt_tokens < 512 or any(o.work.prompt_tokens == 512 for o in fitted)
    # Other chances, other steps: nothing else decides.
    assert split(all_steps, seed=4)[1] != held_out
    assert split(all_steps, seed=3)[1] == held_out


def test_the_error_is_of_the_held_out_steps_alone() -> None:
    """A step that no fit could know must show in the error when it is held out."""
    fitted, held_out = split(observed(noise=0.0), seed=0)
    strange = [Observation(o.work, o.seconds * 2) for o in held_out]
    costs = fit(fitted)
    assert error(costs, held_out).p95 < 0.02
    assert error(costs, strange).median == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_cannot_be_are_refused(seconds: float) -> None:
    strange = [*observed(noise=0.0), Observation(StepWork(1, 1, 0, 0, 1), seconds)]
    with pytest.raises(ValueError, match="a positive, finite time"):
        fit(strange)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        fit(observed(noise=0.0)[:1])


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**16))
def test_least_squares_without_negatives_meet_the_optimality_conditions(
    rows: int, columns: int, seed: int
) -> None:
    """Karush, Kuhn and Tucker: where x is positive nothing pulls at it, elsewhere only down."""
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((rows, columns))
    target = rng.standard_normal(rows)
    x = nonnegative_least_squares(matrix, target)
    gradient = matrix.T @ (target - matrix @ x)
    assert (x >= 0).all()
    assert (gradient <= 1e-8).all()
    assert np.abs(gradient[x > 1e-9]).max(initial=0.0) < 1e-8
