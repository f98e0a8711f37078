"""``POST /v1/completions``: text or token ids continued, one prompt or several."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

import msgspec

from tidemill.engine.errors import RequestError
from tidemill.engine.params import MAX_SAMPLES, SamplingParams
from tidemill.llm.outputs import CompletionOutput, RequestOutput
from tidemill.llm.prompts import PreparedPrompt
from tidemill.server.answers import finite, top
from tidemill.server.errors import renaming
from tidemill.server.generation import Generation
from tidemill.server.http import DONE, Exchange, encoded, sse
from tidemill.server.models import LoadedModel
from tidemill.server.openai.answers import error_body, finish_reason, prompt_logprobs, usage_of
from tidemill.server.openai.inputs import Input, separated
from tidemill.server.openai.sampling import SamplingFields
from tidemill.server.service import Service

DEFAULT_MAX_TOKENS = 16  # as the API has it
MAX_PROMPTS = 256
MAX_PROMPT_SCORES = 1 << 22
"""Log-probabilities of prompts in one answer, which take some hundred bytes each until it is sent:
those of any prompt, but not of hundreds of long ones."""

_MANY_TOKENS = 64
"""A chunk of more, as of an echoed prompt, is not written in the event loop's thread."""


class CompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """The body. ``prompt``: a text, token ids, or a list of either."""

    prompt: Input
    logprobs: int | None = None
    echo: bool | None = None

    def sampling(self) -> SamplingParams:
        self.check()
        if self.stream and self.best_of is not None and self.best_of > (self.n or 1):
            raise RequestError("best_of cannot be streamed", param="best_of")
        limit = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        return self.params(limit, logprobs=self.logprobs, echo=bool(self.echo))

    def prompts(self) -> list[str | list[int]]:
        """Each of the prompts. Raises RequestError for what is none."""
        prompts = separated(self.prompt)
        if prompts is None:
            raise RequestError(
                "prompt must be a text, a list of token ids, or a list of texts or of such lists, "
                "and not empty",
                param="prompt",
            )
        samples = len(prompts) * max(self.n or 1, self.best_of or 1)
        if len(prompts) > MAX_PROMPTS or samples > max(MAX_PROMPTS, MAX_SAMPLES):
            raise RequestError(
                f"prompt has {len(prompts)} prompts, which make {samples} samples; at most "
                f"{MAX_PROMPTS} are taken in one request",
                param="prompt",
            )
        return prompts


async def completions(service: Service, exchange: Exchange) -> None:
    request = await exchange.read(CompletionRequest)
    params = request.sampling()
    prompts = request.prompts()
    async with service.model(request.model, exchange.tenant) as model:
        with renaming(request.names("prompt")):
            await exchange.while_connected(
                _answer(service, exchange, request, prompts, params, model)
            )


async def _answer(
    service: Service,
    exchange: Exchange,
    request: CompletionRequest,
    prompts: list[str | list[int]],
    params: SamplingParams,
    model: LoadedModel,
) -> None:
    prepared = await service.aside(exchange, _prepare, model, prompts)
    _check_scores(prepared, params)
    answer = _Answer(exchange.id, model, params)
    async with service.generations(
        exchange, model, prepared, params, priority=request.priority or 0,
        salt=request.cache_salt or "",
    ) as generations:  # fmt: skip
        if request.stream:
            await exchange.events(answer.chunks(service, generations, request.wants_usage))
            return
        outputs = [await generation.whole() for generation in generations]
    await service.answer(exchange, answer.whole, outputs)


def _prepare(model: LoadedModel, prompts: list[str | list[int]]) -> list[PreparedPrompt]:
    prompting = model.prompting
    return [
        prompting.text(prompt) if isinstance(prompt, str) else prompting.tokens(prompt)
        for prompt in prompts
    ]


def _check_scores(prompts: list[PreparedPrompt], params: SamplingParams) -> None:
    """Raises RequestError for more than an answer may have."""
    echoed = params.logprobs if params.echo else None
    each = sum(1 + n_top for n_top in (echoed, params.prompt_logprobs) if n_top is not None)
    scores = each * params.n * sum(len(prompt.token_ids) for prompt in prompts)
    if scores > MAX_PROMPT_SCORES:
        raise RequestError(
            f"the answer would have {scores} log-probabilities of prompts; at most "
            f"{MAX_PROMPT_SCORES} are given in one: ask with fewer prompts, samples or top tokens",
            param="prompt_logprobs" if echoed is None else "logprobs",
        )


