"""The queue in front of a model: how many requests run, who is next, who is refused.

The engine has a queue of its own; it is kept short, so that the order is decided here, as late as
possible, when it is known what each tenant has been served.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf

from tidemill.engine.errors import QueueFullError
from tidemill.server.fairness import OUTPUT_COST, PROMPT_COST, FairQueue, Ticket
from tidemill.server.keys import ANYBODY, Tenant
from tidemill.server.placement import PATIENCE

_RATE_WINDOW = 64  # ends of requests over which the speed of the queue is measured


class Overloaded(QueueFullError):
    """The queue is full; ``retry_after`` seconds from now there may be room."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Grant:
    """The right to run a request, which is told what the request costs. ``urgent``: at once, even
    beside what fills the engine already (see FairQueue.start)."""

    def __init__(self, queue: FairQueue, tenant: str, urgent: bool) -> None:
        self.urgent = urgent
        self._queue = queue
        self._tenant = tenant

    def prompt(self, tokens: int) -> None:
        self._queue.charge(self._tenant, PROMPT_COST * tokens)

    def output(self, tokens: int) -> None:
        self._queue.charge(self._tenant, OUTPUT_COST * tokens)


class Admission:
    """Lets requests of ``capacity`` sequences together run; at most ``max_waiting`` wait.
    ``keeps_places``: see FairQueue."""

    def __init__(
        self, capacity: int, max_waiting: int, *, patience: float = PATIENCE,
        keeps_places: bool = True,
    ) -> None:  # fmt: skip
        self.capacity = capacity
        self.max_waiting = max_waiting
        self._queue = FairQueue(capacity, patience, keeps_places=keeps_places)
        self._calls: dict[Ticket, asyncio.Future[bool]] = {}
        self._ends: deque[float] = deque(maxlen=_RATE_WINDOW)

    @property
    def running(self) -> int:
        return self._queue.running

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def slot(
        self, tenant: Tenant, size: int, priority: int = 0, deadline: float = inf
    ) -> AsyncIterator[Grant]:
        """Wait for the turn of a request of ``size`` sequences, and hold its place. ``priority`` is
        the request's own. Raises Overloaded at once if the queue is full, or later if it has to
        give way to others. Whoever asks gives up at ``deadline``."""
        size = min(size, self._queue.most)  # what is beyond that waits in the engine
        now = time.monotonic()
        if tenant is ANYBODY:
            ticket = Ticket(tenant.name, priority, size, now, deadline)
        else:
            # Within its tenant's class: each class gets a place now and then, so that whoever made
            # classes of its own, as many as it has requests, would get more than its share.
            ticket = Ticket(tenant.name, tenant.priority, size, now, deadline, order=priority)
        self._make_room(ticket)
        self._queue.add(ticket, tenant.weight)
        call = self._calls[ticket] = asyncio.get_running_loop().create_future()
        self._call_next()
        try:
            urgent = await call
        except BaseException:
            if self._calls.pop(ticket, None) is not None:
                self._queue.remove(ticket)
            elif call.done() and not call.cancelled() and call.exception() is None:
                self._end(ticket)  # it was called just as it was cancelled
            self._call_next()
            raise
        try:
            yield Grant(self._queue, tenant.name, urgent)
        finally:
            self._end(ticket)
            self._call_next()

    def retry_after(self) -> float:
        """Seconds until what waits now will have been served, by the speed of late."""
        if len(self._ends) < 2 or self._ends[-1] == self._ends[0]:
            return 1.0
        rate = (len(self._ends) - 1) / (self._ends[-1] - self._ends[0])
        return min(max(1.0, len(self._queue) / rate), 600.0)

    def _make_room(self, ticket: Ticket) -> None:
        if len(self._queue) < self.max_waiting:
            return
        victim = self._queue.newest_of_largest(ticket.tenant)
        if victim is None:
            raise self._overloaded()
        self._queue.remove(victim)
        if not (call := self._calls.pop(victim)).done():  # or cancelled, and not yet told
            call.set_exception(self._overloaded())

    def _overloaded(self) -> Overloaded:
        return Overloaded(
            f"{len(self._queue)} requests are waiting already; try again later", self.retry_after()
        )

    def _call_next(self) -> None:
        now = time.monotonic()
        while (ticket := self._queue.next(now)) is not None:
            urgent = self._queue.start(ticket, now)
            call = self._calls.pop(ticket)
            if call.done():  # cancelled, and not yet told
                self._end(ticket)
            else:
                call.set_result(urgent)

    def _end(self, ticket: Ticket) -> None:
        self._ends.append(time.monotonic())
        self._queue.end(ticket)
