"""Sampling parameters of one request, validated on construction."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from functools import partial
from types import MappingProxyType
from typing import Any

from tidemill.engine.errors import RequestError
from tidemill.records import dataclass
from tidemill.text.grammar import Grammar

MAX_SAMPLES = 128  # n and best_of
MAX_LOGPROBS = 20  # top tokens reported per position
MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024  # characters of one stop string
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIAS = 4096  # entries
MAX_TOKENS = 2**31 - 1


class DefaultLength(int):
    """A ``max_tokens`` that nobody asked for: where the context has less room, that is the limit.

    A type of its own, so that ``dataclasses.replace`` and pickling keep it apart from the same
    number given by a caller, who is told if it does not fit.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens and when to stop; names and meanings follow vLLM and OpenAI.

    The order: log-probabilities are taken from the model's own logits, before everything else;
    then repetition, frequency and presence penalties, logit bias, temperature, top-k, top-p
    (of what top-k left), min-p and typical.

    n, best_of: samples returned and computed; of ``best_of`` the ``n`` with the highest mean
        log-probability per token are returned, in that order, once all are done.
    temperature: 0 is greedy, and so is anything below 0.001; ties go to the lowest token id.
    top_k: 0 or -1 is off. top_p, typical_p: 1.0 is off. min_p: 0.0 is off.
    repetition_penalty: over prompt and output (1.0 is off); presence_penalty and
        frequency_penalty: over the output.
    logit_bias: added to the logits of the given token ids, from -100 to 100.
    seed: the same seed and request give the same tokens whatever else runs; None: a fresh stream.
    max_tokens: 0 only computes the prompt; None: up to the context. Not given: 256, or what the
        context leaves.
    min_tokens: before that many, neither an end token nor a stop condition ends the output.
    stop: strings that end the output and are not part of its text. stop_token_ids: likewise ids.
    ignore_eos: the model's own end tokens do not end the output.
    logprobs, prompt_logprobs: how many top tokens to report with each token of the output or the
        prompt (0: only the token itself; None: nothing).
    grammar: what the output's text must look like; the output ends when nothing more can follow.
        What ends it early (max_tokens, stop) can leave it unfinished.
    echo: text, token ids and logprobs of every output begin with the prompt's. Stop strings,
        min_tokens, max_tokens and cumulative log-probabilities are about what follows it.

    Raises RequestError that names the parameter at fault.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = DefaultLength(256)
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    echo: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        n = self._integer("n", 1, MAX_SAMPLES)
        best_of = self._integer("best_of", 1, MAX_SAMPLES, optional=True)
        if best_of is not None and n is not None and best_of < n:
            raise RequestError(f"best_of ({best_of}) must be at least n ({n})", param="best_of")
        self._number("temperature", 0.0, 100.0)
        self._integer("top_k", -1, MAX_TOKENS)
        self._number("top_p", 0.0, 1.0)
        self._number("min_p", 0.0, 1.0)
        self._number("typical_p", 0.0, 1.0)
        self._number("repetition_penalty", 0.01, 100.0)
        self._number("presence_penalty", -2.0, 2.0)
        self._number("frequency_penalty", -2.0, 2.0)
        self._integer("seed", -(2**63), 2**64 - 1, optional=True)
        max_tokens = self._integer("max_tokens", 0, MAX_TOKENS, optional=True)
        min_tokens = self._integer("min_tokens", 0, MAX_TOKENS)
        if max_tokens is not None and min_tokens is not None and min_tokens > max_tokens:
            raise RequestError(
                f"min_tokens ({min_tokens}) must not exceed max_tokens ({max_tokens})",
                param="min_tokens",
            )
        self._integer("logprobs", 0, MAX_LOGPROBS, optional=True)
        self._integer("prompt_logprobs", 0, MAX_LOGPROBS, optional=True)
        for name in ("ignore_eos", "echo", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false", param=name)
        if not isinstance(self.grammar, Grammar | None):
            raise RequestError(
                f"grammar must be a tidemill.Grammar, not {_shown(self.grammar)}", param="grammar"
            )
        self._check_stops()
        self._check_bias()

    @property
    def n_samples(self) -> int:
        """How many samples are computed."""
        return self.n if self.best_of is None else self.best_of

    @property
    def ranks_samples(self) -> bool:
        """Whether more samples are computed than returned, so that they must be compared."""
        return self.n_samples > self.n

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities of the output are needed, to be reported or to rank by."""
        return self.logprobs is not None or self.best_of is not None

    @property
    def prompt_scores(self) -> int | None:
        """How many top tokens are needed with each token of the prompt, whether they are to be
        reported as ``prompt_logprobs`` or as the echoed part of ``logprobs``; None: none."""
        wanted = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((n for n in wanted if n is not None), default=None)

    def most_tokens(self, room: int) -> int:
        """How many tokens to generate at most where the context has room for ``room``; more than
        that only if the caller insists on it."""
        if self.max_tokens is None:
            return room
        if isinstance(self.max_tokens, DefaultLength):
            return min(self.max_tokens, room)
        return self.max_tokens

    def __reduce__(self) -> tuple[Any, ...]:
        """For copy and pickle, which cannot take the read-only view of ``logit_bias``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return partial(SamplingParams, **{**values, "logit_bias": dict(self.logit_bias)}), ()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _integer(self, name: str, low: int, high: int, *, optional: bool = False) -> int | None:
        value = getattr(self, name)
        if value is None and optional:
            return None
        number = as_integer(value, name)
        if not low <= number <= high:
            raise RequestError(
                f"{name} must be from {low} to {high}, not {_shown(number)}", param=name
            )
        self._set(name, value if isinstance(value, DefaultLength) else number)
        return number

    def _number(self, name: str, low: float, high: float) -> None:
        number = as_number(getattr(self, name), name)
        if not low <= number <= high:
            raise RequestError(f"{name} must be from {low:g} to {high:g}, not {number}", param=name)
        self._set(name, number)

    def _check_stops(self) -> None:
        value: Any = self.stop
        stop = (value,) if isinstance(value, str) else self._tuple("stop", MAX_STOP_STRINGS)
        for string in stop:
            if not isinstance(string, str) or not 1 <= len(string) <= MAX_STOP_LENGTH:
                raise RequestError(
                    f"each stop string must have 1 to {MAX_STOP_LENGTH} characters", param="stop"
                )
        self._set("stop", stop)
        ids = self._tuple("stop_token_ids", MAX_STOP_TOKEN_IDS)
        self._set("stop_token_ids", tuple(as_integer(i, "stop_token_ids") for i in ids))

    def _tuple(self, name: str, limit: int) -> tuple[Any, ...]:
        value = getattr(self, name)
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise RequestError(f"{name} must be a list", param=name)
        items: list[Any] = []
        for item in value:
            if len(items) == limit:
                raise RequestError(f"{name} must have at most {limit} entries", param=name)
            items.append(item)
        return tuple(items)

    def _check_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError("logit_bias must map token ids to numbers", param="logit_bias")
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise RequestError(
                f"logit_bias must have at most {MAX_LOGIT_BIAS} entries", param="logit_bias"
            )
        bias: dict[int, float] = {}
        for key, value in self.logit_bias.items():
            number = as_number(value, "logit_bias")
            if not -100.0 <= number <= 100.0:
                raise RequestError(
                    f"logit_bias must be from -100 to 100, not {number}", param="logit_bias"
                )
            bias[as_integer(key, "logit_bias")] = number
        self._set("logit_bias", MappingProxyType(bias))


def as_integer(value: Any, name: str) -> int:
    """``value`` as an int if it is a whole number of an integer type; RequestError if not."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise RequestError(f"{name} must be an integer, not {_shown(value)}", param=name)


def as_number(value: Any, name: str) -> float:
    """``value`` as a finite float; RequestError if it is none."""
    if not isinstance(value, bool | str | bytes):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    raise RequestError(f"{name} must be a finite number, not {_shown(value)}", param=name)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write out integers of thousands of digits
        return f"a {type(value).__name__} too long to show"
    return text if len(text) <= 40 else text[:37] + "..."
