"""The decision flow's truth table."""

from __future__ import annotations

import itertools

import pytest

from tidemill.advise.answers import from_values
from tidemill.advise.flow import HIGH_CONCURRENCY, Traits, choose, traits

# high concurrency, latency-sensitive, bottleneck measured, central, edge, stays local, validating,
# small team -> class and place of each part; + is an optimisation component on top. "-": either.
TABLE = {
    # both places: a hybrid, with a component where the servers' load asks for one
    "yyyyy---": "serving+ on servers, local on edge",
    "yynyy---": "serving on servers, local on edge",
    "yn-yy---": "serving on servers, local on edge",
    "n--yy---": "serving on servers, local on edge",
    # high concurrency, and people wait: serving, whatever else holds
    "yyyyn---": "serving+ on servers",
    "yynyn---": "serving on servers",
    "yyyny---": "serving+ on edge",
    "yynny---": "serving on edge",
    # the edge
    "yn-ny---": "local on edge",
    "n--ny---": "local on edge",
    # data that must stay
    "yn-yny--": "local on servers",
    "n--yny--": "local on servers",
    # validating a model
    "yn-ynny-": "local on servers",
    "n--ynny-": "local on servers",
    # a small team
    "yn-ynnny": "local on servers",
    "n--ynnny": "local on servers",
    # otherwise
    "yn-ynnnn": "serving on servers",
    "n--ynnnn": "serving on servers",
}


def rows_of(case: tuple[bool, ...]) -> list[str]:
    """The rows of the table that speak of a case."""
    letters = ["y" if value else "n" for value in case]
    return [row for row in TABLE if all(r in ("-", c) for r, c in zip(row, letters, strict=True))]


CASES = [
    case
    for case in itertools.product((True, False), repeat=8)
    if case[3] or case[4]  # somewhere it has to run
]


def test_the_table_has_exactly_one_row_for_every_case() -> None:
    assert len(CASES) == 192
    assert all(len(rows_of(case)) == 1 for case in CASES)
    assert {row for case in CASES for row in rows_of(case)} == set(TABLE)


@pytest.mark.parametrize("row", TABLE)
def test_the_flow_is_the_table(row: str) -> None:
    for case in CASES:
        if rows_of(case) != [row]:
            continue
        plan = choose(Traits(*case))
        shown = ", ".join(
            f"{part.engine_class}{'+' if part.component else ''} on {part.place}"
            for part in plan.parts
        )
        assert shown == TABLE[row], case
        assert plan.hybrid == (case[3] and case[4])


def test_traits_come_from_the_answers() -> None:
    answers = from_values(
        {
            "load.peak_concurrency": HIGH_CONCURRENCY,
            "load.latency": "relaxed",
            "hardware.edge": ["cpu-arm"],
            "case.stage": "tuning",
            "team.operations": "dedicated",
            "load.bottleneck": "attention",
        }
    )
    assert traits(answers) == Traits(
        high_concurrency=True,
        latency_sensitive=False,
        bottleneck=True,
        central=True,
        edge=True,
        stays_local=False,
        validating=True,
        small_team=False,
    )
    fewer = from_values({"load.peak_concurrency": HIGH_CONCURRENCY - 1})
    assert not traits(fewer).high_concurrency
