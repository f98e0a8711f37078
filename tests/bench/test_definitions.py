"""One recording, and what each tool would make of it, by hand."""

from __future__ import annotations

import pytest

from tidemill.bench.definitions import TOOLS, Row, definitions, text
from tidemill.bench.measures import Slo, summarise
from tidemill.bench.records import Record, Recording, Window


def record(due: float, sent: float, times: list[float], ended: float, tokens: int) -> Record:
    return Record(0, "chat", due, sent, ended, times, output_tokens=tokens)


FAILED = Record(0, "chat", 6.0, 6.0, 12.5, [], error="timeout")
RECORDING = Recording(
    [
        record(-1.0, -1.0, [-0.5, 0.5], 0.6, 2),  # of the warm-up
        record(1.0, 1.1, [1.5, 1.7, 2.1], 2.2, 5),  # sent late
        record(3.0, 3.0, [4.0, 4.2], 4.2, 21),  # most tokens in two pieces
        record(5.0, 5.0, [5.4], 5.5, 1),
        FAILED,
        record(9.0, 9.0, [9.5, 9.6, 11.5], 11.6, 3),  # ends after the window
    ],
    Window(0.0, 10.0),
    0.1,
)
SLO = Slo(ttft=0.45, tpot=0.5)
FOUND = {found.title: found for found in definitions(RECORDING, SLO)}


def row(title: str, name: str) -> Row:
    return next(row for row in FOUND[title].rows if row.name == name)


@pytest.mark.parametrize(
    ("title", "name", "ours", "vllm", "aiperf", "guidellm"),
    [
        ("first token", "p50", 0.5, 0.45, 0.45, 0.4),
        ("first token", "p90", 1.0, 0.85, 0.85, 1.0),
        ("first token", "p99", 1.0, 0.985, 0.985, 1.0),
        # 0.15 s, 0.01 s and 1 s; GuideLLM weighs them 4, 20 and 2
        ("token after the first", "p50", 0.15, 0.15, 0.15, 0.01),
        ("token after the first", "p90", 1.0, 0.83, 0.83, 0.15),
        ("token after the first", "p99", 1.0, 0.983, 0.983, 1.0),
        # 0.2 s, 1.2 s / 21, 0.4 s and 2.5 s / 3, weighing 5, 21, 1 and 3
        ("token, with the first", "p50", None, None, None, 1.2 / 21),
        ("token, with the first", "p90", None, None, None, 0.4),
        ("token, with the first", "p99", None, None, None, 2.5 / 3),
        ("gap between chunks", "p50", 0.2, 0.2, 0.2, None),
        ("gap between chunks", "p90", 1.9, 1.3, 1.3, None),
        ("whole answer", "p50", 1.1, 1.1, 1.1, 1.1),
        ("whole answer", "p99", 2.5, 2.461, 2.461, 2.6),
        ("speed for a user", "p50", 1 / 0.15, None, 1 / 0.15, None),
        # 30 tokens of good requests; within the window came 5 + 21 + 1, one of the warm-up, and of
        # the last request two, or one if its chunks are spread evenly
        ("output tokens", "rate", 3.0, 30 / 12.5, 30 / 10.4, 2.9),
        ("requests", "rate", 0.4, 4 / 12.5, 4 / 10.4, 0.4),
        # From when they were due one meets the SLO, from when they were sent two do, of which one
        # has no TPOT.
        ("goodput", "rate", 0.1, 2 / 12.5, 1 / 10.4, None),
        ("failed requests", "count", 1, 1, 1, 1),
    ],
)
def test_by_hand(
    title: str, name: str, ours: float | None, vllm: float | None, aiperf: float | None,
    guidellm: float | None,
) -> None:  # fmt: skip
    found = row(title, name)
    wanted = {"ours": ours, "vllm": vllm, "aiperf": aiperf, "guidellm": guidellm}
    for tool, value in wanted.items():
        assert getattr(found, tool) == (None if value is None else pytest.approx(value)), tool


def test_a_tool_has_a_figure_if_and_only_if_it_has_a_name_for_it() -> None:
    for found in FOUND.values():
        for line in found.rows:
            named = {tool for tool in TOOLS if getattr(line, tool) is not None}
            assert named == set(found.called), found.title


def test_ours_are_those_of_the_summary() -> None:
    summary = summarise(RECORDING, SLO)
    for title, latency in (
        ("first token", "ttft"), ("token after the first", "tpot"), ("gap between chunks", "itl"),
        ("whole answer", "e2e"),
    ):  # fmt: skip
        for share, estimate in summary.latency[latency].items():
            assert row(title, share).ours == pytest.approx(estimate.value)
    assert row("output tokens", "rate").ours == pytest.approx(summary.output_rate)
    assert row("goodput", "rate").ours == pytest.approx(summary.goodput)


@pytest.mark.parametrize("records", [[], [FAILED]])
def test_a_run_without_answers_has_no_latencies(records: list[Record]) -> None:
    found = {d.title: d for d in definitions(Recording(records, Window(0.0, 10.0), 0.1), SLO)}
    assert {line.ours for line in found["first token"].rows} == {None}
    assert found["output tokens"].rows[0].aiperf is None
    assert found["failed requests"].rows[0].ours == len(records)
    assert text(list(found.values()))


def test_as_text() -> None:
    said = text(list(FOUND.values()))
    lines = said.splitlines()
    assert lines[0].split() == list(TOOLS.values())
    (median,) = [line for line in lines if line.startswith("  p50") and "450 ms" in line]
    assert median.split() == ["p50", "500", "ms", "450", "ms", "450", "ms", "400", "ms"]
    assert "from when it was sent" in said
    assert max(map(len, lines)) <= 100
    assert all(" " + name in said for found in FOUND.values() for name in found.called.values())
