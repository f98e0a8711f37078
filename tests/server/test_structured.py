"""Answers in the form that a request asks for, through the official SDK, on a model of random
weights: nothing but the masks makes it write what fits."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest

from support.serving import Server, begin_request, until

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "size": {"enum": ["small", "large"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "size", "count"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
MESSAGES: Any = [{"role": "user", "content": "Describe a thing."}]


class Thing(pydantic.BaseModel):
    name: str
    size: Literal["small", "large"]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def check(text: str | None) -> None:
    value = json.loads(text or "")
    assert set(value) == {"name", "size", "count"}
    assert value["size"] in ("small", "large")
    assert 0 <= value["count"] <= 99


@pytest.mark.parametrize("seed", range(4))
def test_a_schema_is_followed(client: openai.OpenAI, seed: int) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, response_format=FORMAT, seed=seed, n=2, max_tokens=200
    )
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        check(choice.message.content)


def test_a_streamed_answer_is_that_of_the_whole(client: openai.OpenAI) -> None:
    options: Any = {
        "model": "tiny", "messages": MESSAGES, "response_format": FORMAT, "seed": 5,
        "max_tokens": 200,
    }  # fmt: skip
    whole = client.chat.completions.create(**options).choices[0].message.content
    chunks = client.chat.completions.create(stream=True, **options)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole
    check(whole)


def test_the_sdk_parses_what_comes(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=Thing, max_tokens=300, seed=2,
        frequency_penalty=1.0,
    )  # fmt: skip
    assert isinstance(answer.choices[0].message.parsed, Thing)


def test_any_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, response_format={"type": "json_object"}, seed=1,
        max_tokens=600, frequency_penalty=0.5,
    )  # fmt: skip
    choice = answer.choices[0]
    if choice.finish_reason == "stop":  # random JSON can be long
        assert isinstance(json.loads(choice.message.content or ""), dict)
    else:
        assert (choice.message.content or "").lstrip().startswith("{")


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"guided_regex": "[a-c]{3}-[0-9]+"}, "[a-c]{3}-[0-9]+"),
        ({"guided_choice": ["yes", "no (maybe)"]}, r"yes|no \(maybe\)"),
        ({"guided_grammar": 'start: "<" WORD ">"\nWORD: /[a-z]{1,5}/'}, "<[a-z]{1,5}>"),
        ({"structured_outputs": {"regex": "x{2,4}"}}, "x{2,4}"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "a|b"),
        ({"structured_outputs": {"json": {"type": "boolean"}}}, "true|false"),
        ({"guided_json": '{"type": "null"}'}, "null"),
    ],
)
def test_extensions(client: openai.OpenAI, extra: dict[str, Any], pattern: str) -> None:
    for seed in range(3):
        answer = client.completions.create(
            model="tiny", prompt="Go", seed=seed, max_tokens=40, extra_body=extra
        )
        choice = answer.choices[0]
        if choice.finish_reason == "stop":
            assert re.fullmatch(pattern, choice.text)


def test_guessing_ahead_changes_nothing(client: openai.OpenAI) -> None:
    """A prompt that holds the answer, so that it is guessed."""
    thing = '{"name": "a", "size": "small", "count": 1}'
    options: Any = {
        "model": "tiny", "messages": [{"role": "user", "content": f"{thing} {thing} {thing}"}],
        "response_format": FORMAT, "temperature": 0, "max_tokens": 200,
    }  # fmt: skip
    texts = {client.chat.completions.create(**options).choices[0].message.content for _ in range(3)}
    assert len(texts) == 1
    check(texts.pop())


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "no"}}}},
         "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}},
         "response_format"),
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_regex": "a" * 200_000}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_grammar": "nonsense"}, "guided_grammar"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ],
)  # fmt: skip
def test_what_cannot_be_compiled_is_400(server: Server, extra: Any, param: str) -> None:
    status, answer = server.post(
        "/v1/completions", {"model": "tiny", "prompt": "Go", "max_tokens": 3, **extra}
    )
    assert status == 400, answer
    assert answer["error"]["param"] == param
    assert param in answer["error"]["message"]
    assert server.post("/v1/completions", {"model": "tiny", "prompt": "Go"})[0] == 200


def test_hostile_patterns_hold_nobody_up(server: Server) -> None:
    """What costs much is refused or served within bounds, and leaves nothing behind."""
    body = {"model": "tiny", "prompt": "Go", "max_tokens": 5}

    def ask(pattern: str) -> None:
        status, _ = server.post("/v1/completions", {**body, "guided_regex": pattern})
        assert status in (200, 400)

    asking = [
        threading.Thread(target=ask, args=[pattern])
        for pattern in ("(a{1000}){1000}", ".*a.{18}.*b.{18}", "(a|aa)*b" * 50) * 3
    ]
    for thread in asking:
        thread.start()
    assert server.post("/v1/completions", body)[0] == 200
    for thread in asking:
        thread.join()
    until(server.idle)


@pytest.mark.parametrize(
    "form",
    [
        {"guided_regex": "a" * 100_000},
        {"guided_grammar": "start: a0\n" + "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(40))
         + 'a40: "x"'},
    ],
)  # fmt: skip
def test_what_costs_too_much_only_later_is_an_error_of_the_request(
    server: Server, form: Any
) -> None:
    body = {"model": "tiny", "prompt": "Go", "max_tokens": 20, **form}
    status, answer = server.post("/v1/completions", body)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error"), answer
    assert "grammar" in answer["error"]["message"] or "guided" in answer["error"]["message"]
    assert "<state>" not in answer["error"]["message"]
    _, _, data = server.request("POST", "/v1/completions", {**body, "stream": True})
    assert b"invalid_request_error" in data
    until(server.idle)


def test_a_client_that_leaves_while_its_grammar_is_compiled(server: Server) -> None:
    for i in range(5):
        wide = {"type": "object", "properties": {f"p{i}_{k}": {"enum": [k]} for k in range(300)}}
        body = {"model": "tiny", "prompt": "Go", "max_tokens": 900, "guided_json": wide}
        begin_request(server, "/v1/completions", body).close()
    assert server.post("/v1/completions", {"model": "tiny", "prompt": "Go"})[0] == 200
    until(server.idle)
