"""Where the events of a request wait for the stream that reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tidemill.engine.base import ErrorEvent, Event, FinishEvent

Batches = list[tuple[list[Event], float]]
"""Events of a request with the time of the step that gave them, in order."""


class Mailbox:
    """Of the event loop in which it is made, whose thread alone may use it.

    Taking empties it, so that what piles up behind a slow reader is read in one go; it holds at
    most the events of one request, whose number its max_tokens bounds.
    """

    def __init__(self, n_samples: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.accepted: asyncio.Future[None] = self.loop.create_future()
        """Done when the engine has the request; or the reason why it does not take it."""
        self._unfinished = n_samples
        self._posted: Batches = []
        self._arrival: asyncio.Future[None] | None = None  # what a reader waits for

    @property
    def complete(self) -> bool:
        """Whether the last event has arrived."""
        return self._unfinished <= 0

    @property
    def done(self) -> bool:
        """Whether the last event has been taken."""
        return self.complete and not self._posted

    def settle(self, error: Exception | None = None) -> None:
        """Say how it went with the request, to whoever may still wait for that."""
        if self.accepted.done():
            return
        if error is None:
            self.accepted.set_result(None)
        else:
            self.accepted.set_exception(error)

    def post(self, events: Iterable[Event], now: float) -> None:
        if not self._posted or self._posted[-1][1] != now:
            self._posted.append(([], now))
        batch = self._posted[-1][0]
        for event in events:
            batch.append(event)
            if isinstance(event, FinishEvent):
                self._unfinished -= 1
            elif isinstance(event, ErrorEvent):
                self._unfinished = 0
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def take(self) -> Batches:
        """All that has arrived, by step; waits for something to arrive."""
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("a stream is read in the event loop in which it was begun")
        if not self._posted:
            self._arrival = self.loop.create_future()
            await self._arrival
        posted, self._posted = self._posted, []
        return posted
