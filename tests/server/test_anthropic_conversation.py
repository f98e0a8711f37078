"""Content blocks as chat messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from support.serving import events_of
from tidemill.engine.errors import RequestError
from tidemill.server.anthropic.conversation import as_chat
from tidemill.server.anthropic.errors import write_error
from tidemill.server.anthropic.messages import Answer, with_gaps
from tidemill.server.errors import ApiError


def use(id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "look", "input": arguments}


def result(id: str, content: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(id: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}}


def test_a_round_of_tools() -> None:
    chat = as_chat(
        [text("Be brief."), text("Be kind.")],
        [
            {"role": "user", "content": "Where is it?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I look.", "signature": "s"},
                    text("A moment."),
                    use("a", place="böx"),
                    use("b"),
                ],
            },
            {
                "role": "user",
                "content": [
                    result("a", "here"),
                    result("b", [text("not"), text("there")], is_error=True),
                    text("And now?"),
                ],
            },
        ],
    )
    assert chat == [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "Where is it?"},
        {
            "role": "assistant",
            "content": "A moment.",
            "reasoning_content": "I look.",
            "tool_calls": [call("a", '{"place": "böx"}'), call("b", "{}")],
        },
        {"role": "tool", "tool_call_id": "a", "content": "here"},
        {"role": "tool", "tool_call_id": "b", "content": "Error: not\nthere"},
        {"role": "user", "content": "And now?"},
    ]


def test_a_call_without_words_has_no_content() -> None:
    (message,) = as_chat(None, [{"role": "assistant", "content": [use("a")]}])
    assert message == {"role": "assistant", "content": None, "tool_calls": [call("a", "{}")]}


def test_turns_of_one_role_are_joined_but_results_are_not() -> None:
    chat = as_chat(
        "",
        [
            {"role": "user", "content": "One."},
            {"role": "user", "content": [text("Two."), text("Three.")]},
            {"role": "assistant", "content": "Four."},
            {"role": "assistant", "content": [use("a")]},
            {"role": "assistant", "content": [use("b")]},
            {"role": "user", "content": [result("a")]},
            {"role": "user", "content": [result("b", "x"), text("Five.")]},
            {"role": "user", "content": "Six."},
        ],
    )
    assert [(m["role"], m["content"]) for m in chat] == [
        ("user", "One.\nTwo.\nThree."),
        ("assistant", "Four."),
        ("tool", ""),
        ("tool", "x"),
        ("user", "Five.\nSix."),
    ]
    assert chat[1]["tool_calls"] == [call("a", "{}"), call("b", "{}")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (3, r"messages\[0\].content is a text"),
        (None, r"messages\[0\].content is a text"),
        (["x"], r"content\[0\] is an object with a type"),
        ([{"type": "image", "source": {}}], r"content\[0\] is of type 'image'"),
        ([text("x"), {"type": "text"}], r"content\[1\] has no text"),
        ([use("a")], "'tool_use'; a user message may have text, tool_result"),
        ([{"type": "tool_result"}], r"content\[0\] has no tool_use_id"),
        ([result("a", [{"type": "image"}])], r"content\[0\].content\[0\] is of type 'image'"),
        ([{**text("x"), "new": 1}], r"content\[0\] has 'new'"),
        ([{**text("x"), "citations": [{}]}], "citations"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(content: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        as_chat(None, [{"role": "user", "content": content}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("given", "status", "kind"),
    [
        (400, 400, "invalid_request_error"),
        (401, 401, "authentication_error"),
        (403, 403, "permission_error"),
        (404, 404, "not_found_error"),
        (413, 413, "request_too_large"),
        (429, 429, "rate_limit_error"),
        (500, 500, "api_error"),
        (503, 529, "overloaded_error"),
        (504, 504, "timeout_error"),
    ],
)
def test_errors_have_a_type_by_status(given: int, status: int, kind: str) -> None:
    found, body = write_error(ApiError(given, "it is so", param="seed"), "r1")
    assert found == status
    assert body == {
        "type": "error",
        "error": {"type": kind, "message": "seed: it is so"},
        "request_id": "r1",
    }


def test_silence_is_filled_and_nothing_is_lost() -> None:
    async def run() -> None:
        go = asyncio.Event()
        ended: list[bool] = []

        async def source() -> AsyncIterator[int]:
            try:
                yield 1
                await go.wait()
                yield 2
                await asyncio.Event().wait()  # for ever
            finally:
                ended.append(True)

        async with aclosing(with_gaps(source(), 0.001)) as items:
            assert await anext(items) == 1
            assert await anext(items) is None
            go.set()
            while (item := await anext(items)) is None:
                pass
            assert item == 2
            assert await anext(items) is None
        assert ended == [True]  # leaving early does not leave it waiting

    asyncio.run(asyncio.wait_for(run(), 60))


def test_an_error_of_the_source_is_that_of_the_stream() -> None:
    async def source() -> AsyncIterator[int]:
        yield 1
        raise ValueError("broken")

    async def run() -> None:
        items = with_gaps(source(), 60)
        assert await anext(items) == 1
        with pytest.raises(ValueError, match="broken"):
            await anext(items)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_stream_that_fails_ends_with_an_error_event() -> None:
    out = SimpleNamespace(text="So ", finished=False)
    output = SimpleNamespace(prompt_token_ids=[1, 2], outputs=[], num_cached_tokens=0)
    generation: Any = SimpleNamespace(builder=SimpleNamespace(output=output), failure=None)

    async def deltas() -> AsyncIterator[Any]:
        yield SimpleNamespace(outputs=[out])
        generation.failure = ApiError(503, "the model's process died")
        yield SimpleNamespace(outputs=[])

    generation.deltas = deltas

    async def run() -> bytes:
        return b"".join([event async for event in Answer("r1", "m", None).events(generation)])

    data = asyncio.run(asyncio.wait_for(run(), 60))
    assert b"event: error\ndata: " in data
    *_, said, error = events_of(data)
    assert said["delta"] == {"type": "text_delta", "text": "So "}
    assert error == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "the model's process died"},
        "request_id": "r1",
    }
