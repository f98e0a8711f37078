"""``POST /api/embed``, and ``POST /api/embeddings``, which came before it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from tidemill.llm.embeddings import vector_of
from tidemill.llm.outputs import RequestOutput
from tidemill.server.embedding import MAX_TEXTS, check_vector, prepare_texts
from tidemill.server.errors import ApiError, renaming
from tidemill.server.http import Exchange, encoded
from tidemill.server.models import LoadedModel
from tidemill.server.ollama.catalogue import served
from tidemill.server.ollama.keeping import keep_alive, unload
from tidemill.server.ollama.options import Options
from tidemill.server.ollama.requests import duration_seconds, nanoseconds
from tidemill.server.service import Service


class OldEmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /api/embeddings``. ``options`` about how tokens are chosen change nothing,
    as none are."""

    model: str
    prompt: str = ""
    options: Options | None = None
    keep_alive: float | str | None = None


class EmbedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /api/embed``. ``truncate``: cut off what is too long, which is the
    default."""

    model: str
    input: str | list[str] = ""
    truncate: bool | None = None
    dimensions: int | None = None
    options: Options | None = None
    keep_alive: float | str | None = None

    def texts(self) -> list[str]:
        """Raises ApiError if there are too many."""
        if isinstance(self.input, str):
            return [self.input] if self.input else []
        if len(self.input) > MAX_TEXTS:
            raise ApiError(400, f"input has more than {MAX_TEXTS} texts", param="input")
        return self.input


async def embed(service: Service, exchange: Exchange) -> None:
    request = await exchange.read(EmbedRequest)

    def answer(outputs: list[RequestOutput], load_seconds: float) -> Any:
        vectors = (
            vector_of(output, dimensions=request.dimensions, normalize=True) for output in outputs
        )
        return {
            "model": request.model,
            "embeddings": [encoded(vector.tolist()) for vector in vectors],
            "total_duration": nanoseconds(time.monotonic() - exchange.started),
            "load_duration": nanoseconds(load_seconds),
            "prompt_eval_count": sum(len(output.prompt_token_ids) for output in outputs),
        }

    truncate = None if request.truncate is False else -1
    with renaming({"prompt": "input"}):
        await _respond(service, exchange, request, request.texts(), truncate, answer)


async def old_embeddings(service: Service, exchange: Exchange) -> None:
    request = await exchange.read(OldEmbeddingRequest)

    def answer(outputs: list[RequestOutput], load_seconds: float) -> Any:
        vectors = (vector_of(output, dimensions=None, normalize=False) for output in outputs)
        return {"embedding": [x for vector in vectors for x in vector.tolist()]}

    texts = [request.prompt] if request.prompt else []
    await _respond(service, exchange, request, texts, -1, answer)


async def _respond(
    service: Service,
    exchange: Exchange,
    request: EmbedRequest | OldEmbeddingRequest,
    texts: list[str],
    truncate: int | None,
    answer: Callable[[list[RequestOutput], float], Any],
) -> None:
    """Embed ``texts``; where there are none, the model is loaded or unloaded."""
    options = request.options or Options()
    options.sampling(None)
    keep = None if request.keep_alive is None else duration_seconds(request.keep_alive)
    name = served(service, request.model, exchange.tenant).config.name
    if not texts and keep == 0:
        unload(service, exchange, name)
        await exchange.json(answer([], 0.0))
        return
    began = time.monotonic()
    async with service.model(name, exchange.tenant) as model:
        load_seconds = time.monotonic() - began
        keep_alive(service, exchange, name, keep)
        outputs: list[RequestOutput] = []
        if texts:
            outputs = await exchange.while_connected(
                _embed(service, exchange, request, texts, truncate, options, model)
            )
        await service.answer(exchange, answer, outputs, load_seconds)


async def _embed(
    service: Service,
    exchange: Exchange,
    request: EmbedRequest | OldEmbeddingRequest,
    texts: list[str],
    truncate: int | None,
    options: Options,
    model: LoadedModel,
) -> list[RequestOutput]:
    dimensions = request.dimensions if isinstance(request, EmbedRequest) else None
    pooling = check_vector(model, None, dimensions)
    context = options.context(model.worker.info["max_context"])
    prepared = await service.aside(
        exchange, prepare_texts, model, texts, truncate=truncate, context=context
    )
    return await service.embed(exchange, model, prepared, pooling, priority=0, salt="")
