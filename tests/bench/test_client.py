from __future__ import annotations

import asyncio
import json
import socket
import threading

import pytest

from support.canned import always, canned
from tidemill.bench.client import Client, Endpoint, Reply
from tidemill.bench.stream import read
from tidemill.bench.workload import Fixed, Prompt, Shape

EVENTS = b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
SIZED = HEAD + b"Content-Length: %d\r\n\r\n" % len(EVENTS) + EVENTS
CHUNKED = (
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(EVENTS) + EVENTS + b"\r\n0\r\n\r\n"
)
PROMPT = Prompt(Shape("chat", Fixed(1)), "Hello", 5)


def ask(url: str, count: int = 1, timeout: float = 30.0, pause: float = 0.0) -> list[Reply]:
    """The answers to ``count`` requests, one after the other."""

    async def talk() -> list[Reply]:
        endpoint = Endpoint(url, "m")
        client = Client(endpoint, timeout)
        replies = []
        for _ in range(count):
            replies.append(await client.send(endpoint.body(PROMPT)))
            await asyncio.sleep(pause)
        client.close()
        return replies

    return asyncio.run(talk())


@pytest.mark.parametrize("answer", [SIZED, CHUNKED])
def test_connections_are_used_again(answer: bytes) -> None:
    with canned(always(answer)) as server:
        replies = ask(server.url, 5)
    assert [read(reply).error for reply in replies] == [None] * 5
    assert server.connections == 1


def test_an_answer_can_end_with_its_connection() -> None:
    def answer(connection: socket.socket, _: int) -> bool:
        connection.sendall(HEAD + b"\r\n" + EVENTS)
        return False

    with canned(answer) as server:
        replies = ask(server.url, 2)
    assert [read(reply).error for reply in replies] == [None, None]
    assert server.connections == 2


def test_a_request_on_a_connection_that_was_closed_meanwhile_is_sent_again() -> None:
    # The second request meets a server that closes without a word, as one that had been idle.
    def answer(connection: socket.socket, number: int) -> bool:
        if number == 1:
            return False
        connection.sendall(SIZED)
        return True

    with canned(answer) as server:
        replies = ask(server.url, 2)
    assert [read(reply).error for reply in replies] == [None, None]
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", "closed"),
        (SIZED[:-10], "closed"),
        (CHUNKED[:-5], "closed"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not_http"),
        (HEAD + b"\r\n" + EVENTS[:-40], "cut_off"),
    ],
)
def test_what_breaks_off_is_an_error(sent: bytes, error: str) -> None:
    def answer(connection: socket.socket, _: int) -> bool:
        connection.sendall(sent)
        return False

    with canned(answer) as server:
        (reply,) = ask(server.url)
    assert read(reply).error == error
    assert len(server.requests) == 1  # nothing that was begun is sent again


def test_an_endpoint_that_hangs_is_given_up() -> None:
    released = threading.Event()
    with canned(lambda connection, _: released.wait(60)) as server:
        (reply,) = ask(server.url, timeout=0.2)
        released.set()
    assert read(reply).error == "timeout"


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (reply,) = ask(f"http://127.0.0.1:{port}/v1")
    answer = read(reply)
    assert answer.error == "connect"
    assert str(port) in answer.detail


def test_an_endless_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.bench.client.MAX_ANSWER", 1000)

    def answer(connection: socket.socket, _: int) -> bool:
        connection.sendall(HEAD + b"\r\n")
        while True:  # until the client is gone
            connection.sendall(b"data: {}\n\n" * 100)

    with canned(answer) as server:
        (reply,) = ask(server.url)
    assert read(reply).error == "too_large"


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_what_is_sent(api: str) -> None:
    endpoint = Endpoint(
        "http://127.0.0.1:1/v1/", "m", api=api, api_key="secret", extra={"ignore_eos": True}
    )  # type: ignore[arg-type]
    body = json.loads(endpoint.body(PROMPT))
    said = {"messages": [{"role": "user", "content": "Hello"}]}
    assert body == {
        "model": "m", "stream": True, "max_tokens": 5, "ignore_eos": True,
        "stream_options": {"include_usage": True},
        **(said if api == "chat" else {"prompt": "Hello"}),
    }  # fmt: skip

    async def talk(url: str) -> None:
        keyed = Endpoint(url, "m", api=api, api_key="secret")  # type: ignore[arg-type]
        await Client(keyed, 30).send(b"{}")

    with canned(always(SIZED)) as server:
        asyncio.run(talk(server.url + "/"))
    path = b"/v1/chat/completions" if api == "chat" else b"/v1/completions"
    assert server.requests[0].startswith(b"POST " + path + b" HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer secret\r\n" in server.requests[0]


def test_an_address_keeps_its_query_and_no_header_can_be_smuggled_in() -> None:
    async def talk(url: str) -> None:
        await Client(Endpoint(url, "m"), 30).send(b"{}")

    with canned(always(SIZED)) as server:
        address = server.url.replace("http://", "http://user:word@") + "?api-version=1"
        asyncio.run(talk(address))
    head = server.requests[0]
    assert head.startswith(b"POST /v1/chat/completions?api-version=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"word" not in head
    with pytest.raises(ValueError, match="printable"):
        Endpoint(server.url, "m", api_key="a\r\nX-Evil: 1")


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x/v1", "http:///v1"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is no URL"):
        Endpoint(url, "m")
