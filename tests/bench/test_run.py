"""Runs against a mock server. Nothing is asserted of how fast anything was, only of what must hold
at any speed: a request is never sent before it is due, a token never stamped before it is written.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from support.canned import always, canned, http
from tidemill.bench.apart import run_apart
from tidemill.bench.arrivals import Closed, Gamma, Load, Trace
from tidemill.bench.client import Endpoint
from tidemill.bench.measures import summarise
from tidemill.bench.records import Record, Recording
from tidemill.bench.run import BenchError, Plan, Progress, run
from tidemill.bench.selftest import mock_server, self_test
from tidemill.bench.workload import Fixed, Shape, Workload

WORKLOAD = Workload((Shape("chat", Fixed(5), Fixed(4)),))
TTFT, ITL = 0.02, 0.005


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with mock_server(TTFT, ITL) as found:
        yield found


def plan(url: str, load: Load, seconds: float = 0.5, **fields: object) -> Plan:
    given = {"warmup": 0.2, "timeout": 60.0} | fields
    return Plan(endpoint=Endpoint(url, "m"), workload=WORKLOAD, load=load, seconds=seconds, **given)  # type: ignore[arg-type]


def most_at_once(records: list[Record]) -> int:
    changes = [(r.sent, 1) for r in records] + [(r.ended, -1) for r in records]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


def numbered_through(recording: Recording) -> bool:
    return sorted(r.index for r in recording.records) == list(range(len(recording.records)))


def test_a_closed_loop_keeps_its_concurrency(url: str) -> None:
    recording = asyncio.run(run(plan(url, Closed(6), requests=40)))
    assert most_at_once(recording.records) == 6
    assert numbered_through(recording)
    assert all(r.error is None and r.output_tokens == 4 for r in recording.records)
    window = recording.window
    assert window.seconds >= 0.5
    assert sum(window.opened <= r.ended <= window.closed for r in recording.records) >= 40
    # Every stream had begun and ended one before the window opened.
    assert sum(r.ended <= window.opened for r in recording.records) >= 6
    assert summarise(recording).latency["ttft"]["p50"].value >= TTFT


def test_an_open_loop_sends_by_the_clock_whatever_comes_back(url: str) -> None:
    recording = asyncio.run(run(plan(url, Gamma(100.0), seconds=1.0)))
    records = recording.records[1:]  # the first is the probe
    assert numbered_through(recording)
    assert all(r.error is None for r in records)
    assert all(r.sent >= r.due for r in records)
    assert recording.window.seconds == pytest.approx(1.0)
    again = asyncio.run(run(plan(url, Gamma(100.0), seconds=1.0))).records[1:]
    start, other = (min(r.due for r in rs) for rs in (records, again))
    due = sorted(r.due - start for r in records)
    assert due == pytest.approx(sorted(r.due - other for r in again), abs=1e-6)


def test_a_trace_is_replayed(url: str) -> None:
    recording = asyncio.run(run(plan(url, Trace((5.0, 5.1, 5.3)), seconds=0.5, warmup=0.05)))
    due = sorted(r.due for r in recording.records[1:])
    assert [t - due[0] for t in due] == pytest.approx([0.0, 0.1, 0.3])
    assert summarise(recording).requests == 2  # the first was warm-up
    assert [r.warmup for r in sorted(recording.records, key=lambda r: r.due)] == [
        True, True, False, False,
    ]  # fmt: skip


def test_a_run_that_cannot_begin_says_why() -> None:
    body = b'{"error": {"message": "there is no model \'m\'"}}'
    answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with canned(always(answer)) as server:
        for carry_out in (lambda p: asyncio.run(run(p)), run_apart):
            with pytest.raises(BenchError, match="http_404: there is no model 'm'"):
                carry_out(plan(server.url, Closed(2)))
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "wrong", [{"seconds": 0.0}, {"seconds": float("nan")}, {"warmup": -1.0}, {"timeout": 0.0}]
)
def test_a_plan_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        plan("http://127.0.0.1:1/v1", Closed(1), **wrong)  # type: ignore[arg-type]


def test_failures_within_a_run_are_all_accounted_for() -> None:
    """Of three requests one is good, one is refused, one is cut off."""
    good = b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: "

    def answer(connection: socket.socket, number: int) -> bool:
        if number % 3 == 1:
            connection.sendall(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n")
        else:
            connection.sendall(head + b"%d\r\n\r\n" % len(good))
            connection.sendall(good[:-8] if number % 3 == 2 else good)
        return number % 3 != 2

    with canned(answer) as server:
        recording = asyncio.run(run(plan(server.url, Closed(3), seconds=0.2, requests=30)))
    assert numbered_through(recording)
    assert len(recording.records) == len(server.requests)
    summary = summarise(recording)
    assert summary.good + sum(summary.errors.values()) == summary.requests
    assert set(summary.errors) == {"http_429", "closed"}


GOOD = b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n'


@pytest.mark.parametrize(
    ("load", "answered", "phase", "waits_for"),
    [
        (Closed(2), 0, "first request", 1),
        (Closed(2), 1, "warm-up", 2),
        (Closed(1), 2, "measuring", 1),
        (Trace((5.0, 5.1, 5.3)), 1, "ending", 3),
    ],
)
def test_what_a_run_waits_for_is_told(
    load: Load, answered: int, phase: str, waits_for: int
) -> None:
    """An endpoint that answers so many, and the others once it is told what is waited for."""
    told = threading.Event()
    seen: list[Progress] = []

    def answer(connection: socket.socket, number: int) -> bool:
        if number >= answered:
            told.wait(60)
        connection.sendall(http(GOOD, "text/event-stream"))
        return True

    def listen(progress: Progress) -> None:
        if (progress.phase, progress.waits_for) == (phase, waits_for) and progress.at_most:
            seen.append(progress)
            told.set()

    with canned(answer) as server:
        recording = asyncio.run(
            run(plan(server.url, load, seconds=0.4, warmup=0.05, timeout=50.0), listen)
        )
    assert all(r.error is None for r in recording.records)
    assert 0 < (seen[0].at_most or 0) <= 50


def test_more_tokens_than_were_asked_for_are_not_believed() -> None:
    """Of an endpoint that claims a thousand for each piece of text, pieces are counted."""
    usage = b'data: {"choices": [], "usage": {"completion_tokens": 1000}}\n\n'
    with canned(always(http(GOOD + usage, "text/event-stream"))) as server:
        recording = asyncio.run(run(plan(server.url, Closed(2), requests=10)))
    summary = summarise(recording)
    assert summary.good >= 10
    assert summary.mean_output_tokens == 1
    assert not summary.counted


def test_a_run_apart_is_the_same_and_watches_processes(url: str) -> None:
    recording = run_apart(plan(url, Closed(3), watch=(os.getpid(), 2**22 + 1)))
    assert numbered_through(recording)
    assert all(r.error is None for r in recording.records)
    assert recording.client_cpu > 0
    assert set(recording.watched) == {os.getpid(), 2**22 + 1}
    assert recording.watched[2**22 + 1] == 0.0


def test_the_load_generator_shows_its_own_error() -> None:
    found = self_test(ttft=TTFT, itl=ITL, tokens=10, load=Closed(4), seconds=0.5)
    # A token is stamped after it was written and before it was told of.
    assert 0 < found.lag_p50.value <= found.lag_p99.value < 60
    assert found.ttft_error >= 0
    assert found.summary.errors == {}
    assert found.summary.mean_output_tokens == 10
    assert "of a core" in str(found)
