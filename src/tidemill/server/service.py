"""What handlers share: the models, the limits, and the way from a request to its generations."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from tidemill.engine.params import SamplingParams
from tidemill.llm.prompts import PreparedPrompt
from tidemill.server.account import generated
from tidemill.server.admission import Grant
from tidemill.server.config import ServerConfig
from tidemill.server.errors import ApiError
from tidemill.server.http import Exchange
from tidemill.server.keys import ANYBODY, Tenant
from tidemill.server.metrics import Metrics
from tidemill.server.models import Generation, LoadedModel, Models
from tidemill.server.quotas import Quotas, Reservation
from tidemill.server.tracing import Tracing

MOST_PRIORITY = 10**6
"""Of a request, up or down."""


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
        name, tenant = model.config.name, exchange.tenant
        _check_priority(priority, tenant)
        exchange.account.model, exchange.account.params = name, params
        deadline = exchange.started + self.config.request_seconds
        sequences = len(prompts) * params.n_samples
        async with AsyncExitStack() as stack:
            reserved = stack.enter_context(self._reserving(tenant, model, prompts, params))
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    grant = await stack.enter_async_context(
                        model.admission.slot(tenant, sequences, priority, deadline)
                    )
            except TimeoutError:
                raise ApiError(
                    504, f"it was not this request's turn within {self.config.request_seconds:g} s",
                    code="deadline_exceeded", kind="timeout_error",
                ) from None  # fmt: skip
            begun: list[Generation] = []
            for prompt in prompts:
                generation = await model.generate(
                    uuid.uuid4().hex, prompt, params, priority=tenant.priority + priority,
                    salt=salt, arrival=exchange.started, seconds=deadline - time.monotonic(),
                    meter=_Meter(self.metrics, name, grant), urgent=grant.urgent,
                )  # fmt: skip
                stack.push_async_callback(generation.aclose)
                begun.append(generation)
                exchange.account.builders.append(generation.builder)
            try:
                yield begun
            finally:
                for generation in begun:
                    output = generation.builder.output
                    reserved.spend(len(output.prompt_token_ids) + sum(generated(output, params)))
                    self.metrics.observe(name, tenant, params, output)

    @contextmanager
    def _reserving(
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
