"""The scheduling priority: bounds, and what decides."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.server.placement import (
    CLASSES,
    PATIENCE,
    scheduling_priority,
    urgency,
    utilisation,
    weight,
)

SETTINGS = settings(derandomize=True, deadline=None)

ranks = st.integers(0, 5000)
fills = st.tuples(st.integers(0, 64), st.integers(1, 64))
seconds = st.floats(0, 1e9)


def priority(rank: int, fill: tuple[int, int], over: float, left: float = inf) -> float:
    return scheduling_priority(utilisation(*fill, 64, weight(rank)), urgency(over, left))


@SETTINGS
@given(ranks, fills, seconds, st.floats(-1e9, inf))
def test_it_is_bounded(rank: int, fill: tuple[int, int], over: float, left: float) -> None:
    assert 0 < priority(rank, fill, over, left) <= 1


@SETTINGS
@given(st.integers(0, CLASSES - 2), fills, fills)
def test_of_fresh_ones_the_class_decides(
    rank: int, one: tuple[int, int], other: tuple[int, int]
) -> None:
    """Whatever they fill; where both are equal the order of the classes does (see FairQueue)."""
    assert priority(rank, one, 0) >= priority(rank + 1, other, 0)


@SETTINGS
@given(ranks, fills, seconds, seconds, st.floats(0, inf))
def test_it_grows_while_passed_over(
    rank: int, fill: tuple[int, int], over: float, more: float, left: float
) -> None:
    assert priority(rank, fill, over + more, left) >= priority(rank, fill, over, left)
    assert priority(rank, fill, over, left) >= priority(rank, fill, over)


@SETTINGS
@given(ranks, fills)
def test_patience_ends_at_the_top(rank: int, fill: tuple[int, int]) -> None:
    assert priority(rank, fill, PATIENCE) == pytest.approx(1)
    assert priority(rank, fill, PATIENCE / 10, left=0) == pytest.approx(1)


def test_what_fills_the_places_better_goes_first_within_a_class() -> None:
    assert priority(0, (40, 20), 1) > priority(0, (40, 1), 1)


def test_a_deadline_lifts_nobody_who_has_just_been_served() -> None:
    assert urgency(0, left=0) == 0
