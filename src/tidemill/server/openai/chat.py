"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tidemill.engine.errors import RequestError
from tidemill.engine.params import SamplingParams
from tidemill.llm.outputs import CompletionOutput, RequestOutput
from tidemill.server.answers import reasoning_tokens
from tidemill.server.errors import ApiError, renaming
from tidemill.server.generation import Generation
from tidemill.server.http import DONE, Exchange, TextEvents, sse
from tidemill.server.models import LoadedModel
from tidemill.server.openai.answers import (
    chat_logprobs,
    chat_usage,
    error_body,
    finish_reason,
    prompt_logprobs,
)
from tidemill.server.openai.sampling import SamplingFields
from tidemill.server.service import Service
from tidemill.server.tools import CallArguments, CallBegin, Content, Piece, Reasoning, assemble
from tidemill.server.tools.use import Reader, ToolUse, news, tool_use


class ChatRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """The body. ``max_completion_tokens`` is the new name of ``max_tokens``; without either, an
    answer may be as long as the context allows. ``chat_template_kwargs`` are the template's own
    variables."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None

    def use(self) -> ToolUse:
        """What is said of tools. Raises RequestError."""
        return tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)

    def sampling(self, use: ToolUse) -> SamplingParams:
        """How to sample. Raises RequestError, ApiError."""
        self.check()
        if self.max_tokens is not None and self.max_completion_tokens not in (
            None, self.max_tokens,
        ):  # fmt: skip
            raise RequestError(
                "max_tokens and max_completion_tokens differ; give one of them",
                param="max_completion_tokens",
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        limit = self.max_completion_tokens
        if limit is None:
            limit = self.max_tokens
        if limit == 0:
            raise RequestError("max_tokens must be at least 1", param="max_tokens")
        params = self.params(limit, logprobs=logprobs)
        if (calls := use.grammar()) is not None:
            if params.grammar is not None:
                raise RequestError(
                    f"tool_choice asks for a call, {self.format_fields[0]} for something else",
                    param="tool_choice",
                )
            params = replace(params, grammar=calls)
        return params


async def chat_completions(service: Service, exchange: Exchange) -> None:
    request = await exchange.read(ChatRequest)
    use = request.use()
    params = request.sampling(use)
    async with service.model(request.model, exchange.tenant) as model:
        await exchange.while_connected(_answer(service, exchange, request, use, params, model))


async def _answer(
    service: Service,
    exchange: Exchange,
    request: ChatRequest,
    use: ToolUse,
    params: SamplingParams,
    model: LoadedModel,
) -> None:
    prompting = model.prompting
    # Rendering and tokenising a long prompt takes a while: not in the event loop's thread.
    prompt = await service.aside(
        exchange,
        prompting.chat,
        request.messages,
        use.offered,
        add_generation_prompt=request.add_generation_prompt,
        **_template_options(request.chat_template_kwargs),
    )
    first = prompting.reader(prompt, use)
    if request.skip_special_tokens is None:
        params = prompting.keeping_markers(params, first)
    params = prompting.keeping_schemas(params, use)
    readers = [first, *(prompting.reader(prompt, use) for _ in range(params.n - 1))]
    answer = _Answer(exchange.id, model, params, readers)
    with renaming(request.names("messages")):
        async with service.generations(
            exchange, model, [prompt], params, priority=request.priority or 0,
            salt=request.cache_salt or "",
        ) as (generation,):  # fmt: skip
            if request.stream:
                await exchange.events(answer.chunks(generation, request.wants_usage))
                return
            output = await generation.whole()
    await service.answer(exchange, answer.whole, output)


def _template_options(options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    taken = {
        "messages", "tools", "documents", "add_generation_prompt", "parse_content",
        "most_characters",
    }  # fmt: skip
    for name in options or {}:
        if name in taken:
            raise ApiError(
                400, f"chat_template_kwargs must not have {name!r}", param="chat_template_kwargs"
            )
    return options or {}


class _Answer:
    """The answer's objects, whole or in chunks. ``readers`` take the samples' texts apart, where
    there is something to look for."""

    def __init__(
        self,
        id: str,
        model: LoadedModel,
        params: SamplingParams,
        readers: Sequence[Reader | None],
    ) -> None:
        self._head = {"id": f"chatcmpl-{id}", "created": int(time.time())}
        self._name = model.config.name
        self._tokenizer = model.opened.tokenizer
        self._params = params
        self._readers = readers

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        choices = [
            {
                "index": out.index,
                "message": self._message(out),
                "logprobs": self._scores(out),
                "finish_reason": self._reason(out),
                **_stop_reason(out),
            }
            for out in output.outputs
        ]
        return {
            **self._head,
            "object": "chat.completion",
            "model": self._name,
            "choices": choices,
            "usage": self._usage(output),
            **prompt_logprobs(output),
        }

    async def chunks(
        self, generation: Generation, wants_usage: bool
    ) -> AsyncGenerator[bytes, None]:
        contents = []
        for index in range(len(self._readers)):
            yield sse(self._chunk(index, {"role": "assistant", "content": ""}))
            contents.append(TextEvents(partial(self._content_chunk, index)))
        async for delta in generation.deltas():
            if (failure := generation.failure) is not None:
                yield sse(error_body(failure))
                return
            for out in delta.outputs:
                scores = self._scores(out)
                for piece in news(self._readers[out.index], out.text, finished=out.finished):
                    if scores is None and isinstance(piece, Content):
                        yield contents[out.index](piece.text)
                    else:
                        yield sse(self._chunk(out.index, _delta(piece), scores))
                        scores = None  # each token's once
                if scores is not None:
                    yield sse(self._chunk(out.index, {"content": ""}, scores))
                if out.finish_reason is not None:
                    yield sse(self._chunk(out.index, {}, None, out))
        if wants_usage:
            yield sse(
                {
                    **self._head,
                    "object": "chat.completion.chunk",
                    "model": self._name,
                    "choices": [],
                    "usage": self._usage(generation.builder.output),
                }
            )
        yield DONE

    def _usage(self, output: RequestOutput) -> dict[str, Any]:
        """Of answers that the readers have read."""
        return chat_usage(
            output, reasoning_tokens(self._tokenizer, self._params, self._readers, output)
        )

    def _message(self, out: CompletionOutput) -> dict[str, Any]:
        found = assemble(news(self._readers[out.index], out.text, finished=True))
        message: dict[str, Any] = {"role": "assistant", "content": found.content, "refusal": None}
        if found.reasoning:
            message["reasoning_content"] = found.reasoning
        if found.calls:
            message["content"] = found.content or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in found.calls
            ]
        return message

    def _reason(self, out: CompletionOutput) -> str:
        reader = self._readers[out.index]
        reason = finish_reason(out)
        return "tool_calls" if reader and reader.call_count and reason == "stop" else reason

    def _content_chunk(self, index: int, text: str) -> dict[str, Any]:
        return self._chunk(index, {"content": text})

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, Any],
        scores: Mapping[str, Any] | None = None,
        ended: CompletionOutput | None = None,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": scores,
            "finish_reason": None if ended is None else self._reason(ended),
        }
        if ended is not None:
            choice |= _stop_reason(ended)
        return {
            **self._head,
            "object": "chat.completion.chunk",
            "model": self._name,
            "choices": [choice],
        }

    def _scores(self, out: CompletionOutput) -> dict[str, Any] | None:
        if self._params.logprobs is None or not out.token_ids:
            return None
        return chat_logprobs(self._tokenizer, out, self._params.logprobs)


def _delta(piece: Piece) -> dict[str, Any]:
    """A piece of an answer as the delta of its message."""
    match piece:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallBegin(index, id, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _stop_reason(out: CompletionOutput) -> dict[str, Any]:
    """Which stop string or token ended it, as vLLM tells; nothing where none did."""
    return {} if out.stop_reason is None else {"stop_reason": out.stop_reason}
