"""Both ends of the connection between front end and worker, each without the other: what arrives
when."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.engine.base import EngineStats, Event, FinishEvent, TokenEvent
from tidemill.llm.mailbox import Mailbox
from tidemill.server.wire import Kind
from tidemill.server.worker import Worker


def token(text: str) -> TokenEvent:
    return TokenEvent("r", 0, 1, text)


def test_what_comes_while_the_reader_is_busy_is_not_lost() -> None:
    """Also the end, which has come before the reader has come back for what was before it."""

    async def main() -> list[Event]:
        mailbox = Mailbox(1)
        mailbox.post([token("a")], 1.0)
        got: list[Event] = []
        while not mailbox.done:
            got += [event for events, _ in await mailbox.take() for event in events]
            if len(got) == 1:
                mailbox.post([token("b")], 2.0)
                mailbox.post([FinishEvent("r", 0, "length")], 3.0)
        return got

    events = asyncio.run(asyncio.wait_for(main(), 60))
    assert events == [token("a"), token("b"), FinishEvent("r", 0, "length")]


def test_what_an_answer_took_is_told_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or whoever has it and asks for the metrics would not find it in them."""
    idle: Any = SimpleNamespace(
        driver=SimpleNamespace(busy=False, engine=SimpleNamespace(stats=EngineStats()))
    )
    sent: list[Kind] = []
    with socket.socket() as connection:
        worker = Worker(connection)
        monkeypatch.setattr(worker, "_send", lambda kind, *fields: sent.append(kind))
        worker._inbox([FinishEvent("r", 0, "length")], 1.0)
        worker._tell(idle)
    assert sent == [Kind.STATS, Kind.EVENTS]
