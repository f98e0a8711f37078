from __future__ import annotations

from tidemill.engine.histogram import Histogram


def test_a_value_is_counted_at_the_first_bound_that_is_not_below_it() -> None:
    found = Histogram((1, 8, 16))
    for value in (0, 1, 1.5, 8, 17, 1e9):
        found.add(value)
    assert found.counts == [2, 2, 0, 2]
    assert found.total == 0 + 1 + 1.5 + 8 + 17 + 1e9


def test_a_copy_stands_still() -> None:
    found = Histogram((1,))
    before = found.copy()
    found.add(1)
    assert (before.counts, before.total) == ([0, 0], 0)
    assert before != found
