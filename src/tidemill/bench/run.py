"""The loops that send requests, closed and open, and keep a record of each.

A run begins with one request that must succeed, so that a wrong address or name is an error with
a reason instead of a table of failures. Then comes the load. The measured window opens once the
load stands (closed loop: the first request of every stream has ended; open loop: ``warmup`` seconds
have passed), and nothing stops or drains in between. That of a closed loop closes as a request
ends, unless all streams rest. After the window nothing new is sent, and all that runs is waited
for: what was due within the window is measured to its end.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Literal

import msgspec

from tidemill.bench.arrivals import Closed, Load
from tidemill.bench.client import Client, Endpoint
from tidemill.bench.processes import CpuMeter
from tidemill.bench.records import MIN_SECONDS, Record, Recording, Window
from tidemill.bench.stream import Answer, read
from tidemill.bench.workload import Workload

_PROGRESS_EVERY = 0.5
_ROLLING = 10.0
_MOST_ROLLING = 1000
"""Seconds, and answers, that progress is told of: going through more would hold up the load."""

PAUSE_AFTER_ERROR = 0.1
"""Seconds that a stream of a closed loop then waits: an endpoint that refuses is not hammered."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of whom, and how fast.

    The window lasts ``seconds``, and until ``requests`` have ended in it. ``warmup``: seconds
    before it; in a closed loop those over which the streams begin one after the other.
    ``timeout``: seconds that one request may take. ``watch``: ids of processes on this machine
    whose CPU time within the window is recorded. ``keep_text``: records have the answers' text.
    """

    endpoint: Endpoint
    workload: Workload
    load: Load
    seconds: float
    requests: int = 0
    warmup: float = 1.0
    timeout: float = 120.0
    watch: tuple[int, ...] = ()
    keep_text: bool = False

    def __post_init__(self) -> None:
        least_of = {"seconds": MIN_SECONDS, "timeout": MIN_SECONDS, "warmup": 0, "requests": 0}
        for name, least in least_of.items():
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise ValueError(f"{name} must be at least {least}, not {value}")


class BenchError(Exception):
    """The run makes no sense: the endpoint does not answer, or not as it should."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is, ``seconds`` after its beginning. ``left``: until nothing new is sent, at
    least. Requests so far, warm-up included. What follows is of the good answers that came to their
    end in the last 10 s: how many a second, their tokens, their TTFT (None: there were none)."""

    phase: Literal["warm-up", "measuring", "ending"]
    seconds: float
    left: float
    sent: int
    ended: int
    failed: int
    request_rate: float
    output_rate: float
    ttft_p50: float | None
    ttft_p99: float | None

    @property
    def in_flight(self) -> int:
        return self.sent - self.ended


async def run(plan: Plan, on_progress: Callable[[Progress], None] | None = None) -> Recording:
    """Carry out a plan; ``on_progress`` is called twice a second. Raises BenchError if the first
    request fails."""
    running = _Run(plan)
    telling = None if on_progress is None else asyncio.create_task(running.tell(on_progress))
    # A collection would hold everything up for longer than what is measured.
    gc.collect()
    gc.disable()
    try:
        await running.probe()
        if isinstance(plan.load, Closed):
            await running.closed_loop(plan.load.concurrency)
        else:
            await running.open_loop(plan.load.due(random.Random(plan.workload.seed)))
        return running.recording()
    finally:
        gc.enable()
        if telling is not None:
            telling.cancel()
            with suppress(asyncio.CancelledError):
                await telling
        running.client.close()


class _Conversation:
    """One request after the other, of which the next is ready to be sent; most have but one."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._plan = plan
        self.index = index
        self._prepare(())

    def _prepare(self, history: tuple[tuple[str, str], ...]) -> None:
        self.prompt = self._plan.workload.prompt(self.index, history)
        self.body = self._plan.endpoint.body(self.prompt)

    def goes_on(self, answer: Answer) -> bool:
        """Whether there is another request after this answer; then it is made ready."""
        history = (*self.prompt.history, (self.prompt.text, answer.content))
        if answer.error is not None or len(history) >= self.prompt.shape.turns:
            return False
        self._prepare(history)
        return True


