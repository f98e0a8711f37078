from __future__ import annotations

import math
import random

import numpy as np
import pytest

from tidemill.bench.statistics import (
    RESAMPLES,
    block_weights,
    cliffs_delta,
    difference,
    fisher_exact,
    percentiles,
    resampled_percentiles,
)


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


def test_blocks_keep_what_neighbours_have_in_common() -> None:
    rng = np.random.default_rng(1)
    steps = rng.standard_normal(200)
    values = np.array([0.8 ** np.arange(i, -1, -1) @ steps[: i + 1] for i in range(200)])
    rows = list(block_weights(200, rng))
    assert len(rows) == RESAMPLES
    assert all(row.sum() == 200 for row in rows)
    blocks = np.std([(values * row).mean() for row in rows])
    alone = np.std([rng.choice(values, 200).mean() for _ in range(RESAMPLES)])
    assert blocks > 1.5 * alone
    assert [list(row) for row in block_weights(1, rng)][:2] == [[1], [1]]


def test_resamples_count_requests_as_often_as_they_were_drawn() -> None:
    found = resampled_percentiles(
        [[1.0, 2.0], [], [10.0]], (0.5, 1.0), np.array([[1, 1, 1], [3, 0, 0], [0, 3, 0], [1, 0, 2]])
    )
    assert found.tolist() == [[2, 10], [1, 2], [2, 10]]  # the third has no value


def test_students_interval() -> None:
    """W. S. Gosset's own example: hours of sleep gained by two drugs, ten patients each."""
    one = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    two = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = difference(one, two)
    assert found.value == pytest.approx(1.58)
    assert (found.low, found.high) == pytest.approx((-0.203874, 3.363874), abs=1e-3)
    assert difference([1.0, 2.0], [4.0]).low == pytest.approx(2.5 - 12.706 * math.sqrt(0.5 * 1.5))
    with pytest.raises(ValueError, match="three"):
        difference([1.0], [2.0])


def test_cliffs_delta() -> None:
    assert cliffs_delta([1, 2, 3], [2, 3, 4]) == pytest.approx(5 / 9)
    assert cliffs_delta([1, 2], [3, 4]) == 1
    assert cliffs_delta([3, 4], [1, 2]) == -1
    assert cliffs_delta([1, 1], [1, 1]) == 0


def test_fishers_exact_test() -> None:
    assert fisher_exact(3, 4, 1, 4) == pytest.approx(34 / 70)  # his lady tasting tea
    assert fisher_exact(1, 10, 11, 14) == pytest.approx(0.0027594, abs=1e-6)
    assert fisher_exact(0, 0, 5, 9) == 1
    assert fisher_exact(0, 0, 0, 0) == 1
    assert fisher_exact(500, 1000, 600, 1000) == pytest.approx(8.45372e-6, rel=1e-5)
