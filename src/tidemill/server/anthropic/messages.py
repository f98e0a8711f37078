"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from tidemill.engine.params import SamplingParams
from tidemill.llm.outputs import CompletionOutput, RequestOutput
from tidemill.server.answers import TokenCounts
from tidemill.server.anthropic.errors import error_body
from tidemill.server.anthropic.requests import CountTokensRequest, MessagesRequest
from tidemill.server.http import Exchange, sse
from tidemill.server.models import Generation, LoadedModel
from tidemill.server.service import Service

T = TypeVar("T")

PING_SECONDS = 15.0
"""How long a stream is silent at most: what lies between client and server may cut a silent one."""


async def messages(service: Service, exchange: Exchange) -> None:
    request = await exchange.read(MessagesRequest)
    params = request.sampling()
    chat = request.chat()
    async with service.model(request.model, exchange.tenant) as model:
        await exchange.while_connected(_answer(service, exchange, request, chat, params, model))


async def count_tokens(service: Service, exchange: Exchange) -> None:
    request = await exchange.read(CountTokensRequest)
    chat = request.chat()
    async with service.model(request.model, exchange.tenant) as model:
        prompt = await asyncio.to_thread(
            model.prompting.continued_chat, chat, **request.template_options
        )
        await exchange.json({"input_tokens": len(prompt.token_ids)})


async def _answer(
    service: Service,
    exchange: Exchange,
    request: MessagesRequest,
    chat: Sequence[Mapping[str, Any]],
    params: SamplingParams,
    model: LoadedModel,
) -> None:
    prompt = await asyncio.to_thread(
        model.prompting.continued_chat, chat, **request.template_options
    )
    answer = Answer(exchange.id, model.config.name)
    async with service.generations(
        exchange, model, [prompt], params, priority=0, salt=""
    ) as (generation,):  # fmt: skip
        if request.stream:
            async with aclosing(answer.events(generation)) as events:
                await exchange.events(events)
        else:
            await exchange.json(answer.whole(await generation.whole()))


class Answer:
    """The answer's message, whole or in events."""

    def __init__(self, id: str, model: str) -> None:
        self._id = id
        self._model = model

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        (out,) = output.outputs
        return {
            **self._message([{"type": "text", "text": out.text}], TokenCounts.of(output)),
            **_end(out),
        }

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        counts = TokenCounts.of(generation.builder.output)
        yield _event("message_start", message={**self._message([], counts), **_NO_END})
        block: dict[str, Any] = {"type": "text", "text": ""}
        yield _event("content_block_start", index=0, content_block=block)
        yield _event("ping")
        end: dict[str, Any] = _NO_END
        async with aclosing(with_gaps(generation.deltas(), PING_SECONDS)) as deltas:
            async for delta in deltas:
                if delta is None:
                    yield _event("ping")
                    continue
                if (failure := generation.failure) is not None:
                    yield sse(error_body(failure, self._id), "error")
                    return
                for out in delta.outputs:
                    if out.text:
                        text = {"type": "text_delta", "text": out.text}
                        yield _event("content_block_delta", index=0, delta=text)
                    if out.finished:
                        end = _end(out)
        yield _event("content_block_stop", index=0)
        counts = TokenCounts.of(generation.builder.output)
        yield _event("message_delta", delta=end, usage=_usage(counts))
        yield _event("message_stop")

    def _message(self, content: list[Any], counts: TokenCounts) -> dict[str, Any]:
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "usage": _usage(counts),
        }


_NO_END: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}


def _end(out: CompletionOutput) -> dict[str, Any]:
    if out.finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if isinstance(out.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": out.stop_reason}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(counts: TokenCounts) -> dict[str, Any]:
    """``input_tokens`` are those that had to be computed: the prompt has that many more as are
    read from the cache. Writing to the cache is not counted, as it costs nothing."""
    return {
        "input_tokens": counts.prompt - counts.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached,
        "output_tokens": counts.generated,
    }


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)


async def with_gaps(items: AsyncIterator[T], seconds: float) -> AsyncGenerator[T | None, None]:
    """``items``, and None whenever none has come for so long."""
    waiting: asyncio.Task[T] | None = None
    try:
        while True:
            if waiting is None:
                waiting = asyncio.ensure_future(_next(items))
            done, _ = await asyncio.wait((waiting,), timeout=seconds)
            if not done:
                yield None
                continue
            finished, waiting = waiting, None
            try:
                item = finished.result()
            except StopAsyncIteration:
                return
            yield item
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)
