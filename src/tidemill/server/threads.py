"""Threads beside the event loop's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def started_threads(count: int) -> ThreadPoolExecutor:
    """All of them started: once memory is short, none can be."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="tidemill-aside")
    started = threading.Barrier(count)  # until then none is free to take another's work
    try:
        for _ in range(count):
            pool.submit(started.wait)
    except BaseException:
        started.abort()  # or those that were started would keep the process from ending
        raise
    return pool


async def on_own_thread(work: Callable[[], T]) -> T:
    """What ``work`` gives, which may take minutes: nobody else waits for its thread meanwhile, and
    neither does the end of the program. Whoever leaves leaves it behind. Raises MemoryError if
    there can be no thread."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(set_: Callable[[Any], None], value: object) -> None:
        if not result.done():  # nobody has left
            set_(value)

    def run() -> None:
        try:
            done = partial(settle, result.set_result, work())
        except Exception as error:
            done = partial(settle, result.set_exception, error)
        with suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(done)

    try:
        threading.Thread(target=run, name="tidemill-opening", daemon=True).start()
    except RuntimeError:
        raise MemoryError("no thread can be started") from None
    return await result
