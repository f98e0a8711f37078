"""HTTP as gateways, proxies and hand-written clients speak it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.serving import Server, events_of, serving
from tidemill.server.connection import MAX_HEAD

BODY: dict[str, Any] = {
    "model": "tiny", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 40,
    "temperature": 0, "ignore_eos": True,
}  # fmt: skip
# What litellm's gateway sends for a request to a server of OpenAI's API, extras included.
GATEWAY_HEADERS = {
    "Authorization": "Bearer sk-anything",
    "User-Agent": "OpenAI/Python 2.8.0",
    "X-Stainless-Lang": "python",
    "X-Stainless-Retry-Count": "0",
    "X-Stainless-Read-Timeout": "6000",
    "OpenAI-Organization": "org",
    "x-litellm-call-id": "abc-1",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate, br, zstd",
}
CHAT = "/v1/chat/completions"


def head(method: str = "POST", path: str = CHAT, version: str = "1.1", **fields: str) -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: x"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def post(body: Any, version: str = "1.1", **fields: str) -> bytes:
    data = json.dumps(body).encode()
    return head(version=version, Content_Length=str(len(data)), **fields) + data


class Reader:
    """Takes answers from a connection, one after the other."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rb")

    def answer(self, *, bodiless: bool = False) -> tuple[int, dict[str, str], bytes]:
        """Status, header fields and body, as their framing has them."""
        status = int(self._file.readline().split()[1])
        fields = {}
        while (line := self._file.readline().strip()) != b"":
            name, _, value = line.decode().partition(":")
            fields[name.lower()] = value.strip()
        if bodiless or status == 100:
            return status, fields, b""
        if fields.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self._file.readline(), 16):
                body += self._file.read(size)
                self._file.readline()
            self._file.readline()
            return status, fields, body
        if "content-length" in fields:
            return status, fields, self._file.read(int(fields["content-length"]))
        return status, fields, self._file.read()

    def at_end(self) -> bool:
        return self._file.read(1) == b""


@pytest.fixture
def expected(server: Server) -> str:
    status, answer = server.post(CHAT, BODY)
    assert status == 200
    return str(answer["choices"][0]["message"]["content"])


def text_of(body: bytes) -> str:
    return str(json.loads(body)["choices"][0]["message"]["content"])


def streamed(body: bytes) -> str:
    *chunks, done = events_of(body)
    assert done == "[DONE]"
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


# ---- as a gateway


def test_what_a_gateway_sends(server: Server, expected: str) -> None:
    with httpx.Client(base_url=f"{server.url}/v1", headers=GATEWAY_HEADERS, timeout=60) as client:
        whole = client.post(
            "/chat/completions", json={**BODY, "user": "u1", "metadata": {"a": "b"}}
        )
        assert whole.status_code == 200
        assert text_of(whole.content) == expected
        options = {"include_usage": True}
        body = {**BODY, "stream": True, "stream_options": options, "n": 1, "tools": None}
        with client.stream("POST", "/chat/completions", json=body) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 40
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks[:-1])
    assert text == expected


def test_one_connection_for_many_requests(server: Server, expected: str) -> None:
    with httpx.Client(
        base_url=server.url, limits=httpx.Limits(max_connections=1), timeout=60
    ) as client:
        for _ in range(3):
            assert text_of(client.post(CHAT, json=BODY).content) == expected
            assert client.get("/v1/models").status_code == 200
            assert client.post(CHAT, content=b"{").status_code == 400


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_the_type_of_a_body_does_not_matter(
    server: Server, expected: str, content_type: str
) -> None:
    _, _, body = server.request("POST", CHAT, BODY, {"Content-Type": content_type})
    assert text_of(body) == expected


# ---- framing


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_has_no_chunks(server: Server, expected: str, stream: bool) -> None:
    with server.connect() as connection:
        connection.sendall(post({**BODY, "stream": stream}, version="1.0"))
        reader = Reader(connection)
        status, fields, body = reader.answer()
        assert (status, "transfer-encoding" in fields) == (200, False)
        assert (streamed(body) if stream else text_of(body)) == expected
        assert reader.at_end()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_chunked_bodies(server: Server, expected: str, size: int) -> None:
    data = json.dumps(BODY).encode()
    parts = [data[i : i + size] for i in range(0, len(data), size)]
    with server.connect() as connection:
        connection.sendall(head(Transfer_Encoding="chunked"))
        for part in parts:
            connection.sendall(b"%x\r\n%b\r\n" % (len(part), part))
        connection.sendall(b"0\r\n\r\n")
        assert text_of(Reader(connection).answer()[2]) == expected


def test_a_body_in_small_pieces(server: Server, expected: str) -> None:
    with server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in post(BODY):
            connection.sendall(bytes([byte]))
        assert text_of(Reader(connection).answer()[2]) == expected


def test_pipelined_requests_are_answered_in_order(server: Server, expected: str) -> None:
    with server.connect() as connection:
        connection.sendall(
            post(BODY) + head("GET", "/version") + post({**BODY, "stream": True})
            + post({**BODY, "max_tokens": -1}) + head("GET", "/health/live", Connection="close")
        )  # fmt: skip
        reader = Reader(connection)
        assert text_of(reader.answer()[2]) == expected
        assert "version" in json.loads(reader.answer()[2])
        assert streamed(reader.answer()[2]) == expected
        assert reader.answer()[0] == 400
        assert json.loads(reader.answer()[2]) == {"status": "ok"}
        assert reader.at_end()


