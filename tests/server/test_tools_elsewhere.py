"""Tools through Anthropic's and Ollama's own clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import ollama
import pytest

from support.serving import Server

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
QUESTION: Any = [{"role": "user", "content": "What is the weather?"}]


@pytest.fixture(scope="module")
def claude(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as found:
        yield found


def ask(client: anthropic.Anthropic, **options: Any) -> Any:
    tools: Any = [{"name": "weather", "description": "Tells it.", "input_schema": SCHEMA}]
    values = {
        "model": "tiny", "max_tokens": 160, "messages": QUESTION, "tools": tools,
        "tool_choice": {"type": "tool", "name": "weather"}, **options,
    }  # fmt: skip
    return client.messages.create(**values)


def test_a_named_tool(claude: anthropic.Anthropic) -> None:
    message = ask(claude)
    (block,) = message.content
    assert (block.type, block.name) == ("tool_use", "weather")
    assert set(block.input) == {"city", "unit"}
    assert message.stop_reason == "tool_use"


def test_any_tool_but_only_one(claude: anthropic.Anthropic) -> None:
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    message = ask(claude, tool_choice=choice)
    (block,) = message.content
    assert block.type == "tool_use"
    assert message.stop_reason == "tool_use"


def test_a_stream_of_a_call(claude: anthropic.Anthropic) -> None:
    tools: Any = [{"name": "weather", "input_schema": SCHEMA}]
    with claude.messages.stream(
        model="tiny", max_tokens=160, messages=QUESTION, tools=tools,
        tool_choice={"type": "tool", "name": "weather"},
    ) as stream:  # fmt: skip
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    (block,) = message.content
    assert (block.type, block.name) == ("tool_use", "weather")
    assert set(block.input) == {"city", "unit"}
    assert message.stop_reason == "tool_use"


def test_a_round_of_tools(claude: anthropic.Anthropic) -> None:
    call = ask(claude).content[0]
    messages: Any = [
        *QUESTION,
        {
            "role": "assistant",
            "content": [call.model_dump(include={"type", "id", "name", "input"})],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees"}],
        },
    ]
    message = ask(claude, messages=messages, tool_choice={"type": "none"}, max_tokens=8)
    assert [block.type for block in message.content] == ["text"]
    assert message.stop_reason == "max_tokens"


def test_counting_counts_the_tools(claude: anthropic.Anthropic) -> None:
    tools: Any = [{"name": "weather", "input_schema": SCHEMA}]
    without = claude.messages.count_tokens(model="tiny", messages=QUESTION).input_tokens
    with_ = claude.messages.count_tokens(model="tiny", messages=QUESTION, tools=tools).input_tokens
    assert with_ > without


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tool_choice": {"type": "always"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "nobody"}}, "tool_choice"),
        ({"tool_choice": {"type": "any", "extra": 1}}, "tool_choice"),
        ({"tools": [{"name": "f", "input_schema": {"type": "nothing"}}],
          "tool_choice": {"type": "any"}}, "tools"),
    ],
)  # fmt: skip
def test_what_cannot_be(claude: anthropic.Anthropic, options: Any, named: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=named):
        ask(claude, **options)


# ---- Ollama


@pytest.fixture(scope="module")
def llama(server: Server) -> ollama.Client:
    return ollama.Client(host=server.url)


def test_a_format(llama: ollama.Client) -> None:
    options = {"num_predict": 160, "seed": 1}
    for answer in (
        llama.chat("tiny", QUESTION, format=SCHEMA, options=options).message.content,
        llama.generate("tiny", "x", format=SCHEMA, options=options).response,
    ):
        assert set(json.loads(answer or "")) == {"city", "unit"}
    streamed = "".join(
        part.message.content or ""
        for part in llama.chat("tiny", QUESTION, format=SCHEMA, options=options, stream=True)
    )
    assert set(json.loads(streamed)) == {"city", "unit"}


def test_calls_of_a_model(server: Server) -> None:
    """The answer is prescribed, as a random model would not make a call: a text in JSON's quotes
    is no call, but the tools are part of the prompt."""
    tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
    body = {
        "model": "tiny", "messages": QUESTION, "stream": False,
        "options": {"num_predict": 2, "temperature": 0},
    }  # fmt: skip
    _, without = server.post("/api/chat", body)
    status, with_ = server.post("/api/chat", {**body, "tools": [tool]})
    assert status == 200, with_
    assert with_["prompt_eval_count"] > without["prompt_eval_count"]


def test_a_round_of_tools_in_ollama(llama: ollama.Client) -> None:
    messages: Any = [
        *QUESTION,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}],
        },
        {"role": "tool", "tool_name": "weather", "content": "21 degrees"},
    ]
    answer = llama.chat("tiny", messages, options={"num_predict": 4})
    assert answer.eval_count == 4


def test_what_thinks_not_cannot_be_told_to(server: Server) -> None:
    status, answer = server.post(
        "/api/chat", {"model": "tiny", "messages": QUESTION, "think": True}
    )
    assert (status, "think" in answer["error"]) == (400, True)
