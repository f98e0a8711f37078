"""Whom the load goes to, and what is said of those that cannot be measured."""

from __future__ import annotations

import asyncio
import json
import socket
import threading

import pytest

from support.canned import always, canned, http, listing
from tidemill.bench import targets
from tidemill.bench.client import Endpoint
from tidemill.bench.engines import ENGINES, TargetError
from tidemill.bench.targets import FULL_LENGTH, GREEDY, choose_model, parse, settle

EVENTS = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'


def test_urls() -> None:
    assert parse("http://127.0.0.1:8000").url == "http://127.0.0.1:8000/v1"
    assert parse("http://127.0.0.1:8000/").url == "http://127.0.0.1:8000/v1"
    assert parse("https://host/openai/v1/").url == "https://host/openai/v1"
    assert parse("https://host/@team/v1").url == "https://host/@team/v1"
    assert targets.shown("https://u:secret@host/v1?key=secret") == "https://host/v1"


@pytest.mark.parametrize("host", ["host", "host:port", "[host"])
@pytest.mark.parametrize("user", ["u:secret", "secret", ":secret", "u:sec/secret"])
def test_passwords_in_urls_are_refused_and_not_repeated(user: str, host: str) -> None:
    with pytest.raises(TargetError, match=r"no user and password.*--api-key") as refused:
        parse(f"http://{user}@{host}/v1")
    assert "secret" not in str(refused.value)


def test_engines() -> None:
    assert parse("tidemill").engine is ENGINES["tidemill"]
    assert parse("tidemill").model == "smollm2"
    assert parse("tidemill:hf://owner/repo:Q4_K_M").model == "hf://owner/repo:Q4_K_M"
    assert parse("llama.cpp:a.gguf").engine is ENGINES["llama.cpp"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("llama.cpp", "which model.*GGUF file"),
        ("lama", "neither a URL.*tidemill, llama.cpp"),
        ("ftp://host/v1", "neither a URL"),
        ("http://", "is no URL"),
        ("http://host:port/v1", "is no URL"),
        ("", "neither a URL"),
    ],
)
def test_what_is_no_target(text: str, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        parse(text)


def test_the_only_model_is_taken() -> None:
    with canned(always(listing("one"))) as server:
        assert choose_model(server.url, "secret") == "one"
    assert server.requests[0].startswith(b"GET /v1/models HTTP/1.1")
    assert b"Authorization: Bearer secret" in server.requests[0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (listing("one", "two"), "2 models, name one with --model: one, two"),
        (listing(), "serves 0 models"),
        (http(b"<html>Sign in</html>", "text/html"), "answers with a web page.*ends in /v1"),
        (http(b'{"models": []}'), r"no list of models \(application/json\)"),
        (http(b"[" * 100_000), "no list of models"),
        (http(b"", status="404 Not Found"), "HTTP 404.*--model"),
        (http(b"", status="401 Unauthorized"), "wants a key.*--api-key"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\nx", "models"),
    ],
)
def test_lists_that_are_none(answer: bytes, said: str) -> None:
    def reply(connection: socket.socket, _: int) -> bool:
        connection.sendall(answer)
        return False

    with canned(reply) as server, pytest.raises(TargetError, match=said):
        choose_model(server.url, None)


def test_nobody_there_and_somebody_who_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(
        TargetError, match=f"{port}/v1/models: it cannot be reached.*does the server"
    ):
        choose_model(f"http://127.0.0.1:{port}/v1", None)
    monkeypatch.setattr(targets, "_LIST_SECONDS", 0.2)
    released = threading.Event()
    with canned(lambda connection, _: released.wait(60)) as server:
        with pytest.raises(TargetError, match="does not answer: no end within"):
            choose_model(server.url, None)
        released.set()


def settled(url: str, *, full_length: bool = True, timeout: float = 30.0) -> Endpoint:
    endpoint = Endpoint(url, "m", extra=dict(GREEDY))
    fields = FULL_LENGTH if full_length else {}
    return asyncio.run(settle(endpoint, "", full_length=fields, timeout=timeout))


@pytest.mark.parametrize(
    ("refused", "extra", "usage"),
    [
        ("nothing", {"temperature": 0, "ignore_eos": True}, True),
        ("ignore_eos", {"temperature": 0}, True),
        ("temperature", {}, True),
        ("stream_options", {}, False),
    ],
)
def test_an_endpoint_is_asked_as_it_can_be(
    refused: str, extra: dict[str, object], usage: bool
) -> None:
    def reply(connection: socket.socket, number: int) -> bool:
        asked = json.loads(server.requests[number].partition(b"\r\n\r\n")[2])
        bad = refused in asked
        connection.sendall(
            http(b"{}", status="400 Bad Request") if bad else http(EVENTS, "text/event-stream")
        )
        return True

    with canned(reply) as server:
        found = settled(server.url)
    assert (found.extra, found.usage) == (extra, usage)


def test_checked_answers_end_where_the_model_ends_them() -> None:
    with canned(always(http(EVENTS, "text/event-stream"))) as server:
        assert settled(server.url, full_length=False).extra == {"temperature": 0}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (http(b"<html>", "text/html"), "does not stream.*html"),
        (http(EVENTS[:-20], "text/event-stream"), "ends without an end"),
        (http(EVENTS, "text/event-stream")[:-20], "breaks off"),
        (http(b'{"error": {"message": "no \'m\'"}}', status="404 Not Found"), "http_404: no 'm'"),
        (http(b'{"error": {"message": "bad m"}}', status="400 Bad"), "http_400: bad m"),
    ],
)
def test_endpoints_that_do_not_answer_as_they_should(answer: bytes, said: str) -> None:
    def reply(connection: socket.socket, number: int) -> bool:
        if server.requests[number].startswith(b"GET"):
            connection.sendall(listing("other"))
        else:
            connection.sendall(answer)
        return False

    with canned(reply) as server, pytest.raises(TargetError, match=f"{said}.*it serves other"):
        settled(server.url)


def test_an_endpoint_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_LIST_SECONDS", 0.2)
    released = threading.Event()
    with canned(lambda connection, _: released.wait(60)) as server:
        with pytest.raises(TargetError, match="does not answer: no end within"):
            settled(server.url, timeout=0.2)
        released.set()
