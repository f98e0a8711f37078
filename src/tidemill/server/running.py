"""What runs in a model's worker for a handler: an answer as it comes, or a vector."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from tidemill.engine.base import Request, TokenEvent
from tidemill.llm.embeddings import EmbeddingOutput
from tidemill.llm.outputs import OutputBuilder, RequestOutput
from tidemill.server.errors import ApiError
from tidemill.server.worker_process import Batches, Mailbox, WorkerProcess


class Meter(Protocol):
    """Told what a request is given."""

    def prompt(self, tokens: int) -> None:
        """Its prompt has been computed, ``tokens`` of it not found in the prefix cache."""

    def output(self, tokens: int, gap: float | None) -> None:
        """So many tokens more, ``gap`` seconds after the ones before; None for the first."""


class _Running:
    """A request to a worker. Leaving it early needs ``aclose``; after ``seconds`` it is ended, with
    an error."""

    def __init__(
        self,
        worker: WorkerProcess,
        request: Request,
        mailbox: Mailbox,
        output: RequestOutput | EmbeddingOutput,
        *,
        seconds: float,
        meter: Meter,
    ) -> None:
        self._worker = worker
        self._output = output
        self._events = worker.events(request, mailbox)
        self._meter = meter
        self._seconds = seconds
        self._late = False
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._expire, request.id)

    @property
    def failure(self) -> ApiError | None:
        """What to tell if the request failed after it had been accepted."""
        message = self._output.error
        if message is None:
            return None
        if self._late:
            return ApiError(504, message, code="deadline_exceeded", kind="timeout_error")
        if self._worker.ended.done():
            return ApiError(503, message, code="model_unavailable", retry_after=2)
        return ApiError(500, message, code="generation_failed")

    async def aclose(self) -> None:
        self._deadline.cancel()
        await self._events.aclose()

    def _expire(self, request_id: str) -> None:
        self._late = True
        self._worker.fail(request_id, f"the request took longer than {self._seconds:g} s")

    def _meter_prompt(self) -> None:
        self._meter.prompt(len(self._output.prompt_token_ids) - self._output.num_cached_tokens)


class Embedding(_Running):
    """The vector of one text."""

    def __init__(
        self, worker: WorkerProcess, request: Request, mailbox: Mailbox, output: EmbeddingOutput,
        *, seconds: float, meter: Meter,
    ) -> None:  # fmt: skip
        super().__init__(worker, request, mailbox, output, seconds=seconds, meter=meter)
        self.output = output

    async def whole(self) -> EmbeddingOutput:
        """Raises ApiError if it failed."""
        async for batches in self._events:
            for events, now in batches:
                self.output.push(events, now)
        if (failure := self.failure) is not None:
            raise failure
        self._meter_prompt()
        return self.output


class Generation(_Running):
    """The answer to one request as it comes."""

    def __init__(
        self, worker: WorkerProcess, request: Request, mailbox: Mailbox, builder: OutputBuilder,
        *, seconds: float, meter: Meter,
    ) -> None:  # fmt: skip
        super().__init__(worker, request, mailbox, builder.output, seconds=seconds, meter=meter)
        self.builder = builder

    async def deltas(self) -> AsyncIterator[RequestOutput]:
        """What is new, as often as there is something."""
        async for batches in self._events:
            self._push(batches)
            delta = self.builder.delta()
            if delta.outputs or delta.finished:
                yield delta

    async def whole(self) -> RequestOutput:
        """All of it. Raises ApiError if it failed."""
        async for batches in self._events:
            self._push(batches)
        if (failure := self.failure) is not None:
            raise failure
        return self.builder.snapshot()

    def _push(self, batches: Batches) -> None:
        output = self.builder.output
        times = output.metrics
        for events, now in batches:
            done, before = times.prompt_done_time, times.last_token_time
            self.builder.push(events, now)
            if done is None and times.prompt_done_time is not None:
                self._meter_prompt()
            if tokens := sum(isinstance(event, TokenEvent) for event in events):
                self._meter.output(tokens, None if before is None else now - before)
