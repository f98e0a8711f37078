"""Ratios, medians and the table of a comparison."""

from __future__ import annotations

import json

import pytest

from comparison.report import median, ratio, rows, table
from comparison.rounds import Record
from peers.protocol import Work


def record(*values, figure="decode", **more):
    return Record(settings={}, rounds=[None if v is None else {figure: v} for v in values], **more)


def test_ratios_are_taken_round_by_round():
    # The machine slows down by half for the second round: within it the ratio stays.
    found = ratio(record(100, 50, 120), record(50, 25, 30), "decode")
    assert (found.median, found.lowest, found.highest, found.rounds) == (2.0, 2.0, 4.0, 3)


def test_of_times_and_bytes_less_is_better():
    found = ratio(record(0.5, figure="seconds"), record(1.5, figure="seconds"), "seconds")
    assert found.median == 3.0


def test_rounds_that_one_lost_are_left_out():
    found = ratio(record(100, 100), record(None, 25), "decode")
    assert (found.median, found.rounds) == (4.0, 1)
    assert ratio(record(100), record(), "decode") is None


def test_the_median_leaves_out_lost_rounds():
    assert median(record(1, None, 3, 2), "decode") == 2
    assert median(record(), "decode") is None


WORK = Work("8k context", "speed", prompt=8, generate=4, figures=("prefill", "decode"))


@pytest.fixture
def found():
    both = [{"prefill": 1000.0, "decode": 50.0}, {"prefill": 900.0, "decode": 52.0}]
    theirs = [{"prefill": 500.0, "decode": 40.0}, {"prefill": 300.0, "decode": 40.0}]
    records = {
        ("long", "tidemill"): Record(settings={}, rounds=both),
        ("long", "swift"): Record(settings={"flash": "on"}, rounds=theirs),
        ("long", "absent"): Record(error="there is no such package"),
    }
    return rows("tiny", {"long": WORK}, ["tidemill", "swift", "absent"], records)


def test_a_work_with_two_figures_has_a_block_for_each(found):
    text = table(found)
    assert "tiny: 8k context, prefill (tok/s)" in text
    assert "tiny: 8k context, decode (tok/s)" in text


def test_the_table_shows_median_ratio_range_and_settings(found):
    line = next(line for line in table(found).splitlines() if "swift" in line)
    assert line.split() == ["swift", "400.0", "2.50x", "(2.00,", "3.00)", "flash:", "on"]


def test_an_absent_peer_is_in_the_table_with_the_reason(found):
    text = table(found)
    assert text.count("absent            not run: there is no such package") == 2


def test_rows_are_json_with_every_round(found):
    row = json.loads(json.dumps(found))[1]
    assert row["peer"] == "swift"
    assert row["rounds"] == [500.0, 300.0]
    assert row["ratio"] == 2.5


def test_without_the_base_there_are_no_ratios():
    records = {("long", "swift"): Record(settings={}, rounds=[{"prefill": 1.0, "decode": 2.0}])}
    assert rows("tiny", {"long": WORK}, ["swift"], records)[0]["ratio"] is None
