"""Bodies of requests in Ollama's API, and what of them can be served."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from tidemill.engine.errors import RequestError
from tidemill.engine.params import SamplingParams
from tidemill.server.errors import check_only, unsupported
from tidemill.server.ollama.options import Options
from tidemill.server.tools.use import ToolUse, tool_use
from tidemill.text.grammar import Grammar, GrammarError

# Which values mean what happens here anyway: a prompt that is too long is an error, and nothing
# is dropped from it. Anything else is an error, not silence.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "context": (None, []),
    "height": (None, 0),
    "images": (None, []),
    "shift": (None, False),
    "steps": (None, 0),
    "suffix": (None, ""),
    "template": (None, ""),
    "truncate": (None, False),
    "width": (None, 0),
}
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_LONGEST = 1e9  # seconds; beyond that it is for ever
_MESSAGE_FIELDS = frozenset(
    {"role", "content", "images", "thinking", "tool_calls", "tool_name", "tool_call_id"}
)


class GenerationFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What requests to generate and to chat have in common. ``keep_alive``: for how long the
    model is kept loaded when nobody uses it; see ``keep_seconds``."""

    model: str
    stream: bool | None = None
    options: Options | None = None
    keep_alive: float | str | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    format: str | dict[str, Any] | None = None

    # Understood, but only at the values of _ONLY.
    shift: Any = None
    truncate: Any = None

    @property
    def streams(self) -> bool:
        return self.stream is None or self.stream

    @property
    def template_options(self) -> Mapping[str, Any]:
        """Variables of the chat template: whether the model is to think, if that was said."""
        return {} if self.think is None else {"enable_thinking": self.think}

    def use(self) -> ToolUse:
        """What is said of tools."""
        return ToolUse()

    def grammar(self) -> Grammar | None:
        """What ``format`` asks for. Raises RequestError."""
        if not self.format:
            return None
        if self.format == "json":
            return Grammar.json_object()
        if isinstance(self.format, str):
            raise RequestError("format is 'json' or a JSON schema", param="format")
        try:
            return Grammar.json_schema(self.format)
        except GrammarError as error:
            raise RequestError(f"format: {error}", param="format") from None

    def sampling(self) -> SamplingParams:
        """How to sample. Raises ApiError or RequestError, which name the field at fault."""
        check_only(self, _ONLY)
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        n_top = (self.top_logprobs or 0) if self.logprobs else None
        if n_top is not None and not 0 <= n_top <= 20:
            raise RequestError("top_logprobs must be from 0 to 20", param="top_logprobs")
        if isinstance(self.think, str):
            raise unsupported("think")  # how hard to think cannot be chosen
        return replace((self.options or Options()).sampling(n_top), grammar=self.grammar())

    def keep_seconds(self) -> float | None:
        """``keep_alive`` in seconds: infinite if it is negative, None if nothing was said."""
        return None if self.keep_alive is None else duration_seconds(self.keep_alive)


class GenerateRequest(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /api/generate``. ``raw``: the prompt is taken as it is, without the chat
    template."""

    prompt: str = ""
    system: str | None = None
    raw: bool | None = None

    # Understood, but only at the values of _ONLY.
    context: Any = None
    height: Any = None
    images: Any = None
    steps: Any = None
    suffix: Any = None
    template: Any = None
    width: Any = None

    def sampling(self) -> SamplingParams:
        if self.raw and self.system:
            raise RequestError("raw: there is no place for system in a raw prompt", param="raw")
        return super().sampling()

    def chat(self) -> list[dict[str, Any]]:
        """The prompt as a conversation."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.prompt}]


class ChatRequest(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /api/chat``."""

    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] | None = None

    def chat(self) -> list[dict[str, Any]]:
        """The messages in OpenAI's form. Raises RequestError that says where one is wrong."""
        return [_message(m, f"messages[{i}]", i) for i, m in enumerate(self.messages)]

    def use(self) -> ToolUse:
        """What is said of tools. Raises RequestError."""
        return tool_use(self.tools, None, None)


def _message(given: Mapping[str, Any], where: str, number: int) -> dict[str, Any]:
    extra = given.keys() - _MESSAGE_FIELDS
    if extra:
        raise RequestError(f"{where} has {min(extra)!r}, which is not supported", param="messages")
    if given.get("images"):
        raise RequestError(f"{where}.images: images are not supported here", param="messages")
    role, content = given.get("role"), given.get("content")
    if not isinstance(role, str) or not isinstance(content, str | None):
        raise RequestError(f"{where} has a role and a content, which are texts", param="messages")
    message: dict[str, Any] = {"role": role, "content": content or ""}
    if given.get("thinking"):
        message["reasoning_content"] = given["thinking"]
    if calls := given.get("tool_calls"):
        message["content"] = message["content"] or None
        message["tool_calls"] = [
            _call(call, f"{where}.tool_calls[{i}]", f"call_{number}_{i}")
            for i, call in enumerate(calls if isinstance(calls, list) else [calls])
        ]
    if role == "tool":
        for name, theirs in (("name", "tool_name"), ("tool_call_id", "tool_call_id")):
            if isinstance(given.get(theirs), str):
                message[name] = given[theirs]
    return message


def _call(call: Any, where: str, made_id: str) -> dict[str, Any]:
    """A call, with an id made up where it has none: most clients do not know of them."""
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    arguments = function.get("arguments", {}) if isinstance(function, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise RequestError(
            f"{where} has no function with a name and arguments, an object", param="messages"
        )
    return {
        "id": call["id"] if isinstance(call.get("id"), str) else made_id,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


def duration_seconds(given: float | str) -> float:
    """A number of seconds, or a text like ``1h30m`` as Go writes durations."""
    if isinstance(given, str):
        sign, text = (-1, given[1:]) if given[:1] == "-" else (1, given.removeprefix("+"))
        parts = _DURATION.findall(text[:100])
        if text == "0":
            seconds = 0.0
        elif parts and "".join(number + unit for number, unit in parts) == text:
            seconds = sign * sum(float(number) * _UNITS[unit] for number, unit in parts)
        else:
            raise RequestError(
                f"keep_alive is seconds or a text like '5m' or '1h30m', not {given[:40]!r}",
                param="keep_alive",
            )
    else:
        seconds = given
    return seconds if 0 <= seconds <= _LONGEST else math.inf


def nanoseconds(seconds: float) -> int:
    """At least one: clients divide by it."""
    return max(1, round(seconds * 1e9))
