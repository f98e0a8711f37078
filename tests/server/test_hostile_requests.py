"""Requests made to do harm: each is answered, by its own fault, and the server is as before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.serving import Server, until

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hello."}]
BODY: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 2}


def filled(body: Any, value: Any) -> Any:
    """``body`` with ``value`` in the place of "..."."""
    if isinstance(body, dict):
        return {key: filled(item, value) for key, item in body.items()}
    if isinstance(body, list):
        return [filled(item, value) for item in body]
    return value if body is ... else body


@pytest.fixture(autouse=True)
def as_before(server: Server) -> Any:
    workers, logged = server.workers(), len(server.lines)
    yield
    assert server.post(CHAT, BODY)[0] == 200
    assert server.workers() == workers
    assert "Traceback" not in "\n".join(server.lines[logged:])
    until(server.idle)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": ...}]}),
        ("/v1/completions", {"prompt": ...}),
        ("/v1/completions", {"prompt": ["a", ...]}),
        ("/v1/responses", {"input": ...}),
        ("/v1/messages", {"messages": [{"role": "user", "content": ...}], "max_tokens": 2}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": ...}]}),
        ("/v1/embeddings", {"input": ...}),
        ("/api/chat", {"messages": [{"role": "user", "content": ...}]}),
        ("/api/generate", {"prompt": ..., "raw": True}),
        ("/api/embed", {"input": ..., "truncate": False}),
        ("/tokenize", {"prompt": ...}),
        ("/tokenize", {"messages": [{"role": "user", "content": ...}]}),
    ],
)
def test_a_text_that_cannot_fit_is_not_even_tokenised(server: Server, path: str, body: Any) -> None:
    """As that takes the longer the longer it is, from everybody."""
    for text in ("x", " ", "\u4e2d", "ab ", "<|im_start|>"):
        long = text * (300_000 // len(text) + 1)
        status, answer = server.post(path, {"model": "tiny", **filled(body, long)})
        assert status == 400, answer
        assert "characters" in json.dumps(answer)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [1] * 2_000}),
        ("/v1/completions", {"prompt": [1] * 3_000_000}),
        ("/v1/completions", {"prompt": ["x", [1] * 2_000_000]}),
        ("/v1/embeddings", {"input": [[1] * 2_000]}),
        ("/v1/embeddings", {"input": ["x"] * 100_000}),
        (CHAT, {"messages": MESSAGES * 200_000}),
        ("/v1/messages", {"max_tokens": 2, "messages": [
            {"role": role, "content": "x"} for role in ("user", "assistant")] * 50_000}),
        ("/api/embed", {"input": ["x"] * 100_000}),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_what_is_far_too_many_never_reaches_the_model(server: Server, path: str, body: Any) -> None:
    status, answer = server.post(path, {"model": "tiny", **body})
    assert status == 400, answer
    for field in ("prompt", "input", "messages"):
        if field in body:
            assert field in json.dumps(answer)


def test_what_is_cut_off_anyway_may_be_as_long_as_it_likes(server: Server) -> None:
    status, long = server.post("/api/embed", {"model": "tiny", "input": "ab " * 1_000_000})
    assert status == 200
    status, cut = server.post("/api/embed", {"model": "tiny", "input": "ab " * 10_000})
    assert long["embeddings"] == cut["embeddings"]


@pytest.mark.parametrize(
    "name",
    [
        "self",
        "tokenizer",
        "template",
        "func",
        "exchange",
        "work",
        "message",
        "loop",
        "",
        "bos_token",
        "a b",
    ],
)
def test_variables_of_templates_may_be_called_anything(server: Server, name: str) -> None:
    for value in (1, "x", None, [{}], {"a": {}}):
        options = {"chat_template_kwargs": {name: value}}
        assert server.post(CHAT, {**BODY, **options})[0] == 200


@pytest.mark.parametrize("name", ["messages", "tools", "parse_content", "most_characters"])
def test_but_not_like_what_the_request_has_itself(server: Server, name: str) -> None:
    status, answer = server.post(CHAT, {**BODY, "chat_template_kwargs": {name: None}})
    assert (status, answer["error"]["param"]) == (400, "chat_template_kwargs")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"tool_choice": ...}),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "parameters": ...}}]}),
        (CHAT, {"tools": [...]}),
        (CHAT, {"chat_template_kwargs": {"a": ...}}),
        (CHAT, {"messages": [{"role": "user", "content": ...}]}),
        (CHAT, {"messages": [{"role": "user", "content": "x", "tool_calls": ...}]}),
        (CHAT, {"metadata": {"a": ...}}),
        (CHAT, {"reasoning_effort": ...}),
        (CHAT, {"guided_json": {"properties": ...}}),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": ...}}}),
        ("/v1/completions", {"prompt": ...}),
        ("/v1/responses", {"input": ..., "text": ...}),
        ("/v1/responses", {"input": [...], "tools": [...]}),
        ("/v1/messages", {"max_tokens": 2, "system": ...}),
        ("/v1/messages", {"max_tokens": 2, "tools": [{"name": "f", "input_schema": ...}]}),
        ("/api/chat", {"format": ...}),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "tool_calls": [...]}]}),
        ("/api/generate", {"prompt": "x", "context": ...}),
        ("/admin/models", {"source": "x", "aliases": ...}),
    ],
)
def test_what_is_nested_deeply(server: Server, path: str, body: Any) -> None:
    if path in (CHAT, "/v1/messages", "/api/chat"):
        body = {"messages": MESSAGES, **body}
    whole = json.dumps(filled({"model": "tiny", **body}, "..."))
    for depth in (30, 60, 100, 500, 990, 5000, 100_000):
        for opening, closing in (("[", "]"), ('{"a":', "}"), ('{"properties":{"a":', "}}")):
            nested = opening * depth + "1" + closing * depth
            data = whole.replace('"..."', nested).encode()
            status, _, answer = server.request("POST", path, data)
            assert status in (200, 400), answer
