"""What handlers share: the models, the limits, and the way from a request to its generations."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar

from tidemill.engine.base import NO_OUTPUT
from tidemill.engine.params import SamplingParams
from tidemill.engine.pooling import Pooling
from tidemill.llm.outputs import RequestOutput
from tidemill.llm.prompts import PreparedPrompt
from tidemill.server.account import generated
from tidemill.server.admission import Grant
from tidemill.server.config import ServerConfig
from tidemill.server.errors import ApiError
from tidemill.server.generation import Generation
from tidemill.server.http import JSON, Exchange, encode
from tidemill.server.keys import ANYBODY, Tenant
from tidemill.server.metrics import Metrics
from tidemill.server.models import Entry, LoadedModel, Models
from tidemill.server.quotas import Quotas, Reservation
from tidemill.server.threads import started_threads
from tidemill.server.tracing import Tracing

P = ParamSpec("P")
T = TypeVar("T")

MOST_PRIORITY = 10**6
"""Of a request, up or down."""

_LARGE_ANSWER = 2048  # numbers and tokens; those take some milliseconds
_LARGE_BODY = 128 << 10  # bytes; a text of those takes some milliseconds

_EMBEDDING_SHARE = 4
"""A request for embeddings has at most one of so many parts of a model's places."""


class Service:
    """One server's models, settings and measurements."""

    def __init__(
        self, config: ServerConfig, models: Models, metrics: Metrics,
        tracing: Tracing | None = None,
    ) -> None:  # fmt: skip
        self.config = config
        self.models = models
        self.metrics = metrics
        self.tracing = tracing
        self.quotas = Quotas(epoch=time.time() - time.monotonic())
        self.draining = False
        # One, so that however many large pieces of work there are, threads are left for the small:
        # two would take turns with the interpreter anyway.
        self._large = started_threads(1)

    def close(self) -> None:
        self._large.shutdown(wait=False, cancel_futures=True)

    async def aside(
        self, exchange: Exchange, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What ``work`` gives, which has to do with all of a request's texts, on another thread;
        those of large requests one after the other."""
        if exchange.size > _LARGE_BODY:
            return await self.large(work, *args, **kwargs)
        return await asyncio.to_thread(work, *args, **kwargs)

    async def large(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What ``work`` gives, which takes a while, on another thread; one after the other."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._large, partial(work, *args, **kwargs))

    async def answer(
        self, exchange: Exchange, make: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Answer with what ``make`` gives, as JSON. Where that has to do with many tokens or
        vectors the event loop goes on with others meanwhile."""
        if exchange.account.size > _LARGE_ANSWER:
            body = await self.large(lambda: encode(make(*args, **kwargs)))
        else:
            body = encode(make(*args, **kwargs))
        await exchange.send_body(body, JSON)

    @asynccontextmanager
    async def model(self, name: str, tenant: Tenant) -> AsyncIterator[LoadedModel]:
        """The model of that name, kept loaded meanwhile. Raises ApiError 403 or 404,
        ModelUnavailable."""
        self.entry(name, tenant)
        with (await self.models.get(name)).in_use() as loaded:
            yield loaded

    def visible(self, tenant: Tenant) -> list[Entry]:
        """The models that this tenant may use."""
        return [entry for entry in self.models if tenant.may_use(entry.config.name)]

    def entry(self, name: str, tenant: Tenant) -> Entry:
        """The model of that name. Raises ApiError 403 if it is not for this tenant, 404 with what
        is if there is none."""
        if not self.models.has(name):
            there_is = ", ".join(entry.config.name for entry in self.visible(tenant)) or "none"
            raise ApiError(
                404, f"model {name[:200]!r} not found; there is {there_is}", param="model",
                code="model_not_found",
            )  # fmt: skip
        entry = self.models.entry(name)
        if not tenant.may_use(entry.config.name):
            raise ApiError(
                403, f"this key is not for the model {name!r}", param="model",
                code="model_not_allowed", kind="permission_error",
            )  # fmt: skip
        return entry

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
        turn = _Turn(self, exchange, model, prompts, params, priority, salt)
        async with turn.taken(len(prompts) * params.n_samples), AsyncExitStack() as stack:
            yield [await stack.enter_async_context(turn.generation(prompt)) for prompt in prompts]

    async def embed(
        self,
        exchange: Exchange,
        model: LoadedModel,
        texts: list[PreparedPrompt],
        pooling: Pooling,
        *,
        priority: int,
        salt: str,
    ) -> list[RequestOutput]:
        """Each text embedded. However many they are, only a few are with the engine at a time, as
        others' requests must not wait for all of them. Raises what ``generations`` does, and
        ApiError if one fails."""
        tokens = sum(len(text.token_ids) for text in texts)
        lanes = min(
            len(texts),
            max(1, model.admission.capacity // _EMBEDDING_SHARE),
            # As many as fill two steps, so that none has to wait for the next text.
            max(1, 2 * model.config.max_batch_tokens * len(texts) // tokens),
        )
        turn = _Turn(self, exchange, model, texts, NO_OUTPUT, priority, salt)
        outputs: dict[int, RequestOutput] = {}
        left = iter(enumerate(texts))

        async def embed_some() -> None:
            for i, text in left:
                async with turn.generation(text, pooling) as generation:
                    outputs[i] = await generation.whole()

        async with turn.taken(lanes):
            tasks = [asyncio.ensure_future(embed_some()) for _ in range(lanes)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return [outputs[i] for i in range(len(texts))]

    @contextmanager
    def reserving(
        self, tenant: Tenant, model: LoadedModel, prompts: list[PreparedPrompt],
        params: SamplingParams,
    ) -> Iterator[Reservation]:  # fmt: skip
        """What a request may use, set aside from its tenant's quotas. Raises ApiError 429, 400."""
        context = model.worker.info["max_context"]
        lengths = [len(prompt.token_ids) for prompt in prompts]
        outputs = [params.most_tokens(max(0, context - length)) for length in lengths]
        reserved = self.quotas.reserve(
            tenant, sum(lengths), outputs * params.n_samples, time.monotonic()
        )
        try:
            yield reserved
        finally:
            reserved.end(time.monotonic())


class _Turn:
    """The way of one request's prompts to the engine, and back to its accounts."""

    def __init__(
        self, service: Service, exchange: Exchange, model: LoadedModel,
        prompts: list[PreparedPrompt], params: SamplingParams, priority: int, salt: str,
    ) -> None:  # fmt: skip
        tenant = exchange.tenant
        _check_priority(priority, tenant)
        exchange.account.model, exchange.account.params = model.config.name, params
        self._service = service
        self._exchange = exchange
        self._model = model
        self._prompts = prompts
        self._params = params
        self._priority = priority
        # Nobody is to learn from how fast a prompt is read that another tenant has asked it.
        name = tenant.name
        self._salt = salt if tenant is ANYBODY else f"{len(name)} {name} {salt}"
        self._deadline = exchange.started + service.config.request_seconds

    @asynccontextmanager
    async def taken(self, sequences: int) -> AsyncIterator[None]:
        """Wait for this request's turn, and hold its places. Raises Overloaded, ApiError."""
        service, tenant = self._service, self._exchange.tenant
        seconds = service.config.request_seconds
        async with AsyncExitStack() as stack:
            self._reserved = stack.enter_context(
                service.reserving(tenant, self._model, self._prompts, self._params)
            )
            try:
                async with asyncio.timeout(self._deadline - time.monotonic()):
                    self._grant = await stack.enter_async_context(
                        self._model.admission.slot(
                            tenant, sequences, self._priority, self._deadline
                        )
                    )
            except TimeoutError:
                raise ApiError(
                    504, f"it was not this request's turn within {seconds:g} s",
                    code="deadline_exceeded", kind="timeout_error",
                ) from None  # fmt: skip
            yield

    @asynccontextmanager
    async def generation(
        self, prompt: PreparedPrompt, pooling: Pooling | None = None
    ) -> AsyncIterator[Generation]:
        """One prompt with the engine. Raises RequestError, QueueFullError, ModelUnavailable."""
        name, exchange, metrics = self._model.config.name, self._exchange, self._service.metrics
        generation = await self._model.generate(
            uuid.uuid4().hex, prompt, self._params,
            priority=exchange.tenant.priority + self._priority, salt=self._salt,
            arrival=exchange.started, seconds=self._deadline - time.monotonic(),
            meter=_Meter(metrics, name, self._grant), pooling=pooling,
            # The embedding of a question is; those of a library are not.
            urgent=self._grant.urgent and (pooling is None or len(self._prompts) == 1),
        )  # fmt: skip
        exchange.account.builders.append(generation.builder)
        try:
            yield generation
        finally:
            output = generation.builder.output
            self._reserved.spend(
                len(output.prompt_token_ids) + sum(generated(output, self._params))
            )
            metrics.observe(name, exchange.tenant, self._params, output)
            generation.close()


def _check_priority(priority: int, tenant: Tenant) -> None:
    """Raises ApiError 400 for one that would put a request before the class of its tenant, which
    is not the client's to say."""
    if not -MOST_PRIORITY <= priority <= MOST_PRIORITY or (priority < 0 and tenant is not ANYBODY):
        least = -MOST_PRIORITY if tenant is ANYBODY else 0
        raise ApiError(
            400, f"priority must be from {least} to {MOST_PRIORITY}", param="priority",
            code="invalid_value",
        )  # fmt: skip


class _Meter:
    """What a request is given, for its tenant's account and the metrics."""

    def __init__(self, metrics: Metrics, model: str, grant: Grant) -> None:
        self._metrics = metrics
        self._model = model
        self._grant = grant

    def prompt(self, tokens: int) -> None:
        self._grant.prompt(tokens)

    def output(self, tokens: int, seconds: float, first: bool) -> None:
        self._grant.output(tokens)
        if first:
            self._metrics.first_token(self._model, seconds)
        else:
            self._metrics.token(self._model, seconds)
