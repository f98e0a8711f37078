"""``POST /v1/responses``: text and function calls, streamed or not. Nothing is stored."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

import msgspec

from tidemill.engine.errors import RequestError
from tidemill.engine.params import SamplingParams
from tidemill.llm.outputs import CompletionOutput, RequestOutput
from tidemill.server.answers import TokenCounts, reasoning_tokens, token_scores
from tidemill.server.errors import check_only, renaming
from tidemill.server.generation import Generation
from tidemill.server.http import Exchange
from tidemill.server.models import LoadedModel
from tidemill.server.openai.response_input import as_chat
from tidemill.server.openai.response_items import Items
from tidemill.server.service import Service
from tidemill.server.tools import Content
from tidemill.server.tools.use import Reader, ToolUse, news, tool_use
from tidemill.text.grammar import Grammar, GrammarError

# Which values mean what happens here anyway. Anything else is an error, not silence.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "background": (None, False),
    "context_management": (None,),
    "conversation": (None,),
    "max_tool_calls": (None,),
    "moderation": (None,),
    "previous_response_id": (None,),
    "prompt": (None,),
    "reasoning": (None, {}),
    "service_tier": (None, "auto", "default"),
    "stream_options": (None, {}, {"include_obfuscation": False}),
    "truncation": (None, "disabled"),
}
_LOGPROBS = "message.output_text.logprobs"


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: TextFormat | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body. ``store`` is accepted and nothing is stored: a response cannot be asked for again,
    nor be gone on with by its id; send the items instead. ``user`` and others change nothing: see
    ``SamplingFields``."""

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    text: TextOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    # Extensions, as of the chat API.
    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None

    # Understood, but only at the values of _ONLY.
    background: Any = None
    context_management: Any = None
    conversation: Any = None
    max_tool_calls: Any = None
    moderation: Any = None
    previous_response_id: Any = None
    prompt: Any = None
    reasoning: Any = None
    service_tier: Any = None
    stream_options: Any = None
    truncation: Any = None

    def use(self) -> ToolUse:
        """What is said of tools. Raises RequestError."""
        tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(self.tools or ())]
        choice = self.tool_choice
        if isinstance(choice, dict) and choice.get("type") == "function":
            choice = {"type": "function", "function": {"name": choice.get("name")}}
        return tool_use(tools, choice, self.parallel_tool_calls if tools else None)

    def sampling(self, use: ToolUse) -> SamplingParams:
        """How to sample. Raises ApiError or RequestError, which name the field at fault."""
        check_only(self, _ONLY)
        wanted = set(self.include or ())
        if others := wanted - {_LOGPROBS}:
            raise RequestError(f"include: {min(others)[:60]!r} is not there", param="include")
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise RequestError("max_output_tokens must be at least 1", param="max_output_tokens")
        given = {
            name: value
            for name in (
                "temperature", "top_p", "seed", "top_k", "min_p", "repetition_penalty",
                "ignore_eos",
            )
            if (value := getattr(self, name)) is not None
        }  # fmt: skip
        form, calls = self._form(), use.grammar()
        if form is not None and calls is not None:
            raise RequestError("tool_choice asks for a call, text for text", param="tool_choice")
        logprobs = None
        if _LOGPROBS in wanted or self.top_logprobs:
            logprobs = self.top_logprobs or 0
        return SamplingParams(
            max_tokens=self.max_output_tokens, logprobs=logprobs, grammar=form or calls, **given
        )

    def _form(self) -> Grammar | None:
        """What the text must look like."""
        form = None if self.text is None else self.text.format
        if form is None or form.type == "text":
            return None
        if form.type == "json_object":
            return Grammar.json_object()
        if form.type != "json_schema" or form.schema is None:
            raise RequestError(
                "text.format is of type text, json_object, or json_schema with a schema",
                param="text",
            )
        try:
            return Grammar.json_schema(form.schema)
        except GrammarError as error:
            raise RequestError(f"text.format: {error}", param="text") from None

    @property
    def names(self) -> Mapping[str, str]:
        """What the engine's parameters are called here."""
        has_form = self.text is not None and self.text.format is not None
        return {
            "prompt": "input", "max_tokens": "max_output_tokens", "logprobs": "top_logprobs",
            "grammar": "text" if has_form else "tools",
        }  # fmt: skip


