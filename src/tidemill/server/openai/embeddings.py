"""``POST /v1/embeddings``: vectors of texts or token ids, one or many."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from tidemill.engine.errors import RequestError
from tidemill.engine.pooling import Pooling
from tidemill.llm.embeddings import vector_of
from tidemill.llm.outputs import RequestOutput
from tidemill.server.embedding import MAX_TEXTS, Texts, check_vector, prepare_texts
from tidemill.server.errors import renaming
from tidemill.server.http import Exchange, encoded
from tidemill.server.models import LoadedModel
from tidemill.server.openai.inputs import Input, separated
from tidemill.server.service import Service


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body. ``input``: a text, token ids, or a list of either. ``user`` changes nothing.

    Extensions: ``pooling`` (of the model's hidden states; its own way by default), ``normalize``
    (to length 1, which is the default), ``truncate_prompt_tokens`` (keep so many of the first
    tokens of what is longer; -1: as many as the model takes), ``cache_salt``, ``priority``.
    """

    model: str
    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None
    truncate_prompt_tokens: int | None = None
    cache_salt: str | None = None
    priority: int | None = None

    def texts(self) -> Texts:
        """Each of the inputs. Raises RequestError for what is none."""
        texts = separated(self.input)
        if texts is None or len(texts) > MAX_TEXTS:
            raise RequestError(
                "input must be a text, a list of token ids, or a list of texts or of such lists, "
                f"not empty and of at most {MAX_TEXTS}",
                param="input",
            )
        return texts


async def embeddings(service: Service, exchange: Exchange) -> None:
    request = await exchange.read(EmbeddingRequest)
    texts = request.texts()
    async with service.model(request.model, exchange.tenant) as model:
        with renaming({"prompt": "input"}):
            await exchange.while_connected(_answer(service, exchange, request, texts, model))


async def _answer(
    service: Service,
    exchange: Exchange,
    request: EmbeddingRequest,
    texts: Texts,
    model: LoadedModel,
) -> None:
    pooling = check_vector(model, request.pooling, request.dimensions)
    prepared = await service.aside(
        exchange, prepare_texts, model, texts, truncate=request.truncate_prompt_tokens
    )
    outputs = await service.embed(
        exchange, model, prepared, pooling, priority=request.priority or 0,
        salt=request.cache_salt or "",
    )  # fmt: skip
    await service.answer(exchange, _body, request, model.config.name, outputs)


def _body(
    request: EmbeddingRequest, model: str, outputs: Sequence[RequestOutput]
) -> dict[str, Any]:
    as_base64 = request.encoding_format == "base64"
    data: list[dict[str, Any]] = []
    for index, output in enumerate(outputs):
        vector = vector_of(
            output, dimensions=request.dimensions, normalize=request.normalize is not False
        )
        value: Any
        if as_base64:  # of the float32 numbers, the least significant byte first
            value = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        else:
            value = encoded(vector.tolist())
        data.append({"object": "embedding", "index": index, "embedding": value})
    tokens = sum(len(output.prompt_token_ids) for output in outputs)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}
