"""Ratios, medians and the table of a comparison."""

from __future__ import annotations

import json

import pytest

from comparison.report import compared, merged, rows, table, text
from comparison.rounds import Record
from peers.protocol import Work


def row(peer, *rounds, figure="decode", error=None, model="tiny"):
    return {
        "model": model, "work": "w", "title": "a work", "figure": figure, "unit": "tok/s",
        "peer": peer, "rounds": list(rounds), "settings": {}, "tried": [], "error": error,
    }  # fmt: skip


def of(found, peer):
    (one,) = (row for row in found if row["peer"] == peer)
    return one


def against(ours, theirs, **more):
    """The peer's row in a comparison with Tidemill."""
    return of(compared([row("tidemill", *ours, **more), row("vllm", *theirs, **more)]), "vllm")


def test_ratios_are_taken_round_by_round():
    # The machine slows down by half for the second round: within it the ratio stays.
    found = against([100, 50, 120], [50, 25, 30])
    assert (found["ratio"], found["lowest"], found["highest"]) == (2.0, 2.0, 4.0)


def test_of_times_and_bytes_less_is_better():
    assert against([0.5], [1.5], figure="seconds")["ratio"] == 3.0


def test_rounds_that_one_lost_are_left_out():
    found = against([100, 100], [None, 25])
    assert (found["ratio"], found["median"], found["measured"]) == (4.0, 25, 1)
    found = against([100], [])
    assert (found["ratio"], found["median"], found["measured"]) == (None, None, 0)


def test_the_median_leaves_out_lost_rounds():
    assert compared([row("vllm", 1, None, 3, 2)])[0]["median"] == 2


def report(when, *found, absent=None):
    peers = [{"name": row["peer"], "version": "1", "timed": "its API"} for row in found]
    limits = {"processor": "a CPU", "threads": 2, "read_gbytes": 10.0, "products": {"4x8 bit": 9.0}}
    loads = [{"model": "tiny", "round": 0, "busy": 0.0, "stolen": 0.0, "average": 0.1}]
    return {
        "when": when, "limits": limits, "loads": loads, "peers": peers, "absent": absent or {},
        "rows": compared(found),
    }  # fmt: skip


def test_merged_runs_keep_ratios_within_a_run():
    # The second run met a machine twice as fast, and another peer.
    both = merged([
        report("2026-02", row("tidemill", 200, 200), row("vllm", 50, 100)),
        report("2026-01", row("tidemill", 100), row("openvino", 20), absent={"vllm": "no wheel"}),
    ])  # fmt: skip
    assert [row["peer"] for row in both["rows"]] == ["tidemill", "openvino", "vllm"]
    assert of(both["rows"], "tidemill")["rounds"] == [100, 200, 200]
    assert of(both["rows"], "openvino")["ratio"] == 5.0
    found = of(both["rows"], "vllm")
    assert (found["rounds"], found["median"], found["ratio"]) == ([None, 50, 100], 75, 3.0)
    assert both["absent"] == {}
    assert len(both["loads"]) == 2


def test_merged_runs_tell_a_failure_only_of_what_has_no_figures():
    both = merged([
        report("1", row("tidemill", 1), row("vllm", error="too slow"), row("openvino", error="no")),
        report("2", row("tidemill", 1), row("vllm", 1), row("openvino", error="still no")),
    ])  # fmt: skip
    assert of(both["rows"], "vllm")["error"] is None
    assert of(both["rows"], "openvino")["error"] == "still no"


def test_a_report_says_what_was_timed_and_how_quiet_it_was():
    noisy = report("1", row("vllm", 100.0), absent={"openvino": "no wheel"})
    noisy["loads"].append({"model": "tiny", "round": 1, "busy": 0.5, "stolen": 0, "average": 3})
    said = text(noisy)
    assert "vllm: 1; timed by its API" in said
    assert "openvino: not to be had: no wheel" in said
    assert "before 1 of 2 rounds the machine was not quiet" in said
    assert said.count("NOT QUIET") == 1


WORK = Work("8k context", "speed", prompt=8, generate=4, figures=("prefill", "decode"))


@pytest.fixture
def found():
    both = [{"prefill": 1000.0, "decode": 50.0}, {"prefill": 900.0, "decode": 52.0}]
    theirs = [{"prefill": 500.0, "decode": 40.0}, {"prefill": 300.0, "decode": 40.0}]
    records = {
        ("long", "tidemill"): Record(settings={}, rounds=both),
        ("long", "vllm"): Record(settings={"flash": "on"}, rounds=theirs),
        ("long", "absent"): Record(error="there is no such package"),
    }
    return rows("tiny", {"long": WORK}, ["tidemill", "vllm", "absent"], records)


def test_a_work_with_two_figures_has_a_block_for_each(found):
    shown = table(found)
    assert "tiny: 8k context, prefill (tok/s)" in shown
    assert "tiny: 8k context, decode (tok/s)" in shown


def test_the_table_shows_median_ratio_range_and_settings(found):
    line = next(line for line in table(found).splitlines() if "vllm" in line)
    assert line.split() == [
        "vllm", "400.0", "of", "2", "2.50x", "(2.00,", "3.00)", "flash:", "on"
    ]  # fmt: skip


def test_an_absent_peer_is_in_the_table_with_the_reason(found):
    assert table(found).count("absent            not run: there is no such package") == 2


def test_rows_are_json_with_every_round(found):
    row = json.loads(json.dumps(found))[1]
    assert row["peer"] == "vllm"
    assert row["rounds"] == [500.0, 300.0]
    assert row["ratio"] == 2.5


def test_without_the_base_there_are_no_ratios():
    assert compared([row("vllm", 1.0)])[0]["ratio"] is None
