"""HTTP connections: uvicorn's, with limits on their number and on clients that send nothing, too
much, or do not read, and without chunks for clients that know none."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from functools import partial
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tidemill.server.errors import ApiError
from tidemill.server.http import JSON, Receive, Scope, Send, encode
from tidemill.server.openai.answers import error_body

MAX_HEAD = 64 << 10
"""Bytes of a request's line and header fields."""

_LEAST_READ = 16 << 10
"""Bytes of those waiting for it that a client must read within ``stall_seconds``."""


class Connection(HttpToolsProtocol):
    """A connection that is ended at once, unsent data and all, when its client stalls.

    The head of a request must have arrived within ``stall_seconds`` of the connection's being made,
    and of having begun to arrive. Where so much has been written that the client is to read first,
    it must go on reading: a slow one may take its time, one that stands still may not. A head of
    more than ``MAX_HEAD`` bytes is refused.

    No other protocol is gone over to, whoever asks for it: as Java's client does for HTTP/2, while
    it sends the request's body in HTTP/1.1.

    What is asked on a connection that was made when there were ``max_connections`` is answered with
    503; whoever has one goes on.
    """

    stall_seconds = 60.0
    max_connections = 4096

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._upgrading = False
        """Whether the parser has just read a head that asks for another protocol, and takes the
        rest for that one's."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._head_timer = self._abort_later()
        if len(self.connections) > self.max_connections:
            self.app = _too_many

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._head_timer)
        _cancel(self._write_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        waiting = self._head_timer
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._go_on_in_http(data[upgrade.args[0] :])
        except HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")
            return
        if waiting is None or self._head_timer is not waiting:
            self._head_bytes = 0  # the head is complete, or began behind another request
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response(f"The head of a request has at most {MAX_HEAD} bytes.")

    def _go_on_in_http(self, rest: bytes) -> None:
        """Read the head again as one that asks for no other protocol, and what has come behind."""
        method = self.parser.get_method()
        if method == b"CONNECT":  # whatever its fields
            self.send_400_response("This is no proxy.")
            return
        fields = [b"%b: %b\r\n" % field for field in self.headers if field[0] != b"upgrade"]
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (
            method, self.url, self.parser.get_http_version().encode(), b"".join(fields)
        )  # fmt: skip
        self._upgrading = False
        self.parser = HttpRequestParser(self)
        self.data_received(head + rest)

    def send_400_response(self, msg: str) -> None:
        """For what is no HTTP: in the form of any other error."""
        body = encode(error_body(ApiError(400, msg, code="invalid_http")))
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: %b\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (JSON.encode(), len(body), body)
        )
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._head_timer = self._abort_later()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self._upgrading = True
            return
        _cancel(self._head_timer)
        self._head_timer = None
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":
            self.cycle.send = partial(_send_without_chunks, self.cycle)  # type: ignore[method-assign]

    def on_message_complete(self) -> None:
        if not self._upgrading:
            super().on_message_complete()

    def pause_writing(self) -> None:
        self._expect_reading()
        super().pause_writing()

    def resume_writing(self) -> None:
        if self.cycle is None or not self.cycle.response_complete:
            _cancel(self._write_timer)
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._expect_reading()  # what is left, which pauses nothing

    def _expect_reading(self) -> None:
        _cancel(self._write_timer)
        most = max(0, self.transport.get_write_buffer_size() - _LEAST_READ)
        self._write_timer = self.loop.call_later(self.stall_seconds, self._check_reading, most)

    def _check_reading(self, most: int) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread > most:
            self.transport.abort()
        elif unread:
            self._expect_reading()

    def _abort_later(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self.stall_seconds, self.transport.abort)


async def _too_many(scope: Scope, receive: Receive, send: Send) -> None:
    """The application of a connection that there is no place for."""
    error = ApiError(
        503, "this server has as many connections as it may; try again later",
        code="too_many_connections",
    )  # fmt: skip
    body = encode(error_body(error))
    headers = {"content-type": JSON, "content-length": str(len(body)), "connection": "close",
               "retry-after": "5"}  # fmt: skip
    await send(
        {
            "type": "http.response.start",
            "status": error.status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def _send_without_chunks(
    cycle: RequestResponseCycle, message: MutableMapping[str, Any]
) -> None:
    """For HTTP/1.0, which has no chunks: an answer of unknown length ends with its connection. Each
    part's own length is told to uvicorn as what it is to expect."""
    cycle.chunked_encoding = False
    cycle.expected_content_length = len(message.get("body", b""))
    await RequestResponseCycle.send(cycle, message)  # type: ignore[arg-type]


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
