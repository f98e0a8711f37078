"""When the window of a closed loop closes, on a made-up clock: exactly, and without waiting."""

from __future__ import annotations

import asyncio
import selectors
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.bench.arrivals import Closed
from tidemill.bench.client import Endpoint, Reply
from tidemill.bench.records import Recording
from tidemill.bench.run import Plan, run
from tidemill.bench.workload import Fixed, Shape, Workload

ANSWER = b'data: {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}\n\n'
SERVICE = 3.0
"""Seconds that an answer takes."""


class Leaps(selectors.SelectSelector):
    """Instead of waiting, it puts the clock forward."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing is due, and nothing will come"
        self.now += timeout
        return super().select(0)


class MadeUpTime(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.leaps = Leaps()
        super().__init__(self.leaps)

    def time(self) -> float:
        return self.leaps.now


class Service:
    """In place of ``bench.client.Client``."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        pass

    async def send(self, body: bytes, tenant: str = "") -> Reply:
        reply = Reply()
        await asyncio.sleep(SERVICE)
        reply.status, reply.content_type = 200, "text/event-stream"
        reply.ended = asyncio.get_running_loop().time()
        reply.pieces = [(reply.ended, ANSWER + b"data: [DONE]\n\n")]
        return reply

    def close(self) -> None:
        pass


def carry_out(
    monkeypatch: pytest.MonkeyPatch, concurrency: int, pause: float, **plan: Any
) -> tuple[Recording, float]:
    """A run of conversations, and how many seconds after its window it ended."""
    loop = MadeUpTime()
    clock = SimpleNamespace(monotonic=loop.time)
    monkeypatch.setattr("tidemill.bench.run.Client", Service)
    monkeypatch.setattr("tidemill.bench.run.time", clock)
    monkeypatch.setattr("tidemill.bench.client.time", clock)
    talk = Shape("talk", Fixed(3), Fixed(4), turns=1000, pause=pause)
    made = Plan(
        endpoint=Endpoint("http://made.up/v1", "m"), workload=Workload((talk,)),
        load=Closed(concurrency), warmup=0.0, **plan,
    )  # fmt: skip
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        recording = runner.run(run(made))
        return recording, loop.time() - recording.window.closed


def test_it_closes_as_a_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    recording, after = carry_out(monkeypatch, 2, 0.0, seconds=10.0)
    assert recording.window.seconds == pytest.approx(4 * SERVICE)
    assert after == pytest.approx(0.0)


def test_it_closes_by_the_clock_where_all_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    recording, after = carry_out(monkeypatch, 3, 60.0, seconds=10.0)
    assert recording.window.seconds == pytest.approx(10.0)
    assert after == pytest.approx(0.0)
    assert len(recording.records) == 1 + 3  # nothing was sent after it


def test_a_request_on_its_way_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rests of 8 s: at 10 s the second round is under way, until 11 s."""
    recording, _ = carry_out(monkeypatch, 2, 8.0, seconds=10.0)
    assert recording.window.seconds == pytest.approx(8.0 + SERVICE)


def test_rests_do_not_close_it_before_there_were_requests_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recording, _ = carry_out(monkeypatch, 1, 60.0, seconds=10.0, requests=2)
    assert recording.window.seconds == pytest.approx(2 * (60.0 + SERVICE))
