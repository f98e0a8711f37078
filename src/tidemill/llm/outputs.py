"""What a caller gets back; the names follow vLLM's ``RequestOutput`` and its parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Literal

import numpy as np
import numpy.typing as npt

from tidemill.engine.base import (
    EmbeddingEvent,
    ErrorEvent,
    Event,
    FinishEvent,
    PromptEvent,
    TokenEvent,
    TokenLogprob,
)
from tidemill.engine.params import SamplingParams
from tidemill.records import dataclass
from tidemill.text.base import Tokenizer

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural log-probability of a token before temperature and filters, and its 1-based rank."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One of the ``n`` continuations of a prompt; with ``echo`` the prompt comes first.

    ``logprobs`` has one dict per token: the token itself and the top ones asked for, by id; None
    for the first token of an echoed prompt, which nothing predicts.
    ``finish_reason`` is None while it runs; ``stop_reason`` is the stop string or token id that
    ended it, None for the model's own end token.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob] | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Seconds on one monotonic clock; None for what has not happened. ``first_scheduled_time`` is
    when it was first worked on; until then it waited. ``drafted_tokens`` were guessed ahead for the
    ended outputs, ``accepted_tokens`` of them were right."""

    arrival_time: float
    first_scheduled_time: float | None = None
    prompt_done_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def time_to_first_token(self) -> float | None:
        """TTFT in seconds, queueing included."""
        if self.first_token_time is None:
            return None
        return self.first_token_time - self.arrival_time


