"""``/v1/responses`` through the official SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from support.serving import Server

GREEDY: Any = {"temperature": 0, "max_output_tokens": 24, "extra_body": {"ignore_eos": True}}
TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 6}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def chat_text(client: openai.OpenAI, messages: Any) -> str | None:
    answer = client.chat.completions.create(
        model="tiny", messages=messages, temperature=0, max_tokens=24,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    return answer.choices[0].message.content


def test_a_response_is_that_of_the_chat_api(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="tiny", instructions="Be brief.", input="What is the sea?", **GREEDY
    )
    assert response.output_text == chat_text(
        client,
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is the sea?"},
        ],
    )
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 24


def test_input_as_items(client: openai.OpenAI) -> None:
    messages: Any = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Go on."},
    ]
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hello."}]},
        {
            "type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
            "content": [{"type": "output_text", "text": "Yes?", "annotations": []}],
        },
        {"role": "user", "content": "Go on."},
    ]  # fmt: skip
    response = client.responses.create(model="tiny", input=items, **GREEDY)
    assert response.output_text == chat_text(client, messages)


def test_a_stream_ends_in_the_whole(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="tiny", input="Tell me.", **GREEDY)
    with client.responses.stream(model="tiny", input="Tell me.", **GREEDY) as stream:
        events: Any = list(stream)
    last = events[-1].response
    assert last.output_text == whole.output_text
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.incomplete"
    assert "response.output_text.delta" in kinds
    assert [e.sequence_number for e in events] == sorted(e.sequence_number for e in events)
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == (
        whole.output_text
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_function_is_called(client: openai.OpenAI, stream: bool) -> None:
    options: Any = {
        "model": "tiny", "input": "Weather?", "tools": [TOOL], "max_output_tokens": 160,
        "tool_choice": {"type": "function", "name": "weather"},
    }  # fmt: skip
    if stream:
        with client.responses.stream(**options) as events:
            list(events)
            response: Any = events.get_final_response()
    else:
        response = client.responses.create(**options)
    (item,) = response.output
    assert (item.type, item.name, item.status) == ("function_call", "weather", "completed")
    assert set(json.loads(item.arguments)) == {"city", "unit"}
    assert item.call_id
    assert response.status == "completed"


def test_a_round_of_calls(client: openai.OpenAI) -> None:
    items: Any = [
        {"role": "user", "content": "Weather?"},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "21 degrees"},
    ]
    response = client.responses.create(model="tiny", input=items, tools=[TOOL], **GREEDY)
    assert response.usage is not None
    assert response.usage.output_tokens == 24


def test_a_format(client: openai.OpenAI) -> None:
    text: Any = {
        "format": {"type": "json_schema", "name": "x", "schema": TOOL["parameters"], "strict": True}
    }
    response = client.responses.create(model="tiny", input="Go.", text=text, max_output_tokens=160)
    assert set(json.loads(response.output_text)) == {"city", "unit"}
    assert response.status == "completed"


def test_logprobs(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="tiny", input="Go.", include=["message.output_text.logprobs"], top_logprobs=2,
        **GREEDY,
    )  # fmt: skip
    item: Any = response.output[0]
    assert len(item.content[0].logprobs) == 24
    assert len(item.content[0].logprobs[0].top_logprobs) == 2


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input"),
        ({"input": "word " * 3000}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**6}, "input"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 99}, "top_logprobs"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools"),
        ({"tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "no"}}}},
         "text"),
        ({"no_such_thing": 1}, "no_such_thing"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_is_refused_by_name(
    server: Server, options: Any, param: str, stream: bool
) -> None:
    body = {"model": "tiny", "input": "Go.", "stream": stream, **options}
    status, answer = server.post("/v1/responses", body)
    assert (status, answer["error"]["param"]) == (400, param), answer
