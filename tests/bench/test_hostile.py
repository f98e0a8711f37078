"""Endpoints that are not what they should be: each is told apart, in words that a terminal can
show, and none holds anything up or learns a key that is not for it."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from support.canned import always, canned, http, listing
from tidemill.bench import client, targets
from tidemill.bench.arrivals import Closed
from tidemill.bench.client import Client, Endpoint
from tidemill.bench.engines import TargetError
from tidemill.bench.measures import summarise
from tidemill.bench.run import Plan, run
from tidemill.bench.stream import Answer, read
from tidemill.bench.targets import FULL_LENGTH, GREEDY, choose_model, settle
from tidemill.bench.workload import Fixed, Prompt, Shape, Workload

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
GOOD = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
EVIL = "\x1b[2J\x1b]0;owned\x07 \x00 \x9b31m \u202e \r bad"
"""Clears the screen, sets the title, turns the text around."""


def ask(url: str, timeout: float = 30.0) -> Answer:
    async def talk() -> Answer:
        endpoint = Endpoint(url, "m")
        asked = Client(endpoint, timeout)
        try:
            prompt = Prompt(Shape("chat", Fixed(1)), "Hello", 5)
            return read(await asked.send(endpoint.body(prompt)))
        finally:
            asked.close()

    return asyncio.run(talk())


def refusal(url: str, api_key: str | None = None) -> str:
    """What is said of an endpoint that cannot be measured."""
    endpoint = Endpoint(url, "m", api_key=api_key, extra=GREEDY)
    with pytest.raises(TargetError) as error:
        asyncio.run(settle(endpoint, "", full_length=FULL_LENGTH, timeout=30))
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 800
    return str(error.value)


@contextmanager
def raw(answer: bytes) -> Iterator[int]:
    """The port of a server that says the same to whoever connects, whatever is said to it."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


# ---- not there, or of another kind


def test_a_name_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*arguments: object, **options: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said = refusal("http://no-such-host.invalid/v1")
    assert "no-such-host.invalid:80: no machine of that name is known" in said


def test_a_name_that_can_be_none() -> None:
    assert "no machine of that name" in refusal(f"http://{'a' * 70}.invalid/v1")


def test_whoever_takes_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        for _ in range(4):  # until its backlog is full
            each = waiting.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        assert "no connection within 0.2 s" in refusal(f"http://127.0.0.1:{full.getsockname()[1]}")


def test_https_of_a_server_that_has_none() -> None:
    with raw(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as port:
        assert "is it http:// instead?" in refusal(f"https://127.0.0.1:{port}/v1")


def test_http_of_a_server_that_has_only_https() -> None:
    with raw(b"\x15\x03\x01\x00\x02\x02\x46") as port:
        assert "is it https:// instead?" in refusal(f"http://127.0.0.1:{port}/v1")


@pytest.mark.parametrize("url", ["http://a b/v1", "http://h/v1\x1b[2J", "http://h/v1 HTTP/1.1"])
def test_addresses_that_would_break_a_request(url: str) -> None:
    with pytest.raises(ValueError, match="is no URL"):
        Endpoint(url, "m")


# ---- refusals


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("401 Unauthorized", "--api-key"),
        ("403 Forbidden", "--api-key"),
        ("404 Not Found", "the model one that it has"),
        ("429 Too Many Requests", "limits how much"),
        ("500 Oops", "its log"),
        ("503 Busy", "still loading"),
        ("418 Teapot", "http_418"),
    ],
)
def test_refusals_with_long_bodies(status: str, said: str) -> None:
    body = b"<html>" + b"x" * 300_000
    with canned(always(http(body, "text/html", status))) as server:
        found = refusal(server.url)
    assert said in found
    assert status[:3] in found
    assert "<html>xxx" in found


@pytest.mark.parametrize("status", ["301 Moved", "307 Temporary", "302 Found"])
def test_redirections_are_told_and_not_followed(status: str) -> None:
    """Or whoever answers there would be given the key."""
    with canned(always(http(b"{}"))) as other:

        def answer(connection: socket.socket, _: int) -> bool:
            to = f"Location: {other.url}/elsewhere\r\nContent-Length: 0\r\n\r\n"
            connection.sendall(f"HTTP/1.1 {status}\r\n{to}".encode())
            return True

        with canned(answer) as server:
            assert f"redirects to {other.url}/elsewhere" in refusal(server.url, "secret")
            with pytest.raises(TargetError, match=f"redirects to {other.url}/elsewhere"):
                choose_model(server.url, "secret")
        assert other.connections == 0


@pytest.mark.parametrize(
    "answer",
    [
        http(json.dumps({"error": {"message": EVIL}}).encode(), status="400 Bad"),
        http(EVIL.encode(), "text/html"),
        http(b"\xff\xfe\x00\x1b[2J", status="500 Oops"),
        http(b"{}", kind="text/plain; \x9b31m"),
        HEAD + b"\r\ndata: " + json.dumps({"error": {"message": EVIL}}).encode() + b"\n\n",
        HEAD + b"\r\ndata: {\x1b[2J\n\n",
        HEAD + b'\r\ndata: {"choices": "' + EVIL.encode() + b'"}\n\n',
        b"HTTP/1.1 301 \x1b[2J\r\nLocation: http://\x9b31m/\r\nContent-Length: 0\r\n\r\n",
        b"\x1b[2JHTTP/1.1 200 OK\r\n\r\n",
    ],
)
def test_what_a_terminal_must_not_be_shown(answer: bytes) -> None:
    def reply(connection: socket.socket, _: int) -> bool:
        connection.sendall(answer)
        return False

    with canned(reply) as server:
        refusal(server.url)  # is printable