@dataclass(slots=True)
class RequestOutput:
    """The answer to one prompt, whole or so far.

    ``prompt`` is None for a prompt given as token ids. ``error`` says why a request failed in
    flight; its unfinished outputs then have the finish_reason "error" and what they had reached.
    ``embedding``: the pooled vector (d_model,), if that was what was asked for.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    error: str | None = None
    embedding: npt.NDArray[np.float32] | None = None


_Told = tuple[int, int, bool]
"""How many tokens and pieces of text of a sample, and whether its end, was handed out."""

_NOTHING: _Told = (0, 0, False)


class OutputBuilder:
    """Gathers the events of one request into its ``RequestOutput``."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
        arrival_time: float,
    ) -> None:
        self._tokenizer = tokenizer
        self._params = params
        self._text: list[list[str]] = [[] for _ in range(params.n)]
        self._told = [_NOTHING] * params.n
        self.output = RequestOutput(
            request_id=request_id,
            prompt=prompt,
            prompt_token_ids=list(prompt_token_ids),
            outputs=[
                CompletionOutput(index, logprobs=None if params.logprobs is None else [])
                for index in range(params.n)
            ],
            finished=False,
            metrics=RequestMetrics(arrival_time),
        )

    @property
    def finished(self) -> bool:
        return self.output.finished

    def push(self, events: Iterable[Event], now: float) -> None:
        """Take the request's events of one step (or several), in order."""
        for event in events:
            if isinstance(event, TokenEvent):
                self._token(event, now)
            elif isinstance(event, FinishEvent):
                self._finish(event)
            elif isinstance(event, PromptEvent):
                self._prompt(event, now)
            elif isinstance(event, EmbeddingEvent):
                self.output.embedding = event.vector
            else:
                self._error(event)
        if self.output.finished and self.output.metrics.finished_time is None:
            self.output.metrics.finished_time = now

    def snapshot(self) -> RequestOutput:
        """All there is so far; later events do not change it."""
        return self._shown([self._part(out, _NOTHING) for out in self.output.outputs])

    def delta(self) -> RequestOutput:
        """What is new since the last call: only outputs with news, with only their new tokens."""
        outputs = []
        for out, told in zip(self.output.outputs, self._told, strict=True):
            now = (len(out.token_ids), len(self._text[out.index]), out.finished)
            if now != told:
                outputs.append(self._part(out, told))
                self._told[out.index] = now
        return self._shown(outputs)

    def _shown(self, outputs: list[CompletionOutput]) -> RequestOutput:
        # Not dataclasses.replace(), which takes several times as long: this is done for each token.
        whole, m = self.output, self.output.metrics
        return RequestOutput(
            whole.request_id,
            whole.prompt,
            whole.prompt_token_ids,
            outputs,
            whole.finished,
            RequestMetrics(
                m.arrival_time,
                m.first_scheduled_time,
                m.prompt_done_time,
                m.first_token_time,
                m.last_token_time,
                m.finished_time,
                m.drafted_tokens,
                m.accepted_tokens,
            ),
            whole.num_cached_tokens,
            whole.prompt_logprobs,
            whole.error,
            whole.embedding,
        )

    def _part(self, out: CompletionOutput, told: _Told) -> CompletionOutput:
        """What ``out`` has beyond what was told."""
        n_tokens, n_texts, _ = told
        return CompletionOutput(
            out.index,
            "".join(self._text[out.index][n_texts:]),
            out.token_ids[n_tokens:],
            out.cumulative_logprob,
            None if out.logprobs is None else out.logprobs[n_tokens:],
            out.finish_reason,
            out.stop_reason,
        )

    def _token(self, event: TokenEvent, now: float) -> None:
        out = self.output.outputs[event.index]
        out.token_ids.append(event.token_id)
        if event.text:
            self._text[event.index].append(event.text)
        if event.logprobs is not None and out.logprobs is not None:
            out.logprobs.append(self._named(event.logprobs))
            out.cumulative_logprob = (out.cumulative_logprob or 0.0) + event.logprobs[0].logprob
        if self.output.metrics.first_token_time is None:
            self.output.metrics.first_token_time = now
        self.output.metrics.last_token_time = now

    def _finish(self, event: FinishEvent) -> None:
        out = self.output.outputs[event.index]
        if event.text:
            self._text[event.index].append(event.text)
        out.finish_reason, out.stop_reason = event.reason, event.stop_reason
        self.output.metrics.drafted_tokens += event.drafted_tokens
        self.output.metrics.accepted_tokens += event.accepted_tokens
        if event.cumulative_logprob is not None:
            out.cumulative_logprob = event.cumulative_logprob
        self.output.finished = all(o.finished for o in self.output.outputs)

    def _prompt(self, event: PromptEvent, now: float) -> None:
        self.output.metrics.first_scheduled_time = event.started
        self.output.metrics.prompt_done_time = now
        self.output.num_cached_tokens = event.cached_tokens
        params = self._params
        if params.prompt_logprobs is not None:
            self.output.prompt_logprobs = self._scores(event, params.prompt_logprobs)
        if params.echo:
            text = self._prompt_text()
            scores = [] if params.logprobs is None else self._scores(event, params.logprobs)
            for out in self.output.outputs:
                out.token_ids.extend(self.output.prompt_token_ids)
                self._text[out.index].append(text)
                if out.logprobs is not None:
                    out.logprobs.extend(scores)

    def _prompt_text(self) -> str:
        if self.output.prompt is not None:
            return self.output.prompt
        return self._tokenizer.decode(
            self.output.prompt_token_ids, skip_special=self._params.skip_special_tokens
        )

    def _scores(self, event: PromptEvent, n_top: int) -> list[dict[int, Logprob] | None]:
        """The prompt's log-probabilities; the event may have more top ones than wanted here."""
        return [
            None if entry is None else self._named(entry[: 1 + n_top])
            for entry in (() if event.logprobs is None else event.logprobs)
        ]

    def _error(self, event: ErrorEvent) -> None:
        self.output.error = event.message
        for out in self.output.outputs:
            if not out.finished:
                out.finish_reason = "error"
        self.output.finished = True

    def _named(self, entries: Sequence[TokenLogprob]) -> dict[int, Logprob]:
        # One token's bytes need not be whole characters; what is broken shows as U+FFFD.
        return {
            e.token_id: Logprob(
                e.logprob,
                e.rank,
                self._tokenizer.token_bytes(e.token_id).decode("utf-8", errors="replace"),
            )
            for e in entries
        }
