"""Threads beside the event loop's."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from support.waiting import until
from tidemill.server.threads import on_own_thread, started_threads


def _beside() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("tidemill-aside")]


def test_threads_that_cannot_all_be_started_keep_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were started wait for the rest, and would do so for ever."""
    others = set(_beside())  # some of which may just be ending
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if len(set(_beside()) - others) >= 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start"):
        started_threads(4)
    until(lambda: not set(_beside()) - others)


def test_what_a_thread_of_its_own_gives() -> None:
    def wrong() -> None:
        raise KeyError("x")

    assert asyncio.run(on_own_thread(threading.get_ident)) != threading.get_ident()
    with pytest.raises(KeyError):
        asyncio.run(on_own_thread(wrong))


def test_a_loop_can_end_before_a_thread_of_its_own_does() -> None:
    go_on, ended = threading.Event(), threading.Event()
    complaints: list[Any] = []

    def slow() -> None:
        go_on.wait(60)
        ended.set()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        task = asyncio.ensure_future(on_own_thread(slow))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())  # which ends now, and not when the thread does
    go_on.set()
    assert ended.wait(60)
    assert not complaints


def test_no_thread_is_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", cannot)
    with pytest.raises(MemoryError):
        asyncio.run(on_own_thread(int))
