"""Clients that stall, on a clock that is set by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from tidemill.server.connection import Connection

KIB = 1024


@dataclass
class Timer:
    call: Callable[[], Any]
    seconds: float
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Loop:
    """What a connection needs of an event loop."""

    timers: list[Timer] = field(default_factory=list)

    def call_later(self, seconds: float, call: Callable[..., Any], *args: Any) -> Timer:
        self.timers.append(Timer(lambda: call(*args), seconds))
        return self.timers[-1]

    def pass_time(self) -> None:
        """Let every timer that is set now run out."""
        due, self.timers = [t for t in self.timers if not t.cancelled], []
        for timer in due:
            timer.call()


@dataclass
class Transport:
    unread: int = 0
    aborted: bool = False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        pass

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.aborted


@pytest.fixture
def parts() -> tuple[Connection, Transport, Loop]:
    async def app(scope: object, receive: object, send: object) -> None: ...

    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    loop, transport = Loop(), Transport()
    connection = Connection(config, ServerState(), {}, _loop=loop)
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport, loop


Parts = tuple[Connection, Transport, Loop]


@pytest.fixture
def answered(parts: Parts) -> Parts:
    """The head of a request has arrived, and its answer is to be read."""
    connection, transport, loop = parts
    loop.timers.clear()
    transport.unread = 100 * KIB
    connection.pause_writing()
    return parts


def test_a_reader_may_be_slow_but_not_stand_still(answered: Parts) -> None:
    _, transport, loop = answered
    for left in (84, 60, 44):
        transport.unread = left * KIB
        loop.pass_time()
        assert not transport.aborted
    loop.pass_time()
    assert transport.aborted


def test_a_few_bytes_now_and_then_are_no_reading(answered: Parts) -> None:
    _, transport, loop = answered
    transport.unread -= 1
    loop.pass_time()
    assert transport.aborted


def test_whoever_has_read_is_left_alone(answered: Parts) -> None:
    connection, transport, loop = answered
    transport.unread = 0
    connection.resume_writing()
    loop.pass_time()
    assert not transport.aborted
    connection.pause_writing()
    connection.connection_lost(None)
    loop.pass_time()
    assert not transport.aborted


def test_a_head_that_does_not_arrive(parts: Parts) -> None:
    connection, transport, loop = parts
    connection.data_received(b"POST /v1/models HTTP/1.1\r\nHos")
    loop.pass_time()
    assert transport.aborted


def test_the_end_of_an_answer_is_to_be_read_too(answered: Parts) -> None:
    connection, transport, loop = answered
    connection.cycle = SimpleNamespace(response_complete=True)  # type: ignore[assignment]
    connection.on_response_complete()
    transport.unread = 10 * KIB
    connection.resume_writing()
    loop.pass_time()
    assert not transport.aborted
    loop.pass_time()
    assert transport.aborted


def test_whoever_has_read_all_of_an_answer_is_left_alone(parts: Parts) -> None:
    connection, transport, loop = parts
    loop.timers.clear()  # as if the head of a request had arrived
    connection.cycle = SimpleNamespace(response_complete=True)  # type: ignore[assignment]
    transport.unread = 5 * KIB
    connection.on_response_complete()
    transport.unread = 0
    for _ in range(3):
        loop.pass_time()
    transport.unread = 5 * KIB  # of the next answer, which comes as it is made
    loop.pass_time()
    assert not transport.aborted
