from __future__ import annotations

import random

import pytest

from tidemill.bench.statistics import percentiles


def test_percentiles_are_values_that_occur() -> None:
    groups = [[float(i)] for i in range(1, 101)]
    found = percentiles(groups, (0.0, 0.5, 0.9, 0.99, 1.0))
    assert [estimate.value for estimate in found] == [1, 50, 90, 99, 100]


def test_an_interval_is_around_its_value_and_narrows_with_more_requests() -> None:
    rng = random.Random(5)

    def width(count: int) -> float:
        (median,) = percentiles([[rng.gauss(100, 10)] for _ in range(count)], (0.5,))
        assert median.low <= median.value <= median.high
        return median.high - median.low

    assert width(2000) < width(50)


def test_values_of_one_request_are_not_taken_for_independent() -> None:
    # The same values, as of few requests that are each alike, and as of many.
    rng = random.Random(5)
    means = [rng.gauss(100, 10) for _ in range(20)]
    alike = [[mean + rng.gauss(0, 0.1) for _ in range(50)] for mean in means]
    (few,) = percentiles(alike, (0.5,))
    (many,) = percentiles([[value] for group in alike for value in group], (0.5,))
    assert few.value == many.value
    assert few.high - few.low > 2 * (many.high - many.low)


def test_requests_without_values_are_no_harm_but_nothing_at_all_is() -> None:
    (median,) = percentiles([[], [3.0], []], (0.5,))
    assert (median.low, median.value, median.high) == (3, 3, 3)
    with pytest.raises(ValueError, match="no values"):
        percentiles([[]], (0.5,))


def test_intervals_are_the_same_each_time() -> None:
    groups = [[random.Random(i).random()] for i in range(50)]
    assert percentiles(groups, (0.9,)) == percentiles(groups, (0.9,))
