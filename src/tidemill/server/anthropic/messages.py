"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

from tidemill.engine.errors import RequestError
from tidemill.engine.params import SamplingParams
from tidemill.llm.outputs import CompletionOutput, RequestOutput
from tidemill.server.answers import TokenCounts
from tidemill.server.anthropic.errors import error_body
from tidemill.server.anthropic.requests import CountTokensRequest, MessagesRequest
from tidemill.server.errors import renaming
from tidemill.server.generation import Generation
from tidemill.server.http import Exchange, sse
from tidemill.server.models import LoadedModel
from tidemill.server.service import Service
from tidemill.server.tools import (
    CallArguments,
    CallBegin,
    Content,
    Piece,
    Reasoning,
    assemble,
)
from tidemill.server.tools.use import Reader, ToolUse, news

T = TypeVar("T")

PING_SECONDS = 15.0
"""How long a stream is silent at most: what lies between client and server may cut a silent one."""


async def messages(service: Service, exchange: Exchange) -> None:
    request = await exchange.read(MessagesRequest)
    params = request.sampling()
    chat, use = request.chat(), request.use()
    form, calls = request.form(), use.grammar()
    if form is not None and calls is not None:
        raise RequestError(
            "tool_choice asks for a call, output_config for text", param="tool_choice"
        )
    params = replace(params, grammar=form or calls)
    async with service.model(request.model, exchange.tenant) as model:
        await exchange.while_connected(
            _answer(service, exchange, request, chat, use, params, model)
        )


async def count_tokens(service: Service, exchange: Exchange) -> None:
    request = await exchange.read(CountTokensRequest)
    chat, use = request.chat(), request.use()
    async with service.model(request.model, exchange.tenant) as model:
        prompt = await service.aside(
            exchange, model.prompting.continued_chat, chat, use.offered, **request.template_options
        )
        await exchange.json({"input_tokens": len(prompt.token_ids)})


async def _answer(
    service: Service,
    exchange: Exchange,
    request: MessagesRequest,
    chat: Sequence[Mapping[str, Any]],
    use: ToolUse,
    params: SamplingParams,
    model: LoadedModel,
) -> None:
    prompting = model.prompting
    prompt = await service.aside(
        exchange, prompting.continued_chat, chat, use.offered, **request.template_options
    )
    reader = prompting.reader(prompt, use)
    params = prompting.keeping_schemas(prompting.keeping_markers(params, reader), use)
    answer = Answer(exchange.id, model.config.name, reader)
    with renaming({"grammar": "output_config" if request.form() else "tools"}):
        async with service.generations(
            exchange, model, [prompt], params, priority=0, salt=""
        ) as (generation,):  # fmt: skip
            if request.stream:
                await exchange.events(answer.events(generation))
                return
            output = await generation.whole()
    await service.answer(exchange, answer.whole, output)


class Answer:
    """The answer's message, whole or in events. ``reader`` takes its text apart, where there is
    something to look for."""

    def __init__(self, id: str, model: str, reader: Reader | None) -> None:
        self._id = id
        self._model = model
        self._reader = reader

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        (out,) = output.outputs
        found = assemble(news(self._reader, out.text, finished=True))
        blocks: list[dict[str, Any]] = []
        if found.reasoning:
            blocks.append({"type": "thinking", "thinking": found.reasoning, "signature": ""})
        if found.content or not found.calls:
            blocks.append({"type": "text", "text": found.content})
        blocks += [
            {"type": "tool_use", "id": c.id, "name": c.name, "input": json.loads(c.arguments)}
            for c in found.calls
        ]
        return {**self._message(blocks, TokenCounts.of(output)), **self._end(out)}

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        counts = TokenCounts.of(generation.builder.output)
        yield _event("message_start", message={**self._message([], counts), **_NO_END})
        blocks = _Blocks()
        if self._reader is None:
            yield blocks.begin({"type": "text", "text": ""})
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
                    for piece in news(self._reader, out.text, finished=out.finished):
                        for event in blocks.events(piece):
                            yield event
                    if out.finished:
                        end = self._end(out)
        if (last := blocks.end()) is not None:
            yield last
        counts = TokenCounts.of(generation.builder.output)
        yield _event("message_delta", delta=end, usage=_usage(counts))
        yield _event("message_stop")

    def _end(self, out: CompletionOutput) -> dict[str, Any]:
        if out.finish_reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if isinstance(out.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": out.stop_reason}
        called = self._reader is not None and self._reader.call_count > 0
        return {"stop_reason": "tool_use" if called else "end_turn", "stop_sequence": None}

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


class _Blocks:
    """Content blocks as events: one is open at a time."""

    def __init__(self) -> None:
        self._index = -1
        self._kind: str | None = None

    def events(self, piece: Piece) -> Iterator[bytes]:
        match piece:
            case Content(text):
                yield from self._in({"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case Reasoning(text):
                yield from self._in({"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case CallBegin(_, id, name):
                if (last := self.end()) is not None:
                    yield last
                yield self.begin({"type": "tool_use", "id": id, "name": name, "input": {}})
            case CallArguments(_, text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})

    def begin(self, block: dict[str, Any]) -> bytes:
        self._index += 1
        self._kind = block["type"]
        return _event("content_block_start", index=self._index, content_block=block)

    def end(self) -> bytes | None:
        """The end of the open block, if one is."""
        if self._kind is None:
            return None
        self._kind = None
        return _event("content_block_stop", index=self._index)

    def _in(self, block: dict[str, Any]) -> Iterator[bytes]:
        """Whatever it takes for a block of that kind to be open."""
        if self._kind == block["type"]:
            return
        if (last := self.end()) is not None:
            yield last
        yield self.begin(block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


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
