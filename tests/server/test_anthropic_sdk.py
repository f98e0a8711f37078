"""Anthropic's SDK as a client: what it sends is understood, what it gets is what OpenAI's gets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from support.serving import Server, events_of, openai_text, serving
from tidemill.server.keys import digest_of

# The tiny model's greedy answer to this does not repeat itself.
SYSTEM = "x"
QUESTION = "Sing a song, please!"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
REQUEST: Any = {
    "model": "tiny", "system": SYSTEM, "messages": MESSAGES, "max_tokens": 24,
    "extra_body": {"temperature": 0},
}  # fmt: skip


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def expected(server: Server) -> str:
    text = openai_text(server, [{"role": "system", "content": SYSTEM}, *MESSAGES])
    assert text
    return text


def text_of(message: Any) -> str:
    (block,) = message.content
    assert block.type == "text"
    return str(block.text)


def test_an_answer_is_that_of_the_openai_api(
    client: anthropic.Anthropic, server: Server, expected: str
) -> None:
    message = client.messages.create(**REQUEST)
    assert text_of(message) == expected
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
    assert message.id.startswith("msg_")
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    assert message.usage.output_tokens == 24
    assert message._request_id == message.id.removeprefix("msg_")


def test_a_stream_is_the_whole_in_pieces(client: anthropic.Anthropic, expected: str) -> None:
    with client.messages.stream(**REQUEST) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    assert "".join(pieces) == expected == text_of(message)
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 24


def test_the_events_of_a_stream(server: Server, expected: str) -> None:
    body = {**REQUEST, "stream": True, "temperature": 0}
    del body["extra_body"]
    status, headers, data = server.request("POST", "/v1/messages", body)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    names = [line[7:] for line in data.decode().split("\n") if line.startswith("event: ")]
    events = events_of(data)
    assert names == [event["type"] for event in events]
    begin = ["message_start", "content_block_start", "ping"]
    end = ["content_block_stop", "message_delta", "message_stop"]
    assert names[:3] == begin
    assert names[-3:] == end
    assert set(names[3:-3]) <= {"content_block_delta", "ping"}
    message = events[0]["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    assert message["usage"]["input_tokens"] > 0
    deltas = [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"]
    assert "".join(deltas) == expected
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 24


def test_the_prompts_tokens_are_counted_once(client: anthropic.Anthropic, server: Server) -> None:
    long: Any = [{"role": "user", "content": "Tell me of the sea and its waves. " * 12}]
    counted = client.messages.count_tokens(model="tiny", messages=long).input_tokens
    prompt = {"model": "tiny", "messages": long}
    assert counted == server.post("/tokenize", prompt)[1]["count"]
    usages = [
        client.messages.create(model="tiny", messages=long, max_tokens=2).usage for _ in range(2)
    ]
    for usage in usages:
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted
    assert usages[1].cache_read_input_tokens
    with_system = client.messages.count_tokens(model="tiny", messages=long, system=SYSTEM)
    assert with_system.input_tokens > counted


def test_text_blocks_are_the_text(client: anthropic.Anthropic, expected: str) -> None:
    cached = {"type": "ephemeral"}
    system = [{"type": "text", "text": SYSTEM, "cache_control": cached}]
    content = [{"type": "text", "text": QUESTION}]
    given: Any = {**REQUEST, "system": system, "messages": [{"role": "user", "content": content}]}
    assert text_of(client.messages.create(**given)) == expected


def test_turns_of_one_role_become_one(client: anthropic.Anthropic, server: Server) -> None:
    split: Any = [{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}]
    message = client.messages.create(
        model="tiny", messages=split, max_tokens=24, extra_body={"temperature": 0}
    )
    joined = [{"role": "user", "content": "One.\nTwo."}]
    assert text_of(message) == openai_text(server, joined)


def test_an_answer_that_has_been_begun_goes_on(
    client: anthropic.Anthropic, server: Server, expected: str
) -> None:
    begun = expected[: len(expected) // 2]
    messages: Any = [*MESSAGES, {"role": "assistant", "content": begun}]
    system = [{"role": "system", "content": SYSTEM}]
    prompt = {"model": "tiny", "messages": [*system, *MESSAGES]}
    ids = server.post("/tokenize", prompt)[1]["tokens"]
    more = {"model": "tiny", "prompt": begun, "add_special_tokens": False}
    ids += server.post("/tokenize", more)[1]["tokens"]
    body = {"model": "tiny", "prompt": ids, "max_tokens": 8, "temperature": 0}
    wanted = server.post("/v1/completions", body)[1]["choices"][0]["text"]
    message = client.messages.create(**{**REQUEST, "messages": messages, "max_tokens": 8})
    assert text_of(message) == wanted


def test_stop_sequences_end_the_answer_and_are_named(
    client: anthropic.Anthropic, expected: str
) -> None:
    stop = expected[5:8]
    message = client.messages.create(**REQUEST, stop_sequences=["@@@@", stop])
    assert text_of(message) == expected[: expected.index(stop)]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    with client.messages.stream(**REQUEST, stop_sequences=[stop]) as stream:
        streamed = stream.get_final_message()
    assert text_of(streamed) == text_of(message)
    assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", stop)


def test_the_models_as_anthropics_clients_read_them(client: anthropic.Anthropic) -> None:
    (model,) = client.models.list()
    assert (model.id, model.type, model.display_name) == ("tiny", "model", "tiny")
    assert client.models.retrieve("tiny") == model
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("nobody")
    body: Any = caught.value.body
    assert body["error"]["type"] == "not_found_error"
    for wrong in ({"limit": 0}, {"after_id": "nobody"}):
        with pytest.raises(anthropic.BadRequestError, match=next(iter(wrong))):
            client.models.list(**wrong)  # type: ignore[arg-type]


def test_models_by_the_page(tiny_chat_model: Path, tmp_path: Path) -> None:
    names = ["one", *(f"name-{i}" for i in range(5))]
    config = tmp_path / "serve.toml"
    config.write_text(
        f'[[models]]\nsource = "{tiny_chat_model}"\nname = "one"\npreload = false\n'
        f"aliases = {json.dumps(names[1:])}\n"
    )
    with serving("--config", str(config)) as found:
        client = anthropic.Anthropic(base_url=found.url, api_key="none", max_retries=0)
        assert [model.id for model in client.models.list(limit=2)] == names  # it asks for the rest
        page = client.models.list(limit=2)
        assert ([model.id for model in page.data], page.has_more) == (names[:2], True)
        page = client.models.list(limit=2, before_id="name-3")
        assert ([model.id for model in page.data], page.has_more) == (names[2:4], True)


def test_what_changes_nothing_is_taken(client: anthropic.Anthropic, expected: str) -> None:
    message = client.messages.create(
        **REQUEST,
        metadata={"user_id": "someone"},
        service_tier="auto",
        thinking={"type": "disabled"},
        tools=[],
        extra_headers={"anthropic-version": "2023-06-01", "anthropic-beta": "something"},
    )
    assert text_of(message) == expected


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 3}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 1000}, "stop_sequences"),
        ({"tools": [{"name": "f f", "input_schema": {"type": "object"}}]}, "tools"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools"),
        ({"tools": [{"name": "f", "input_schema": {"type": "object"}, "x": 1}]}, "tools"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"container": "x"}, "container"),
        ({"output_config": {"effort": "low"}}, "output_config"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"no_such_thing": 1}, "no_such_thing"),
        ({"system": [{"type": "image"}]}, "system"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "name"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    client: anthropic.Anthropic, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**{**REQUEST, "extra_body": options})
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert named in body["error"]["message"]
    assert body["request_id"] == caught.value.request_id


def test_more_than_the_context_is_refused_before_anything_runs(client: anthropic.Anthropic) -> None:
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError, match="context"):
            client.messages.create(
                model="tiny", messages=MESSAGES, max_tokens=10**6, stream=stream, timeout=60
            )


def test_an_unknown_model_is_404(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(model="claude-none", messages=MESSAGES, max_tokens=4)
    body: Any = caught.value.body
    assert body["error"]["type"] == "not_found_error"
    assert "tiny" in body["error"]["message"]


def test_other_methods_and_broken_bodies(server: Server) -> None:
    status, headers, data = server.request("GET", "/v1/messages")
    assert (status, headers["allow"]) == (405, "POST")
    assert json.loads(data)["error"]["type"] == "invalid_request_error"
    status, body = server.post("/v1/messages", b"{")
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    status, body = server.post("/v1/messages", b"x" * (33 << 20))
    assert (status, body["error"]["type"]) == (413, "request_too_large")


def test_keys_of_both_kinds(tiny_chat_model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[tenants]]\nname = "a"\nsha256 = ["{digest_of("the-key")}"]\n')
    options = ("--name", "tiny", "--threads", "1", "--api-key-file", str(keys))
    with serving(str(tiny_chat_model), *options) as guarded:
        given: Any = {"base_url": guarded.url, "max_retries": 0}
        for good in ({"api_key": "the-key"}, {"api_key": None, "auth_token": "the-key"}):
            with anthropic.Anthropic(**given, **good) as client:
                assert client.messages.create(**REQUEST).usage.output_tokens > 0
        with (
            anthropic.Anthropic(**given, api_key="another") as client,
            pytest.raises(anthropic.AuthenticationError) as caught,
        ):
            client.messages.create(**REQUEST)
        body: Any = caught.value.body
        assert body["error"]["type"] == "authentication_error"
