"""Runs an engine for its callers: gives it the time, and gives each request its events."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from tidemill.engine.base import ErrorEvent, Event, FinishEvent, Request
from tidemill.engine.engine import Engine
from tidemill.records import dataclass

log = logging.getLogger("tidemill")

Inbox = Callable[[Sequence[Event], float], None]
"""Takes a request's events of one step, in order, and the time. Must not block or raise."""

OnEnd = Callable[[], None]


@dataclass(slots=True)
class _Running:
    inbox: Inbox
    on_end: OnEnd
    unfinished: int
    """Samples that have not ended."""


class Driver:
    """An engine with a clock and one inbox per request.

    ``submit``, ``abort`` and ``step`` may be called from several threads; each waits for a step
    in progress.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self.engine = engine
        self.clock = clock
        self.closed = False
        self._running: dict[str, _Running] = {}
        self.lock = threading.RLock()
        """Held while requests change; inboxes are called under it."""

    def submit(self, request: Request, inbox: Inbox, on_end: OnEnd = lambda: None) -> None:
        """Queue a request. Raises what ``Engine.add`` raises, or RuntimeError once closed, and has
        then no effect.

        ``on_end`` is called once, when its last event has been delivered; not after ``abort``.
        """
        with self.lock:
            if self.closed:
                raise RuntimeError("this model has been closed")
            self.engine.add(request, self.clock())
            self._running[request.id] = _Running(inbox, on_end, request.params.n)

    def abort(self, request_id: str) -> None:
        """Drop a request, in whatever state: nothing more will be sent to its inbox."""
        with self.lock:
            if self._running.pop(request_id, None) is not None:
                self.engine.abort(request_id)
                if not self._running:  # no step would come and take the engine's events
                    self.engine.step(self.clock())

    def close(self, reason: str) -> None:
        """End all requests with an error, and refuse further ones; idempotent."""
        with self.lock:
            self.closed = True
            self._fail_all(reason)

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def step(self) -> bool:
        """One step of the engine, if there is work; whether there was."""
        with self.lock:
            if not self._running:
                return False
            try:
                events = self.engine.step(self.clock())
            except Exception as error:
                # It has no known result for anyone in it, and the engine goes on with what comes.
                log.exception("the engine's step failed; its requests are ended with an error")
                kind = type(error).__name__
                self._fail_all(f"the engine failed while this request ran: {kind}: {error}")
                return True
            self._deliver(events)
            return True

    def _deliver(self, events: Sequence[Event]) -> None:
        now = self.clock()
        by_request: dict[str, list[Event]] = {}
        for event in events:
            by_request.setdefault(event.request_id, []).append(event)
        for request_id, mine in by_request.items():
            running = self._running.get(request_id)
            if running is None:
                continue
            for event in mine:
                if isinstance(event, FinishEvent):
                    running.unfinished -= 1
                elif isinstance(event, ErrorEvent):
                    running.unfinished = 0
            running.inbox(mine, now)
            if running.unfinished <= 0:
                del self._running[request_id]
                running.on_end()

    def _fail_all(self, message: str) -> None:
        now = self.clock()
        failed, self._running = self._running, {}
        for request_id, running in failed.items():
            with suppress(Exception):  # an engine that is broken must not keep this from anyone
                self.engine.abort(request_id)
            running.inbox([ErrorEvent(request_id, message)], now)
            running.on_end()
