"""``POST /api/generate`` and ``POST /api/chat``."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from typing import Any

from tidemill.engine.params import SamplingParams
from tidemill.llm.outputs import CompletionOutput, RequestOutput
from tidemill.llm.prompts import PreparedPrompt
from tidemill.server.answers import TokenCounts, token_scores
from tidemill.server.errors import ApiError, renaming
from tidemill.server.generation import Generation
from tidemill.server.http import Exchange, encode
from tidemill.server.models import LoadedModel
from tidemill.server.ollama.catalogue import served, timestamp
from tidemill.server.ollama.errors import error_body
from tidemill.server.ollama.keeping import keep_alive, unload
from tidemill.server.ollama.options import Options
from tidemill.server.ollama.requests import ChatRequest, GenerateRequest, nanoseconds
from tidemill.server.service import Service
from tidemill.server.tools import Message, assemble
from tidemill.server.tools.use import Reader, ToolUse, news

NDJSON = "application/x-ndjson"

_Request = GenerateRequest | ChatRequest


async def generate(service: Service, exchange: Exchange) -> None:
    request = await exchange.read(GenerateRequest)
    await _respond(service, exchange, request, nothing=not request.prompt)


async def chat(service: Service, exchange: Exchange) -> None:
    request = await exchange.read(ChatRequest)
    await _respond(service, exchange, request, nothing=not request.messages)


async def _respond(
    service: Service, exchange: Exchange, request: _Request, *, nothing: bool
) -> None:
    """Answer a request; one with ``nothing`` to answer loads or unloads the model."""
    params, use = request.sampling(), request.use()
    keep = request.keep_seconds()
    name = served(service, request.model, exchange.tenant).config.name
    answer = Answer(request)
    if nothing and keep == 0:
        unload(service, exchange, name)
        await exchange.json(answer.empty("unload"))
        return
    async with service.model(name, exchange.tenant) as model:
        answer.model_ready()
        keep_alive(service, exchange, name, keep)
        if nothing:
            await exchange.json(answer.empty("load"))
        else:
            await exchange.while_connected(
                _generate(service, exchange, request, use, params, model, answer)
            )


async def _generate(
    service: Service,
    exchange: Exchange,
    request: _Request,
    use: ToolUse,
    params: SamplingParams,
    model: LoadedModel,
    answer: Answer,
) -> None:
    prompting = model.prompting
    if request.think and not prompting.thinks:
        raise ApiError(400, f"think: {request.model!r} does not support thinking", param="think")
    prompt = await service.aside(exchange, _prompt, request, use, model)
    is_raw = isinstance(request, GenerateRequest) and request.raw
    reader = None if is_raw else prompting.reader(prompt, use)
    params = prompting.keeping_markers(params, reader)
    options = request.options or Options()
    params = options.fit(params, len(prompt.token_ids), prompting.max_context)
    with renaming({"grammar": "format"}):
        async with service.generations(
            exchange, model, [prompt], params, priority=0, salt=""
        ) as (generation,):  # fmt: skip
            answer.begin(model, params, reader)
            if request.streams:
                await exchange.events(answer.lines(generation), NDJSON)
                return
            output = await generation.whole()
    await service.answer(exchange, answer.whole, output)


def _prompt(request: _Request, use: ToolUse, model: LoadedModel) -> PreparedPrompt:
    if isinstance(request, GenerateRequest) and request.raw:
        return model.prompting.text(request.prompt)
    options = request.template_options
    return model.prompting.continued_chat(request.chat(), use.offered, **options)


_NOTHING = Message("", "", ())


class Answer:
    """The answer's objects: one, or many in lines, of which the last says how it went."""

    def __init__(self, request: _Request) -> None:
        self._name = request.model
        self._is_chat = isinstance(request, ChatRequest)
        self._began = time.monotonic()
        self._load_seconds = 0.0
        self._model: LoadedModel | None = None
        self._n_top: int | None = None
        self._reader: Reader | None = None

    def model_ready(self) -> None:
        self._load_seconds = time.monotonic() - self._began

    def begin(self, model: LoadedModel, params: SamplingParams, reader: Reader | None) -> None:
        self._model, self._n_top, self._reader = model, params.logprobs, reader

    def empty(self, reason: str) -> dict[str, Any]:
        return {**self._object(_NOTHING), "done": True, "done_reason": reason}

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        (out,) = output.outputs
        return {**self._object(self._news(out)), **self._scores(out), **self._end(output, out)}

    async def lines(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        async for delta in generation.deltas():
            if (failure := generation.failure) is not None:
                yield encode(error_body(failure)) + b"\n"
                return
            for out in delta.outputs:
                scores, message = self._scores(out), self._news(out)
                if message != _NOTHING or scores:
                    yield encode({**self._object(message), **scores, "done": False}) + b"\n"
                if out.finished:
                    end = self._end(generation.builder.output, out)
                    yield encode({**self._object(_NOTHING), **end}) + b"\n"

    def _news(self, out: CompletionOutput) -> Message:
        """What is new, taken apart. Calls come whole."""
        return assemble(news(self._reader, out.text, finished=out.finished))

    def _object(self, new: Message) -> dict[str, Any]:
        content: dict[str, Any] = {"response": new.content}
        if self._is_chat:
            message: dict[str, Any] = {"role": "assistant", "content": new.content}
            if new.calls:
                message["tool_calls"] = [
                    {"function": {"name": c.name, "arguments": json.loads(c.arguments)}}
                    for c in new.calls
                ]
            content = {"message": message}
        if new.reasoning:
            (content["message"] if self._is_chat else content)["thinking"] = new.reasoning
        return {"model": self._name, "created_at": timestamp(time.time()), **content}

    def _scores(self, out: CompletionOutput) -> dict[str, Any]:
        if self._n_top is None or self._model is None or not out.token_ids:
            return {}
        return {"logprobs": token_scores(self._model.opened.tokenizer, out, self._n_top)}

    def _end(self, output: RequestOutput, out: CompletionOutput) -> dict[str, Any]:
        """How it ended, what it took: durations in nanoseconds. Waiting for its turn is part of
        the whole only."""
        times, counts = output.metrics, TokenCounts.of(output)
        now = time.monotonic()
        read = times.prompt_done_time or times.first_token_time or now
        return {
            "done": True,
            "done_reason": "length" if out.finish_reason == "length" else "stop",
            "total_duration": nanoseconds(now - self._began),
            "load_duration": nanoseconds(self._load_seconds),
            "prompt_eval_count": counts.prompt,
            "prompt_eval_duration": nanoseconds(read - (times.first_scheduled_time or read)),
            "eval_count": counts.generated,
            "eval_duration": nanoseconds((times.last_token_time or read) - read),
        }