async def responses(service: Service, exchange: Exchange) -> None:
    request = await exchange.read(ResponsesRequest)
    with renaming(request.names):
        use = request.use()
        params = request.sampling(use)
        chat = as_chat(request.instructions, request.input)
        async with service.model(request.model, exchange.tenant) as model:
            await exchange.while_connected(
                _answer(service, exchange, request, chat, use, params, model)
            )


async def _answer(
    service: Service,
    exchange: Exchange,
    request: ResponsesRequest,
    chat: list[dict[str, Any]],
    use: ToolUse,
    params: SamplingParams,
    model: LoadedModel,
) -> None:
    prompting = model.prompting
    prompt = await service.aside(exchange, prompting.chat, chat, use.offered)
    reader = prompting.reader(prompt, use)
    params = prompting.keeping_schemas(prompting.keeping_markers(params, reader), use)
    answer = _Answer(exchange.id, request, params, model, reader)
    async with service.generations(
        exchange, model, [prompt], params, priority=request.priority or 0,
        salt=request.cache_salt or "",
    ) as (generation,):  # fmt: skip
        if request.stream:
            await exchange.events(answer.events(generation))
            return
        output = await generation.whole()
    await service.answer(exchange, answer.whole, output)


class _Answer:
    """The response, whole or in events."""

    def __init__(
        self,
        id: str,
        request: ResponsesRequest,
        params: SamplingParams,
        model: LoadedModel,
        reader: Reader | None,
    ) -> None:
        self._request = request
        self._params = params
        self._model = model
        self._reader = reader
        self._items = Items(id)
        self._head = {"id": f"resp_{id}", "object": "response", "created_at": int(time.time())}

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        (out,) = output.outputs
        for _ in self._changes(out):
            pass  # the items are what counts
        return self._response(_status(out), output, out)

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        event = self._items.event
        begun = self._response("in_progress", generation.builder.output, None)
        yield event("response.created", response=begun)
        yield event("response.in_progress", response=begun)
        async for delta in generation.deltas():
            output = generation.builder.output
            if (failure := generation.failure) is not None:
                failed = self._response("failed", output, None)
                failed["error"] = {"code": "server_error", "message": failure.message}
                yield event("response.failed", response=failed)
                return
            for out in delta.outputs:
                for change in self._changes(out):
                    yield change
                if out.finished:
                    status = _status(out)
                    response = self._response(status, output, out)
                    yield event(f"response.{status}", response=response)

    def _changes(self, out: CompletionOutput) -> Iterator[bytes]:
        """The events of what is new."""
        scores = None
        if self._params.logprobs is not None and out.token_ids:
            scores = token_scores(self._model.opened.tokenizer, out, self._params.logprobs)
        for piece in news(self._reader, out.text, finished=out.finished):
            yield from self._items.push(piece, scores)
            if isinstance(piece, Content):
                scores = None  # each token's once
        if out.finished:
            yield from self._items.finish(
                "incomplete" if out.finish_reason == "length" else "completed"
            )

    def _response(
        self, status: str, output: RequestOutput, out: CompletionOutput | None
    ) -> dict[str, Any]:
        request, params = self._request, self._params
        text = msgspec.to_builtins(request.text) if request.text else {"format": {"type": "text"}}
        return {
            **self._head,
            "status": status,
            "error": None,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if status == "incomplete" else None
            ),
            "model": self._model.config.name,
            "output": self._items.output,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "text": text,
            "tools": request.tools or [],
            "tool_choice": request.tool_choice or "auto",
            "truncation": "disabled",
            "usage": None if out is None else self._usage(output),
        }

    def _usage(self, output: RequestOutput) -> dict[str, Any]:
        """Of an answer that the reader has read."""
        counts = TokenCounts.of(output)
        tokenizer = self._model.opened.tokenizer
        reasoning = reasoning_tokens(tokenizer, self._params, (self._reader,), output)
        return {
            "input_tokens": counts.prompt,
            "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
            "output_tokens": counts.generated,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": counts.prompt + counts.generated,
        }


def _status(out: CompletionOutput) -> str:
    return "incomplete" if out.finish_reason == "length" else "completed"


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A tool in the form of the chat API."""
    if tool.get("type") != "function":
        raise RequestError(
            f"{where} is of a type that is not supported here; only 'function' is", param="tools"
        )
    extra = tool.keys() - {"type", "name", "description", "parameters", "strict"}
    if extra:
        raise RequestError(f"{where} has {min(extra)!r}, which is not supported", param="tools")
    function = {
        name: value
        for name in ("name", "description", "parameters", "strict")
        if (value := tool.get(name)) is not None
    }
    return {"type": "function", "function": function}
