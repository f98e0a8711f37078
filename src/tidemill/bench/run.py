"""The loops that send requests, closed and open, and keep a record of each.

A run begins with one request that must succeed, so that a wrong address or name is an error with
a reason instead of a table of failures. Then comes the load. The measured window opens once the
load stands (closed loop: the first request of every stream has ended; open loop: ``warmup`` seconds
have passed), and nothing stops or drains in between. After the window nothing new is sent, and all
that runs is waited for: what was due within the window is measured to its end.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import random
import time
from collections.abc import Iterable

import msgspec

from tidemill.bench.arrivals import Closed, Load
from tidemill.bench.client import Client, Endpoint
from tidemill.bench.processes import CpuMeter
from tidemill.bench.records import Record, Recording, Window
from tidemill.bench.stream import read
from tidemill.bench.workload import Workload

_PAUSE_AFTER_ERROR = 0.1
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
        for name, least in (("seconds", 0.001), ("timeout", 0.001), ("warmup", 0), ("requests", 0)):
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise ValueError(f"{name} must be at least {least}, not {value}")


class BenchError(Exception):
    """The run makes no sense: the endpoint does not answer, or not as it should."""


async def run(plan: Plan) -> Recording:
    """Carry out a plan. Raises BenchError if the first request fails."""
    run = _Run(plan)
    # A collection would hold everything up for longer than what is measured.
    gc.collect()
    gc.disable()
    try:
        await run.probe()
        if isinstance(plan.load, Closed):
            await run.closed_loop(plan.load.concurrency)
        else:
            await run.open_loop(plan.load.due(random.Random(plan.workload.seed)))
        return run.recording()
    finally:
        gc.enable()
        run.client.close()


class _Request(msgspec.Struct):
    """A request that is ready to be sent."""

    index: int
    shape: str
    body: bytes


class _Run:
    def __init__(self, plan: Plan) -> None:
        self.client = Client(plan.endpoint, plan.timeout)
        self._plan = plan
        self._numbers = itertools.count()
        self._records: list[Record] = []
        self._opened = self._closed = 0.0
        self._finished = 0  # requests, within the window
        self._meter = CpuMeter(())
        self._client_cpu = 0.0
        self._watched: dict[int, float] = {}

    def recording(self) -> Recording:
        for record in self._records:
            record.warmup = record.due < self._opened
        window = Window(self._opened, self._closed)
        return Recording(self._records, window, self._client_cpu, self._watched)

    async def probe(self) -> None:
        record = await self._send(self._next(), time.monotonic())
        if record.error is not None:
            endpoint = self._plan.endpoint
            raise BenchError(
                f"{endpoint.url}, model {endpoint.model!r}: the first request failed, "
                f"{record.error}: {record.detail}"
            )

    async def closed_loop(self, concurrency: int) -> None:
        beginners = concurrency  # streams whose first request has not ended

        async def stream(delay: float) -> None:
            nonlocal beginners
            await asyncio.sleep(delay)
            first = True
            while not self._closed:
                due = time.monotonic()
                record = await self._send(self._next(), due)
                if first:
                    first = False
                    beginners -= 1
                    if not beginners:
                        self._open(time.monotonic())
                elif self._opened and not self._closed:
                    self._finished += 1
                    now = time.monotonic()
                    long_enough = now - self._opened >= self._plan.seconds
                    if long_enough and self._finished >= self._plan.requests:
                        self._close(now)
                if record.error is not None:
                    await asyncio.sleep(_PAUSE_AFTER_ERROR)

        async with asyncio.TaskGroup() as streams:
            for i in range(concurrency):
                streams.create_task(stream(self._plan.warmup * i / concurrency))

    async def open_loop(self, offsets: Iterable[float]) -> None:
        loop = asyncio.get_running_loop()  # whose clock is the monotonic one
        start = loop.time()
        opening = start + self._plan.warmup
        closing = opening + self._plan.seconds
        loop.call_at(opening, self._open, opening)
        async with asyncio.TaskGroup() as requests:
            for offset in offsets:
                due = start + offset
                if due >= closing:
                    break
                request = self._next()
                await asyncio.sleep(due - loop.time())
                requests.create_task(self._send(request, due))
            await asyncio.sleep(closing - loop.time())
            self._close(closing)

    def _next(self) -> _Request:
        index = next(self._numbers)
        prompt = self._plan.workload.prompt(index)
        return _Request(index, prompt.shape, self._plan.endpoint.body(prompt))

    async def _send(self, request: _Request, due: float) -> Record:
        reply = await self.client.send(request.body)
        answer = read(reply)
        record = Record(
            request.index, request.shape, due, reply.sent, reply.ended, answer.times,
            answer.prompt_tokens, answer.cached_tokens, answer.output_tokens,
            answer.error, answer.detail, text=answer.text if self._plan.keep_text else "",
        )  # fmt: skip
        self._records.append(record)
        return record

    def _open(self, now: float) -> None:
        self._meter = CpuMeter(self._plan.watch)
        self._opened = now

    def _close(self, now: float) -> None:
        self._closed = now
        self._client_cpu = self._meter.own()
        self._watched = self._meter.others()
