"""What handlers share: the models, the limits, and the way from a request to its generations."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from tidemill.engine.params import SamplingParams
from tidemill.engine.pooling import Pooling
from tidemill.llm.embeddings import EmbeddingOutput
from tidemill.llm.prompts import PreparedPrompt
from tidemill.server.admission import Grant
from tidemill.server.config import ServerConfig
from tidemill.server.errors import ApiError
from tidemill.server.http import Exchange
from tidemill.server.keys import Tenant
from tidemill.server.metrics import Metrics
from tidemill.server.models import LoadedModel, Models
from tidemill.server.running import Generation

_EMBEDDING_SHARE = 4
"""A request for embeddings has at most one of so many parts of a model's places."""


class Service:
    """One server's models, settings and measurements."""

    def __init__(self, config: ServerConfig, models: Models, metrics: Metrics) -> None:
        self.config = config
        self.models = models
        self.metrics = metrics
        self.draining = False

    @asynccontextmanager
    async def model(self, name: str, tenant: Tenant) -> AsyncIterator[LoadedModel]:
        """The model of that name, kept loaded meanwhile. Raises ApiError 403 or 404,
        ModelUnavailable."""
        self.check(name, tenant)
        with (await self.models.get(name)).in_use() as loaded:
            yield loaded

    def check(self, name: str, tenant: Tenant) -> None:
        """Raises ApiError 403 or 404 for a model that this tenant cannot use."""
        entry = self.models.entry(name)
        if not tenant.may_use(entry.config.name):
            raise ApiError(
                403, f"this key is not for the model {name!r}", param="model",
                code="model_not_allowed", kind="permission_error",
            )  # fmt: skip

    @asynccontextmanager
    async def generations(
        self,
        exchange: Exchange,
        model: LoadedModel,
        prompts: list[PreparedPrompt],
        params: SamplingParams,
        *,
        priority: int,
        salt: str,
    ) -> AsyncIterator[list[Generation]]:
        """A generation for each prompt, all of them when it is this request's turn, accepted all
        or none; all are dropped at the end. Raises Overloaded, RequestError, ApiError 504."""
        name = model.config.name
        async with AsyncExitStack() as stack:
            sequences = len(prompts) * params.n_samples
            turn = await stack.enter_async_context(self._turn(exchange, model, sequences, priority))
            begun: list[Generation] = []
            for prompt in prompts:
                generation = await model.generate(
                    uuid.uuid4().hex, prompt, params, priority=turn.priority, salt=salt,
                    seconds=turn.seconds_left, meter=turn.meter,
                )  # fmt: skip
                stack.push_async_callback(generation.aclose)
                begun.append(generation)
            try:
                yield begun
            finally:
                for generation in begun:
                    self.metrics.observe(name, generation.builder.output)

    async def embed(
        self,
        exchange: Exchange,
        model: LoadedModel,
        texts: Sequence[Sequence[int]],
        pooling: Pooling,
        *,
        priority: int,
        salt: str,
    ) -> list[EmbeddingOutput]:
        """The vector of each text (of at least one token each). However many there are, only a few
        are with the engine at a time: others' requests are not to wait for all of them. Raises
        Overloaded, RequestError, ApiError."""
        name = model.config.name
        steps_of_work = 2 * model.config.max_batch_tokens * len(texts)
        at_once = min(
            len(texts),
            max(1, model.admission.capacity // _EMBEDDING_SHARE),
            max(1, steps_of_work // sum(map(len, texts))),
        )
        outputs: dict[int, EmbeddingOutput] = {}
        left = iter(enumerate(texts))

        async def embed_some(turn: _Turn) -> None:
            for i, text in left:
                embedding = await model.embed(
                    uuid.uuid4().hex, text, pooling, priority=turn.priority, salt=salt,
                    seconds=turn.seconds_left, meter=turn.meter,
                )  # fmt: skip
                try:
                    outputs[i] = await embedding.whole()
                finally:
                    self.metrics.observe_embedding(name, embedding.output)
                    await embedding.aclose()

        async with self._turn(exchange, model, at_once, priority) as turn:
            tasks = [asyncio.ensure_future(embed_some(turn)) for _ in range(at_once)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return [outputs[i] for i in range(len(texts))]

    @asynccontextmanager
    async def _turn(
        self, exchange: Exchange, model: LoadedModel, sequences: int, priority: int
    ) -> AsyncIterator[_Turn]:
        """Wait for this request's turn. Raises Overloaded, ApiError 504."""
        tenant = exchange.tenant
        deadline = exchange.started + self.config.request_seconds
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    grant = await stack.enter_async_context(
                        model.admission.slot(tenant, sequences, priority)
                    )
            except TimeoutError:
                raise ApiError(
                    504, f"it was not this request's turn within {self.config.request_seconds:g} s",
                    code="deadline_exceeded", kind="timeout_error",
                ) from None  # fmt: skip
            meter = _Meter(self.metrics, model.config.name, grant)
            yield _Turn(tenant.priority + priority, deadline, meter)


@dataclass(frozen=True, slots=True)
class _Turn:
    """A request that may begin: its priority in the engine, until when it must end, its meter."""

    priority: int
    deadline: float
    meter: _Meter

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()


class _Meter:
    """What a request is given, for its tenant's account and the metrics."""

    def __init__(self, metrics: Metrics, model: str, grant: Grant) -> None:
        self._metrics = metrics
        self._model = model
        self._grant = grant

    def prompt(self, tokens: int) -> None:
        self._grant.prompt(tokens)

    def output(self, tokens: int, gap: float | None) -> None:
        self._grant.output(tokens)
        if gap is not None:
            self._metrics.token(self._model, gap)