def test_names_of_models_that_a_terminal_must_not_be_shown() -> None:
    for names in ((EVIL,), (EVIL, "other"), (EVIL * 1000, "other")):
        answer = always(listing(*names))
        with canned(answer) as server, pytest.raises(TargetError) as error:
            choose_model(server.url, None)
        assert str(error.value).isprintable()
        assert "--model" in str(error.value)
        assert len(str(error.value)) < 800


# ---- without an end


def hanging(begin: bytes) -> tuple[Callable[[socket.socket, int], bool], threading.Event]:
    released = threading.Event()

    def answer(connection: socket.socket, _: int) -> bool:
        connection.sendall(begin)
        return released.wait(60)

    return answer, released


@pytest.mark.parametrize(
    "begin", [b"", b"HTTP/1.1 200", HEAD + b"\r\n", HEAD + b"\r\n" + GOOD[:30]]
)
def test_hanging_before_and_amid_an_answer(begin: bytes) -> None:
    answer, released = hanging(begin)
    with canned(answer) as server:
        found = ask(server.url, timeout=0.3)
        released.set()
    assert found.error == "timeout"


def endless(piece: bytes, begin: bytes = b"") -> Callable[[socket.socket, int], bool]:
    def answer(connection: socket.socket, _: int) -> bool:
        connection.sendall(begin)
        while True:  # until the client is gone
            connection.sendall(piece)

    return answer


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-Header: " + b"x" * 1000 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-Header: ", b"x" * 10_000),
        (HEAD + b"\r\n", b"data: {}\n\n" * 100),
        (HEAD + b"\r\ndata: ", b"x" * 10_000),
    ],
    ids=["headers", "one header", "events", "one line"],
)
def test_what_has_no_end(begin: bytes, piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER", 1 << 20)
    monkeypatch.setattr(client, "MAX_HEAD", 1 << 18)
    with canned(endless(piece, begin)) as server:
        assert ask(server.url).error == "too_large"


def test_a_list_of_models_that_trickles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_LIST_SECONDS", 0.5)

    def answer(connection: socket.socket, _: int) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b" ")
            time.sleep(0.02)

    with canned(answer) as server, pytest.raises(TargetError, match="does not answer"):
        choose_model(server.url, None)


def test_one_line_of_megabytes_is_read() -> None:
    text = "x" * (4 << 20)
    event = {"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]}
    body = b"data: " + json.dumps(event).encode() + b"\n\n"
    with canned(always(http(body, "text/event-stream"))) as server:
        found = ask(server.url)
    assert (found.error, len(found.text), len(found.times)) == (None, 4 << 20, 1)


# ---- amid a run


def test_an_endpoint_that_turns_bad_ends_the_run_with_its_figures() -> None:
    """Each kind of trouble in turn, after a good beginning."""
    troubles = [
        http(GOOD, "text/event-stream")[:-5],
        b"garbage",
        http(b"", status="500 Oops"),
        http(b"<html>", "text/html"),
        http(GOOD[:-20], "text/event-stream"),
        http(b"data: \xff\n\n", "text/event-stream"),
    ]

    def answer(connection: socket.socket, number: int) -> bool:
        bad = number > 2 and number % 2
        reply = troubles[(number // 2) % len(troubles)] if bad else http(GOOD, "text/event-stream")
        connection.sendall(reply)
        return not bad

    with canned(answer) as server:
        plan = Plan(
            endpoint=Endpoint(server.url, "m"), workload=Workload((Shape("chat", Fixed(1)),)),
            load=Closed(4), seconds=1.0, requests=24, warmup=0.0, timeout=60.0,
        )  # fmt: skip
        summary = summarise(asyncio.run(run(plan)))
    assert summary.good
    assert set(summary.errors) == {
        "closed", "not_http", "http_500", "not_a_stream", "cut_off", "not_json",
    }  # fmt: skip
    assert summary.good + sum(summary.errors.values()) == summary.requests
    assert all(text.isprintable() for text in summary.examples.values())


def test_an_answer_in_a_million_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pieces take of memory beside their bytes counts, too."""
    monkeypatch.setattr(client, "MAX_ANSWER", 1 << 16)

    def crumbs(connection: socket.socket, number: int) -> bool:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        with suppress(OSError):
            connection.sendall(b"1\r\n:\r\n" * 10_000)  # far fewer bytes than the limit
            connection.sendall(b"0\r\n\r\n")
        return False

    with canned(crumbs) as server:
        assert ask(server.url).error == "too_large"


def test_a_compressed_answer() -> None:
    def zipped(connection: socket.socket, number: int) -> bool:
        body = gzip.compress(GOOD)
        head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)
        return True

    with canned(zipped) as server:
        assert ask(server.url).error == "compressed"
        assert "its answers are compressed, though that was not asked for: gzip" in refusal(
            server.url
        )


def test_hints_before_an_answer() -> None:
    def hint(connection: socket.socket, number: int) -> bool:
        connection.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n")
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"\r\n" + GOOD)
        return False

    with canned(hint) as server:
        answer = ask(server.url)
    assert (answer.error, answer.text) == (None, "a")