class _Run:
    def __init__(self, plan: Plan) -> None:
        self.client = Client(plan.endpoint, plan.timeout)
        self._plan = plan
        self._numbers = itertools.count()
        self._records: list[Record] = []
        self._opened = self._closed = 0.0
        self._over = asyncio.Event()  # the window has closed
        self._finished = 0  # requests, within the window
        self._began = time.monotonic()
        self._closing = self._began + plan.warmup + plan.seconds  # as far as it is known
        self._sent = self._failed = 0
        self._meter = CpuMeter(())
        self._client_cpu = 0.0
        self._watched: dict[int, float] = {}

    def recording(self) -> Recording:
        for record in self._records:
            record.warmup = record.due < self._opened
        window = Window(self._opened, self._closed)
        return Recording(self._records, window, self._client_cpu, self._watched)

    async def probe(self) -> None:
        record, _ = await self._send(self._next(), time.monotonic())
        if record.error is not None:
            endpoint = self._plan.endpoint
            raise BenchError(
                f"{endpoint.url}, model {endpoint.model!r}: the first request failed, "
                f"{record.error}: {record.detail}"
            )

    async def closed_loop(self, concurrency: int) -> None:
        loop = asyncio.get_running_loop()  # whose clock is the monotonic one
        beginners = concurrency  # streams whose first request has not ended

        def full() -> bool:
            return not self._closed and self._finished >= self._plan.requests

        def expire() -> None:
            # Where all streams rest there is no request whose end could close the window.
            if full() and self._sent == len(self._records):
                self._close(self._closing)

        async def stream(delay: float) -> None:
            nonlocal beginners
            await asyncio.sleep(delay)
            first = True
            talk: _Conversation | None = None
            while not self._closed:
                talk = talk or self._next()
                record, answer = await self._send(talk, time.monotonic())
                if first:
                    first = False
                    beginners -= 1
                    if not beginners:
                        self._open(time.monotonic())
                        loop.call_at(self._closing, expire)
                elif self._opened and not self._closed:
                    self._finished += 1
                    if (now := time.monotonic()) >= self._closing and full():
                        self._close(now)
                if record.error is not None:
                    await asyncio.sleep(PAUSE_AFTER_ERROR)
                if talk.goes_on(answer):
                    await self._rest(talk.prompt.shape.pause)
                else:
                    talk = None

        async with asyncio.TaskGroup() as streams:
            for i in range(concurrency):
                streams.create_task(stream(self._plan.warmup * i / concurrency))

    async def open_loop(self, offsets: Iterable[float]) -> None:
        loop = asyncio.get_running_loop()  # whose clock is the monotonic one
        start = loop.time()
        opening = start + self._plan.warmup
        self._closing = closing = opening + self._plan.seconds
        loop.call_at(opening, self._open, opening)
        async with asyncio.TaskGroup() as talks:
            for offset in offsets:
                due = start + offset
                if due >= closing:
                    break
                talk = self._next()
                await asyncio.sleep(due - loop.time())
                talks.create_task(self._talk(talk, due))
            await asyncio.sleep(closing - loop.time())
            self._close(closing)

    def _next(self) -> _Conversation:
        return _Conversation(self._plan, next(self._numbers))

    async def _talk(self, talk: _Conversation, due: float) -> None:
        """All of a conversation, as far as the run lasts."""
        while True:
            record, answer = await self._send(talk, due)
            if self._closed or not talk.goes_on(answer):
                return
            due = record.ended + talk.prompt.shape.pause
            await self._rest(due - time.monotonic())
            if self._closed:
                return

    async def _rest(self, seconds: float) -> None:
        """As long as that, or as the window lasts: nothing is sent after it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    async def _send(self, talk: _Conversation, due: float) -> tuple[Record, Answer]:
        prompt = talk.prompt
        self._sent += 1
        reply = await self.client.send(talk.body, prompt.shape.tenant)
        answer = read(reply)
        record = Record(
            talk.index, prompt.shape.name, due, reply.sent, reply.ended, answer.times,
            answer.prompt_tokens, answer.cached_tokens, answer.output_tokens,
            answer.error, answer.detail, turn=len(prompt.history), asked=prompt.max_tokens,
            text=answer.text if self._plan.keep_text else "",
        )  # fmt: skip
        if answer.error is None and (task := prompt.shape.task) is not None:
            record.verdict = task.judge(prompt.drawn or {}, answer.content, answer.calls)
        self._failed += answer.error is not None
        self._records.append(record)
        return record, answer

    async def tell(self, on_progress: Callable[[Progress], None]) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(_PROGRESS_EVERY)
            on_progress(self._progress(time.monotonic()))

    def _progress(self, now: float) -> Progress:
        since = max(self._began, now - _ROLLING)
        latest = list(itertools.islice(reversed(self._records), _MOST_ROLLING))
        if len(latest) == _MOST_ROLLING:
            since = max(since, latest[-1].ended)
        good = [r for r in latest if r.error is None and r.times and r.ended >= since]
        firsts = sorted(r.times[0] - r.due for r in good)
        span = max(now - since, _PROGRESS_EVERY)
        return Progress(
            phase="ending" if self._closed else "measuring" if self._opened else "warm-up",
            seconds=now - self._began, left=max(0.0, self._closing - now), sent=self._sent,
            ended=len(self._records), failed=self._failed, request_rate=len(good) / span,
            output_rate=sum(r.tokens for r in good) / span,
            ttft_p50=firsts[(len(firsts) - 1) // 2] if firsts else None,
            ttft_p99=firsts[math.ceil(0.99 * len(firsts)) - 1] if firsts else None,
        )  # fmt: skip

    def _open(self, now: float) -> None:
        self._meter = CpuMeter(self._plan.watch)
        self._opened = now
        self._closing = now + self._plan.seconds

    def _close(self, now: float) -> None:
        self._closed = now
        self._over.set()
        self._client_cpu = self._meter.own()
        self._watched = self._meter.others()