def test_expect_100_continue(server: Server, expected: str) -> None:
    data = json.dumps(BODY).encode()
    with server.connect() as connection:
        connection.sendall(head(Content_Length=str(len(data)), Expect="100-continue"))
        reader = Reader(connection)
        assert reader.answer()[0] == 100
        connection.sendall(data)
        assert text_of(reader.answer()[2]) == expected
        # What is too large is refused before it is sent.
        connection.sendall(head(Content_Length=str(1 << 40), Expect="100-continue"))
        assert reader.answer()[0] == 413


def test_head_is_get_without_a_body(server: Server) -> None:
    with server.connect() as connection:
        reader = Reader(connection)
        for path in ("/v1/models", "/health/live", "/", "/openapi.json"):
            connection.sendall(head("GET", path))
            status, fields, body = reader.answer()
            connection.sendall(head("HEAD", path))
            assert reader.answer(bodiless=True)[0] == status == 200
            assert int(fields["content-length"]) == len(body)
        connection.sendall(head("HEAD", CHAT))
        assert reader.answer(bodiless=True)[0] == 405


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # TLS
        b"GET\r\n\r\n",
        b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",  # request smuggling
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused(server: Server, data: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(data)
        status, _, body = Reader(connection).answer()
        assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_http")
    assert server.get("/health/live")[0] == 200


def test_a_head_has_a_largest_size(server: Server) -> None:
    """Whether it comes with an end or goes on for ever."""
    fitting = head("GET", "/version", X="y" * (MAX_HEAD - 1000))
    with server.connect() as connection:
        connection.sendall(fitting)
        reader = Reader(connection)
        assert reader.answer()[0] == 200
        connection.sendall(fitting)  # the limit is for each
        assert reader.answer()[0] == 200
    with server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            connection.sendall((b"X: " + b"y" * 4000 + b"\r\n") * 10_000)


def test_an_upgrade_is_not_made(server: Server) -> None:
    fields = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Key": "eA==",
              "Sec_WebSocket_Version": "13"}  # fmt: skip
    with server.connect() as connection:
        connection.sendall(head("GET", "/version", **fields))
        assert Reader(connection).answer()[0] == 200


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_body_behind_an_upgrade_that_is_not_made(
    server: Server, expected: str, size: int
) -> None:
    """As Java's client asks for HTTP/2 with every request, over connections that it uses again."""
    fields = {
        "Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAA",
    }  # fmt: skip
    data = 2 * post(BODY, **fields)
    with server.connect() as connection:
        for start in range(0, len(data), size):
            connection.sendall(data[start : start + size])
        reader = Reader(connection)
        for _ in range(2):
            assert text_of(reader.answer()[2]) == expected
        connection.sendall(head("GET", "/version"))
        assert reader.answer()[0] == 200


def test_this_is_no_proxy(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: x\r\n\r\nabc")
        status, _, body = Reader(connection).answer()
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_http")


# ---- other origins


@pytest.fixture(scope="module")
def open_to_app(tiny_chat_model: Path) -> Iterator[Server]:
    arguments = ("--name", "tiny", "--threads", "1", "--allow-origin", "https://app.example")
    with serving(str(tiny_chat_model), *arguments) as found:
        yield found


def preflight(origin: str) -> dict[str, str]:
    return {
        "Origin": origin, "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
    }  # fmt: skip


def test_preflight(open_to_app: Server) -> None:
    status, fields, _ = open_to_app.request("OPTIONS", CHAT, None, preflight("https://app.example"))
    assert status == 200
    assert fields["access-control-allow-origin"] == "https://app.example"
    assert "POST" in fields["access-control-allow-methods"]
    assert "authorization" in fields["access-control-allow-headers"]
    status, fields, _ = open_to_app.request("OPTIONS", CHAT, None, preflight("https://b.example"))
    assert (status, "access-control-allow-origin" in fields) == (400, False)


def test_errors_and_streams_are_readable_for_the_origin(open_to_app: Server) -> None:
    origin = {"Origin": "https://app.example"}
    for body in ({**BODY, "stream": True}, {**BODY, "max_tokens": -1}):
        _, fields, _ = open_to_app.request("POST", CHAT, body, origin)
        assert fields["access-control-allow-origin"] == "https://app.example"


def test_without_origins_there_is_no_preflight(server: Server) -> None:
    status, fields, _ = server.request("OPTIONS", CHAT, None, preflight("https://app.example"))
    assert (status, fields["allow"]) == (405, "POST")
    assert "access-control-allow-origin" not in fields


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_can_change_nothing(server: Server, site: str) -> None:
    """Not even by requests that browsers send without asking, whose answers they keep."""
    page = {"Sec-Fetch-Site": site, "Origin": "https://b.example", "Content-Type": "text/plain"}
    for method, path in (
        ("POST", "/admin/models/tiny/unload"), ("POST", CHAT), ("GET", "/v1/models"),
    ):  # fmt: skip
        status, _, data = server.request(method, path, None, page)
        assert (status, json.loads(data)["error"]["code"]) == (403, "origin_not_allowed")
    assert server.get("/v1/models")[1]["data"][0]["state"] == "loaded"
    assert server.request("GET", "/health/live", None, page)[0] == 200


def test_pages_that_may_use_it(server: Server, open_to_app: Server) -> None:
    own = {"Sec-Fetch-Site": "same-origin", "Origin": server.url}
    assert server.request("POST", CHAT, BODY, own)[0] == 200
    app = {"Sec-Fetch-Site": "cross-site", "Origin": "https://app.example"}
    assert open_to_app.request("POST", CHAT, BODY, app)[0] == 200
