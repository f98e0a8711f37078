"""What the server adds, told apart from the steps."""

from __future__ import annotations

import pytest

from tidemill.bench.stream import Answer
from tidemill.engine.step_time import attended
from tidemill.simulate.base import StepWork
from tidemill.simulate.served import served_costs
from tidemill.simulate.step_table import StepTable

STEPS = StepTable(
    [1e-3 * n for n in range(200)], [0.0, 1e-3], 1e-7, 1e-6, origin="measured", source="", band=0.0
)
REQUEST, STEP, TOKEN = 5e-3, 4e-4, 3e-5


def first(prompt: int, cached: int) -> tuple[float, Answer]:
    """A request that was sent at 10 s."""
    new = prompt - cached
    step = STEPS.seconds(StepWork(new, attended(cached, new), 0, 0, 1)) + STEP + TOKEN
    answer = Answer([10 + REQUEST + step], prompt_tokens=prompt, cached_tokens=cached)
    return 10.0, answer


def gap(n: int, context: int) -> tuple[float, float]:
    return STEPS.seconds(StepWork(0, 0, n, n * context, n)) + STEP + TOKEN * n, context


def test_known_costs_are_found_again() -> None:
    found = served_costs(
        STEPS,
        [first(150, 0), first(120, 30), first(90, 0)],
        {n: gap(n, 140) for n in (1, 2, 4, 8, 16)},
    )
    assert found.per_request == pytest.approx(REQUEST)
    assert found.per_step == pytest.approx(STEP)
    assert found.per_token == pytest.approx(TOKEN)
    assert found.spread == pytest.approx(0.0, abs=1e-9)


def test_a_server_that_seems_faster_than_its_engine_adds_nothing() -> None:
    sent, answer = first(100, 0)
    answer.times = [sent + 1e-4]
    quick = {n: (0.5 * gap(n, 140)[0], 140.0) for n in (1, 4)}
    found = served_costs(STEPS, [(sent, answer)] * 3, quick)
    assert (found.per_request, found.per_step, found.per_token) == (0.0, 0.0, 0.0)


def test_requests_that_differ_show_as_spread() -> None:
    requests = [first(100, 0) for _ in range(4)]
    for i, (_, answer) in enumerate(requests):
        answer.times[0] += 0.02 * i
    assert served_costs(STEPS, requests, {1: gap(1, 140)}).spread > 0.05
