"""What handlers share: the models, the limits, and the way from a request to its generations."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from tidemill.engine.params import SamplingParams
from tidemill.llm.prompts import PreparedPrompt
from tidemill.server.config import ServerConfig
from tidemill.server.errors import ApiError
from tidemill.server.http import Exchange
from tidemill.server.keys import Tenant
from tidemill.server.metrics import Metrics
from tidemill.server.models import Generation, LoadedModel, Models


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
        entry = self.models.entry(name)
        if not tenant.may_use(entry.config.name):
            raise ApiError(
                403, f"this key is not for the model {name!r}", param="model",
                code="model_not_allowed", kind="permission_error",
            )  # fmt: skip
        with (await self.models.get(name)).in_use() as loaded:
            yield loaded

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
        """A generation for each prompt, accepted all or none; all are dropped at the end."""
        async with AsyncExitStack() as stack:
            begun: list[Generation] = []
            for prompt in prompts:
                generation = await model.generate(
                    uuid.uuid4().hex, prompt, params, priority=exchange.tenant.priority + priority,
                    salt=salt, seconds=self.config.request_seconds,
                    on_token=partial(self.metrics.token, model.config.name),
                )  # fmt: skip
                stack.push_async_callback(generation.aclose)
                begun.append(generation)
            try:
                yield begun
            finally:
                for generation in begun:
                    self.metrics.observe(model.config.name, generation.builder.output)
