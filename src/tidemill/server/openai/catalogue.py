"""What models answer without generating: ``/v1/models``, ``/tokenize``, ``/detokenize``."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.engine.errors import RequestError
from tidemill.server.http import JSON, Exchange, encode
from tidemill.server.models import Entry
from tidemill.server.service import Service


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``prompt`` or ``messages``. ``add_special_tokens`` is for a prompt: whether BOS and EOS are
    added as the model wants them."""

    model: str
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str
    tokens: list[int]


async def list_models(service: Service, exchange: Exchange) -> None:
    data = [
        _describe(entry, name)
        for entry in service.visible(exchange.tenant)
        for name in (entry.config.name, *entry.config.aliases)
    ]
    await exchange.json({"object": "list", "data": data})


async def get_model(service: Service, exchange: Exchange) -> None:
    name = exchange.scope["path_params"]["model"]
    await exchange.json(_describe(service.entry(name, exchange.tenant), name))


async def tokenize(service: Service, exchange: Exchange) -> None:
    request = await exchange.read(TokenizeRequest)
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    async with service.model(request.model, exchange.tenant) as model:
        prompting, tokenizer = model.prompting, model.opened.tokenizer

        def ids() -> list[int]:
            if request.messages is None:
                text = request.prompt or ""
                return prompting.encode(text, add_special=request.add_special_tokens)
            prompt = prompting.chat(
                request.messages,
                request.tools,
                add_generation_prompt=request.add_generation_prompt,
            )
            return list(prompt.token_ids)

        def body() -> bytes:
            tokens, strings = ids(), None
            if request.return_token_strs:
                strings = [tokenizer.token_bytes(t).decode("utf-8", "replace") for t in tokens]
            return encode(
                {
                    "count": len(tokens),
                    "max_model_len": prompting.max_context,
                    "tokens": tokens,
                    "token_strs": strings,
                }
            )

        await exchange.send_body(await service.aside(exchange, body), JSON)


async def detokenize(service: Service, exchange: Exchange) -> None:
    request = await exchange.read(DetokenizeRequest)
    async with service.model(request.model, exchange.tenant) as model:
        tokenizer = model.opened.tokenizer
        if request.tokens and not (
            min(request.tokens) >= 0 and max(request.tokens) < tokenizer.vocab_size
        ):
            raise RequestError(
                f"tokens must be from 0 to {tokenizer.vocab_size - 1}", param="tokens"
            )
        text = await service.aside(exchange, tokenizer.decode, request.tokens, skip_special=False)
        await exchange.json({"prompt": text})


def _describe(entry: Entry, name: str) -> dict[str, Any]:
    model = entry.model
    return {
        "id": name,
        "object": "model",
        "created": entry.created,
        "owned_by": "tidemill",
        "root": entry.config.source,
        "max_model_len": model.prompting.max_context if model else entry.config.max_context,
        "state": entry.state,
    }
