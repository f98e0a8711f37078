"""Step tables: what they look up, between knots and beyond their ends."""

from __future__ import annotations

import pytest

from tidemill.simulate.base import StepWork
from tidemill.simulate.step_table import StepTable, interpolate


def table(stages: int = 1) -> StepTable:
    return StepTable(
        [0.0, 1.0, 1.5, 3.0], [0.0, 0.25, 0.5], 0.001, 0.01, 0.04,
        origin="measured", source="made up", band=0.1, stages=stages,
    )  # fmt: skip


def test_a_mixed_step_costs_what_its_tokens_cost_together_and_each_context_by_its_kind() -> None:
    work = StepWork(prompt_tokens=2, prompt_context=100, decodes=1, decode_context=30, rows=2)
    assert table().seconds(work) == pytest.approx(3.0 + 0.5 + 100 * 0.001 + 50 * 0.04 + 30 * 0.01)


def test_beyond_the_ends_it_goes_on_as_before_them() -> None:
    work = StepWork(prompt_tokens=5, prompt_context=0, decodes=0, decode_context=0, rows=4)
    assert table().seconds(work) == pytest.approx((3.0 + 2 * 1.5) + (0.5 + 2 * 0.25))


def test_only_one_of_the_two_curves_may_be_left_behind() -> None:
    work = StepWork(prompt_tokens=5, prompt_context=0, decodes=0, decode_context=0, rows=1)
    assert table().seconds(work) == pytest.approx(6.0 + 0.25)


@pytest.mark.parametrize(("tokens", "share"), [(1, 1), (2, 2), (3, 2)])
def test_stages_share_the_attention_of_as_many_tokens_as_there_are(tokens: int, share: int) -> None:
    work = StepWork(0, 0, tokens, 100, 0)
    alone = StepWork(0, 0, tokens, 0, 0)
    attention = table(stages=2).seconds(work) - table(stages=2).seconds(alone)
    assert attention == pytest.approx(100 * 0.01 / share)


def test_interpolation_runs_through_its_knots_on_straight_lines() -> None:
    assert interpolate({0: 0.0, 1: 2.0, 4: 5.0}, 6) == pytest.approx([0, 2, 3, 4, 5, 6, 7])
    assert interpolate({0: 1.0, 10: 11.0}, 2) == pytest.approx([1, 2, 3])


@pytest.mark.parametrize("knots", [{}, {0: 1.0}, {1: 1.0, 2: 2.0}])
def test_a_table_without_two_knots_or_a_beginning_is_refused(knots: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="a knot at 0 and another one"):
        interpolate(knots, 4)
