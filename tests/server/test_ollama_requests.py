"""Messages, durations and errors of Ollama's API as what the server works with."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tidemill.engine.errors import RequestError
from tidemill.server.errors import ApiError
from tidemill.server.ollama.errors import write_error
from tidemill.server.ollama.generate import Answer
from tidemill.server.ollama.requests import ChatRequest


def chat(*messages: dict[str, Any], **more: Any) -> ChatRequest:
    return msgspec.convert({"model": "m", "messages": list(messages), **more}, ChatRequest)


def test_a_round_of_tools() -> None:
    function = {"name": "look", "arguments": {"place": "böx"}}
    request = chat(
        {"role": "user", "content": "Where?"},
        {
            "role": "assistant",
            "content": "",
            "thinking": "I look.",
            "tool_calls": [{"function": function}, {"id": "b", "function": {"name": "wait"}}],
        },
        {"role": "tool", "tool_name": "look", "content": "here"},
        {"role": "tool", "tool_name": "wait", "tool_call_id": "b", "content": "done"},
    )
    call = {"name": "look", "arguments": '{"place": "böx"}'}
    wait = {"name": "wait", "arguments": "{}"}
    assert request.chat() == [
        {"role": "user", "content": "Where?"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "I look.",
            "tool_calls": [
                {"id": "call_1_0", "type": "function", "function": call},
                {"id": "b", "type": "function", "function": wait},
            ],
        },
        {"role": "tool", "name": "look", "content": "here"},
        {"role": "tool", "name": "wait", "tool_call_id": "b", "content": "done"},
    ]


@pytest.mark.parametrize("call", [3, {}, {"function": {"name": "f", "arguments": "{}"}}])
def test_a_call_that_is_none(call: Any) -> None:
    request = chat({"role": "assistant", "content": "", "tool_calls": [call]})
    with pytest.raises(RequestError, match=r"messages\[0\].tool_calls\[0\]"):
        request.chat()


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None), (0, 0), (90, 90), (1.5, 1.5), (-1, math.inf), ("5m", 300), ("1h30m", 5400),
        ("1.5s", 1.5), (".5h", 1800), ("250ms", 0.25), ("-1m", math.inf), ("0", 0), ("+10s", 10),
        ("7us", 7e-6), (1e300, math.inf), ("9" * 90 + "h", math.inf),
    ],
)  # fmt: skip
def test_durations_are_numbers_or_as_go_writes_them(given: Any, seconds: float | None) -> None:
    found = chat(keep_alive=given).keep_seconds()
    assert found == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("given", ["", "5", "m", "5 m", "5m!", "five", "5d", "--5m", "1" * 10**5])
def test_durations_that_are_none(given: str) -> None:
    with pytest.raises(RequestError, match="keep_alive") as caught:
        chat(keep_alive=given).keep_seconds()
    assert len(str(caught.value)) < 200


def test_errors_name_the_field() -> None:
    assert write_error(ApiError(400, "no", param="options.seed"), "r") == (
        400, {"error": "options.seed: no"},
    )  # fmt: skip
    assert write_error(ApiError(404, "model 'x' not found", param="model"), "r") == (
        404, {"error": "model 'x' not found"},
    )  # fmt: skip
    full = ApiError(429, "the queue is full", code="queue_full", retry_after=1)
    assert write_error(full, "r") == (503, {"error": "the queue is full"})


def test_a_stream_that_fails_ends_with_an_error() -> None:
    out = SimpleNamespace(text="So ", token_ids=[1], finished=False)
    generation: Any = SimpleNamespace(failure=None)

    async def deltas() -> AsyncIterator[Any]:
        yield SimpleNamespace(outputs=[out])
        generation.failure = ApiError(503, "the model's process died")
        yield SimpleNamespace(outputs=[])

    generation.deltas = deltas

    async def run() -> list[Any]:
        return [json.loads(line) async for line in Answer(chat()).lines(generation)]

    said, error = asyncio.run(asyncio.wait_for(run(), 60))
    assert said["message"] == {"role": "assistant", "content": "So "}
    assert error == {"error": "the model's process died"}
