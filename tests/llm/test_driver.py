"""The driver routes events and keeps a failing step from hanging anyone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engine.fake_runner import FakeRunner
from engine.helpers import check_idle, make_engine
from engine.helpers import request as fake_request
from tidemill.engine.base import ErrorEvent, Event, FinishEvent, Request, TokenEvent
from tidemill.engine.params import SamplingParams
from tidemill.llm.driver import Driver


class ScriptedEngine:
    """Gives the events of a script, step by step."""

    def __init__(self, steps: Sequence[list[Event] | Exception]) -> None:
        self.steps = list(steps)
        self.added: list[str] = []
        self.aborted: list[str] = []
        self.times: list[float] = []

    def add(self, request: Request, now: float) -> None:
        if not request.prompt_token_ids:
            raise ValueError("empty")
        self.added.append(request.id)

    def abort(self, request_id: str) -> bool:
        self.aborted.append(request_id)
        return True

    def step(self, now: float) -> list[Event]:
        self.times.append(now)
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


def driver_of(*steps: list[Event] | Exception) -> tuple[Driver, ScriptedEngine]:
    engine = ScriptedEngine(steps)
    ticks = iter(range(1000))
    return Driver(engine, clock=lambda: float(next(ticks))), engine  # type: ignore[arg-type]


def request(request_id: str, n: int = 1, ids: tuple[int, ...] = (1,)) -> Request:
    return Request(request_id, ids, SamplingParams(n=n))


class Inbox:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended = 0

    def __call__(self, events: Sequence[Event], now: float) -> None:
        self.events += events

    def end(self) -> None:
        self.ended += 1


def test_events_go_to_their_requests() -> None:
    a, b = Inbox(), Inbox()
    one, two = TokenEvent("a", 0, 5, "x"), TokenEvent("b", 0, 6, "y")
    end_a = FinishEvent("a", 0, "stop")
    driver, engine = driver_of([one, two, end_a], [FinishEvent("b", 0, "length")])
    driver.submit(request("a"), a, a.end)
    driver.submit(request("b"), b, b.end)
    assert driver.step()
    assert (a.events, a.ended) == ([one, end_a], 1)
    assert (b.events, b.ended, driver.busy) == ([two], 0, True)
    assert driver.step()
    assert (b.ended, driver.busy) == (1, False)
    assert not driver.step()
    assert engine.times == sorted(engine.times)


def test_all_samples_must_end() -> None:
    a = Inbox()
    driver, _ = driver_of([FinishEvent("a", 1, "stop")], [FinishEvent("a", 0, "stop")])
    driver.submit(request("a", n=2), a, a.end)
    driver.step()
    assert (a.ended, driver.busy) == (0, True)
    driver.step()
    assert (a.ended, driver.busy) == (1, False)


def test_an_invalid_request_leaves_nothing_behind() -> None:
    driver, engine = driver_of()
    with pytest.raises(ValueError, match="empty"):
        driver.submit(request("a", ids=()), Inbox())
    assert not driver.busy
    assert engine.added == []


def test_nothing_comes_after_an_abort() -> None:
    a, b = Inbox(), Inbox()
    driver, engine = driver_of([FinishEvent("a", 0, "abort"), FinishEvent("b", 0, "stop")])
    driver.submit(request("a"), a, a.end)
    driver.submit(request("b"), b, b.end)
    driver.abort("a")
    driver.abort("a")
    driver.abort("unknown")
    driver.step()
    assert engine.aborted == ["a"]
    assert (a.events, a.ended, b.ended) == ([], 0, 1)


def test_a_step_that_raises_ends_its_requests_and_not_the_driver() -> None:
    a, b, c = Inbox(), Inbox(), Inbox()
    driver, engine = driver_of(RuntimeError("boom"), [FinishEvent("c", 0, "stop")])
    driver.submit(request("a"), a, a.end)
    driver.submit(request("b"), b, b.end)
    driver.step()
    for inbox, name in ((a, "a"), (b, "b")):
        (event,) = inbox.events
        assert isinstance(event, ErrorEvent)
        assert event.request_id == name
        assert "boom" in event.message
        assert inbox.ended == 1
    assert sorted(engine.aborted) == ["a", "b"]
    driver.submit(request("c"), c, c.end)
    driver.step()
    assert c.ended == 1


def test_an_error_event_ends_all_samples_of_a_request() -> None:
    a = Inbox()
    events: list[Any] = [ErrorEvent("a", "no")]
    driver, _ = driver_of(events)
    driver.submit(request("a", n=3), a, a.end)
    driver.step()
    assert (a.ended, driver.busy) == (1, False)


def test_aborts_pile_nothing_up() -> None:
    engine = make_engine(FakeRunner(), max_waiting=8)
    driver = Driver(engine, lambda: 0.0)
    for i in range(200):
        inbox = Inbox()
        driver.submit(fake_request(str(i), [1, 2, 3], n=3), inbox, inbox.end)
        if i % 2:
            driver.step()
        driver.abort(str(i))
        assert inbox.ended == 0
        assert not engine.has_work
    check_idle(engine)


def test_closing_ends_what_runs_and_refuses_the_rest() -> None:
    a, b = Inbox(), Inbox()
    driver, engine = driver_of()
    driver.submit(request("a", n=2), a, a.end)
    driver.close("no more")
    driver.close("no more")
    assert a.events == [ErrorEvent("a", "no more")]
    assert (a.ended, engine.aborted) == (1, ["a"])
    with pytest.raises(RuntimeError, match="closed"):
        driver.submit(request("b"), b, b.end)
    assert not driver.step()


def test_an_engine_that_is_broken_keeps_the_news_from_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = Inbox(), Inbox()
    driver, engine = driver_of()

    def abort(request_id: str) -> None:
        raise KeyError(request_id)

    monkeypatch.setattr(engine, "abort", abort)
    driver.submit(request("a"), a, a.end)
    driver.submit(request("b"), b, b.end)
    driver.close("broken")
    assert (a.ended, b.ended) == (1, 1)