class _Answer:
    """The answer's objects, whole or in chunks. Choice ``i * n + k`` is sample k of prompt i."""

    def __init__(self, id: str, model: LoadedModel, params: SamplingParams) -> None:
        self._head = {
            "id": f"cmpl-{id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.config.name,
        }
        self._params = params
        self._tokenizer = model.opened.tokenizer
        self._offsets: dict[int, int] = {}  # characters of each choice so far

    def whole(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        choices = []
        for i, output in enumerate(outputs):
            scores = prompt_logprobs(output)
            choices += [
                {**self._choice(i * self._params.n + out.index, out), **scores}
                for out in output.outputs
            ]
        return {**self._head, "choices": choices, "usage": self._usage(outputs)}

    async def chunks(
        self, service: Service, generations: list[Generation], wants_usage: bool
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(_merged(generations)) as deltas:
            async for i, delta in deltas:
                if (failure := generations[i].failure) is not None:
                    yield sse(error_body(failure))
                    return
                for out in delta.outputs:
                    if out.text or out.finished or out.logprobs:
                        index = i * self._params.n + out.index
                        if len(out.token_ids) > _MANY_TOKENS:
                            yield await service.large(self._chunk, index, out)
                        else:
                            yield self._chunk(index, out)
        if wants_usage:
            outputs = [generation.builder.output for generation in generations]
            yield sse({**self._head, "choices": [], "usage": self._usage(outputs)})
        yield DONE

    def _chunk(self, index: int, out: CompletionOutput) -> bytes:
        return sse({**self._head, "choices": [self._choice(index, out)]})

    def _choice(self, index: int, out: CompletionOutput) -> dict[str, Any]:
        choice = {
            "index": index,
            "text": out.text,
            "logprobs": self._scores(index, out),
            "finish_reason": finish_reason(out) if out.finished else None,
        }
        if out.stop_reason is not None:
            choice["stop_reason"] = out.stop_reason
        return choice

    def _usage(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        echoed = sum(len(o.prompt_token_ids) * len(o.outputs) for o in outputs if self._params.echo)
        return usage_of(
            sum(len(output.prompt_token_ids) for output in outputs),
            sum(len(out.token_ids) for o in outputs for out in o.outputs) - echoed,
            sum(output.num_cached_tokens for output in outputs),
        )

    def _scores(self, index: int, out: CompletionOutput) -> dict[str, Any] | None:
        """The completions API's form: lists side by side."""
        n_top = self._params.logprobs
        if n_top is None or out.logprobs is None:
            return None
        tokens: list[str] = []
        scores: list[float | None] = []
        best: list[msgspec.Raw | None] = []
        offsets: list[int] = []
        offset = self._offsets.get(index, 0)
        for token_id, entry in zip(out.token_ids, out.logprobs, strict=True):
            offsets.append(offset)
            if entry is None:  # the first token of an echoed prompt, which nothing predicts
                text = self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")
                scores.append(None)
                best.append(None)
            else:
                text = entry[token_id].decoded_token
                score = finite(entry[token_id].logprob)
                scores.append(score)
                alternatives = {e.decoded_token: finite(e.logprob) for _, e in top(entry, n_top)}
                best.append(encoded({**alternatives, text: score}) if n_top else None)
            tokens.append(text)
            offset += len(text)
        self._offsets[index] = offset
        return {
            "tokens": tokens, "token_logprobs": scores, "top_logprobs": best,
            "text_offset": offsets,
        }  # fmt: skip


async def _merged(
    generations: list[Generation],
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """The deltas of several generations as they come, each with its generation's number."""
    queue: asyncio.Queue[tuple[int, RequestOutput | None]] = asyncio.Queue()

    async def pump(i: int, generation: Generation) -> None:
        try:
            async for delta in generation.deltas():
                await queue.put((i, delta))
        finally:
            await queue.put((i, None))

    tasks = [asyncio.ensure_future(pump(i, g)) for i, g in enumerate(generations)]
    try:
        left = len(tasks)
        while left:
            i, delta = await queue.get()
            if delta is None:
                left -= 1
            else:
                yield i, delta
        for task in tasks:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
