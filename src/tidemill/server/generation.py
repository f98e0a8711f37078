"""One request with a model's worker: its answer as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from tidemill.engine.base import ErrorEvent, PromptEvent, Request, TokenEvent
from tidemill.llm.mailbox import Batches, Mailbox
from tidemill.llm.outputs import OutputBuilder, RequestOutput
from tidemill.server.errors import ApiError
from tidemill.server.worker_process import WorkerProcess


class Meter(Protocol):
    """Told what a request is given."""

    def prompt(self, tokens: int) -> None:
        """Its prompt has been computed, ``tokens`` of it not found in the prefix cache."""

    def output(self, tokens: int, seconds: float, first: bool) -> None:
        """So many tokens more, ``seconds`` after the ones before, or after its arrival where they
        are the ``first``."""


class Generation:
    """The answer to one request as it comes. ``close`` drops what has not ended of it.

    After ``seconds`` the request is ended, with an error.
    """

    def __init__(
        self,
        worker: WorkerProcess,
        request: Request,
        mailbox: Mailbox,
        builder: OutputBuilder,
        *,
        seconds: float,
        meter: Meter,
    ) -> None:
        self.builder = builder
        self._worker = worker
        self._mailbox = mailbox
        self._request_id = request.id
        self._meter = meter
        self._seconds = seconds
        self._late = False
        self._refused = False
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._expire)

    async def deltas(self) -> AsyncIterator[RequestOutput]:
        """What is new, as often as there is something."""
        while not self._mailbox.done:
            await self._push(await self._mailbox.take())
            delta = self.builder.delta()
            if delta.outputs or delta.finished:
                yield delta

    async def whole(self) -> RequestOutput:
        """All of it. Raises ApiError if it failed."""
        while not self._mailbox.done:
            await self._push(await self._mailbox.take())
        if (failure := self.failure) is not None:
            raise failure
        return self.builder.snapshot()

    @property
    def failure(self) -> ApiError | None:
        """What to tell if the request failed after it had been accepted."""
        message = self.builder.output.error
        if message is None:
            return None
        if self._refused:
            return ApiError(400, message, code="cannot_be_served")
        if self._late:
            return ApiError(504, message, code="deadline_exceeded", kind="timeout_error")
        if self._worker.ended.done():
            return ApiError(503, message, code="model_unavailable", retry_after=2)
        return ApiError(500, message, code="generation_failed")

    def close(self) -> None:
        """Also of one that nobody has begun to read."""
        self._deadline.cancel()
        self._worker.abort(self._request_id)

    def _expire(self) -> None:
        self._late = True
        self._worker.fail(self._request_id, f"the request took longer than {self._seconds:g} s")

    async def _push(self, batches: Batches) -> None:
        output = self.builder.output
        times = output.metrics
        for events, now in batches:
            if isinstance(events[-1], ErrorEvent):
                self._refused = events[-1].refused
            done, before = times.prompt_done_time, times.last_token_time
            if any(isinstance(e, PromptEvent) and e.logprobs is not None for e in events):
                # Of thousands of tokens: others' streams go on meanwhile.
                await asyncio.to_thread(self.builder.push, events, now)
            else:
                self.builder.push(events, now)
            if done is None and times.prompt_done_time is not None:
                self._meter.prompt(len(output.prompt_token_ids) - output.num_cached_tokens)
            if tokens := sum(isinstance(event, TokenEvent) for event in events):
                since = times.arrival_time if before is None else before
                self._meter.output(tokens, now - since, before is None)
