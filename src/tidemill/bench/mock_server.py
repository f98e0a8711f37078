"""An endpoint with known times: ``python -m tidemill.bench.mock_server TTFT ITL``, in seconds.

It lists one model, "mock", and answers any POST with as many tokens as ``max_tokens`` asks for: the
first TTFT after the request has arrived, the others ITL apart, all by the clock and not one after
the other, so that lateness does not add up. Each token's text is the time at which it was really
written (monotonic clock, which processes of one machine share), so that whoever reads it knows how
late it is. Its first line of output is its port. It ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import httptools
import msgspec

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_LIST = b'{"object": "list", "data": [{"id": "mock", "object": "model"}]}'
_MODELS = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(_LIST),
    _LIST,
)


class _Body(msgspec.Struct):
    max_tokens: int


class _Connection(asyncio.Protocol):
    def __init__(self, ttft: float, itl: float) -> None:
        self._ttft = ttft
        self._itl = itl
        self._parts: list[bytes] = []
        self._parser: Any = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._arrived = time.monotonic()
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"GET":
            self._transport.write(_MODELS)
            return
        asked = msgspec.json.decode(b"".join(self._parts), type=_Body)
        self._parts.clear()
        self._token(self._arrived + self._ttft, asked.max_tokens, asked.max_tokens)

    def _token(self, due: float, left: int, all_: int) -> None:
        asyncio.get_running_loop().call_at(due, self._write, due, left, all_)

    def _write(self, due: float, left: int, all_: int) -> None:
        if self._transport.is_closing():
            return
        head = _HEAD if left == all_ else b""
        text = f"{time.monotonic():.7f} "
        self._transport.write(head + _event({"choices": [{"delta": {"content": text}}]}))
        if left > 1:
            self._token(due + self._itl, left - 1, all_)
            return
        usage = {"prompt_tokens": 1, "completion_tokens": all_}
        end = _event({"choices": [{"delta": {}, "finish_reason": "length"}]})
        end += _event({"choices": [], "usage": usage}) + _chunk(b"data: [DONE]\n\n")
        self._transport.write(end + b"0\r\n\r\n")


def _event(value: Any) -> bytes:
    return _chunk(b"data: " + msgspec.json.encode(value) + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _serve(ttft: float, itl: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(ttft, itl), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]), float(sys.argv[2])))
