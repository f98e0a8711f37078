"""Tools through the official SDK, on a model of random weights: calls that are asked for come from
the masks, calls that the model makes by itself from an answer that is prescribed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from support.serving import Server

MESSAGES: Any = [{"role": "user", "content": "What is the weather in Rome?"}]


def tool(name: str, **properties: Any) -> Any:
    parameters = {
        "type": "object", "properties": properties, "required": list(properties),
        "additionalProperties": False,
    }  # fmt: skip
    function = {"name": name, "description": f"Does {name}.", "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    tool("weather", city={"type": "string", "maxLength": 8}, unit={"enum": ["C", "F"]}),
    tool("time", zone={"type": "integer", "minimum": -12, "maximum": 12}),
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "unit": "C"}}\n</tool_call>'


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def ask(client: openai.OpenAI, **options: Any) -> Any:
    values = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 160, **options}
    return client.chat.completions.create(**values)


def gathered(chunks: Any) -> tuple[str, list[dict[str, str]], str | None]:
    """Content, calls and end of a streamed answer."""
    content, calls, reason = "", [], None
    for chunk in chunks:
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        for part in choice.delta.tool_calls or ():
            if part.index == len(calls):
                assert part.type == "function"
                calls.append({"id": part.id, "name": part.function.name, "arguments": ""})
            calls[part.index]["arguments"] += part.function.arguments or ""
        reason = choice.finish_reason or reason
    return content, calls, reason


@pytest.mark.parametrize("seed", range(3))
def test_a_named_tool_is_called(client: openai.OpenAI, seed: int) -> None:
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    answer = ask(client, tool_choice=choice, seed=seed).choices[0]
    (call,) = answer.message.tool_calls
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("C", "F")
    assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
    content, calls, reason = gathered(ask(client, tool_choice=choice, seed=seed, stream=True))
    assert (content, reason) == ("", "tool_calls")
    assert [(c["name"], c["arguments"]) for c in calls] == [
        (call.function.name, call.function.arguments)
    ]
    assert calls[0]["id"]


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_some_tool_is_called(client: openai.OpenAI, seed: int, parallel: bool) -> None:
    options: Any = {"tool_choice": "required", "parallel_tool_calls": parallel, "seed": seed}
    answer = ask(client, **options).choices[0]
    if answer.finish_reason == "length":  # a random list can be long
        assert parallel
        return
    assert answer.finish_reason == "tool_calls"
    calls = answer.message.tool_calls
    assert len(calls) == 1 or parallel
    for call in calls:
        assert call.function.name in ("weather", "time")
        assert isinstance(json.loads(call.function.arguments), dict)
    _, streamed, _ = gathered(ask(client, stream=True, **options))
    assert [(c["name"], c["arguments"]) for c in streamed] == [
        (c.function.name, c.function.arguments) for c in calls
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_the_model_makes_is_found(client: openai.OpenAI, stream: bool) -> None:
    text = f"I will look. {CALL}"
    options: Any = {"extra_body": {"guided_choice": [text]}, "stream": stream}
    if stream:
        content, calls, reason = gathered(ask(client, **options))
        names = [(c["name"], json.loads(c["arguments"])) for c in calls]
    else:
        choice = ask(client, **options).choices[0]
        content, reason = choice.message.content, choice.finish_reason
        names = [
            (c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls
        ]
    assert names == [("weather", {"city": "Rome", "unit": "C"})]
    assert reason == "tool_calls"
    assert content.strip() == "I will look."


def test_one_call_where_only_one_is_wanted(client: openai.OpenAI) -> None:
    options: Any = {"extra_body": {"guided_choice": [f"{CALL}\n{CALL}"]}}
    assert len(ask(client, **options).choices[0].message.tool_calls) == 2
    answer = ask(client, parallel_tool_calls=False, **options).choices[0]
    assert len(answer.message.tool_calls) == 1


@pytest.mark.parametrize("choice", ["none", None])
def test_text_that_is_no_call_is_content(client: openai.OpenAI, choice: str | None) -> None:
    """With tool_choice none a call is text like any other; so is one of an unknown tool."""
    text = CALL if choice == "none" else CALL.replace("weather", "unknown")
    options: Any = {"extra_body": {"guided_choice": [text]}}
    if choice is not None:
        options["tool_choice"] = choice
    answer = ask(client, **options).choices[0]
    assert answer.message.content == text
    assert answer.message.tool_calls is None
    assert answer.finish_reason == "stop"


def test_answers_of_tools_go_back(client: openai.OpenAI) -> None:
    messages: Any = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Rome", "unit": "C"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
    ]
    answer = ask(client, messages=messages, max_tokens=8)
    assert answer.usage.prompt_tokens > ask(client, max_tokens=8).usage.prompt_tokens


def test_tools_are_part_of_the_prompt(server: Server, client: openai.OpenAI) -> None:
    with_tools = ask(client, max_tokens=1).usage.prompt_tokens
    without = ask(client, max_tokens=1, tool_choice="none").usage.prompt_tokens
    assert with_tools > without
    _, counted = server.post("/tokenize", {"model": "tiny", "messages": MESSAGES, "tools": TOOLS})
    assert counted["count"] == with_tools


def test_reasoning_is_told_apart(client: openai.OpenAI, server: Server) -> None:
    """The tiny model's template knows of no reasoning: tags are text."""
    options: Any = {
        "tools": openai.NOT_GIVEN,
        "extra_body": {"guided_choice": ["<think>x</think>y"]},
    }
    assert ask(client, **options).choices[0].message.content == "<think>x</think>y"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "retrieval", "function": {"name": "x"}}]}, "tools"),
        ({"tools": [tool("a b")]}, "tools"),
        ({"tools": [tool("a"), tool("a")]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": "x"}}]}, "tools"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"tools": [], "parallel_tool_calls": True}, "parallel_tool_calls"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(server: Server, options: Any, param: str) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 1, **options}
    status, answer = server.post("/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, param), answer


def test_a_schema_that_is_none_is_400(server: Server) -> None:
    broken = tool("f", x={"type": "nothing"})
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        status, answer = server.post(
            "/v1/chat/completions",
            {"model": "tiny", "messages": MESSAGES, "tools": [broken], "tool_choice": choice},
        )
        assert (status, answer["error"]["param"]) == (400, "tools"), answer
