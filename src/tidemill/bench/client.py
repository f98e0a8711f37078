"""The wire: HTTP requests whose answers are kept as bytes, each piece with the time it came at.

Nothing is read from an answer's text while it comes, so that measuring costs little and stamps are
taken as early as this process can: when the event loop hands the bytes over. ``stream.py`` reads
them afterwards. Connections are kept and used again.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import urlsplit

import httptools
import msgspec

from tidemill.bench.workload import Prompt

MAX_ANSWER = 64 << 20
"""Bytes of one answer after which it is given up, ``_PIECE`` for each piece of it included."""

_PIECE = 100
"""Bytes of memory, about, that a piece takes beside its own."""

MAX_HEAD = 1 << 20
"""Bytes of what comes before an answer's body."""

_CONNECT_SECONDS = 10.0
"""What a connection may take: whoever has none by then is not there, or drowns."""

_TLS_ALERT = b"\x15\x03"  # how a TLS server's refusal begins (RFC 8446, section 5.1)

Failure = Literal["connect", "exhausted", "closed", "timeout", "not_http", "too_large"]
"""What can happen to a request below HTTP; "exhausted": this machine has no more connections."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS)


class Endpoint(msgspec.Struct, frozen=True):
    """An OpenAI-compatible endpoint and how it is asked.

    ``url`` is what SDKs call the base URL, in general ending in /v1. ``extra`` is put into every
    request's body, as it is (``{"ignore_eos": true, "temperature": 0}``). ``usage``: ask
    for the number of tokens at the end of a stream; some old servers refuse that. ``keys``: of
    tenants, by their names in shapes; who has none there uses ``api_key``.
    """

    url: str
    model: str
    api: Literal["chat", "completions"] = "chat"
    api_key: str | None = None
    usage: bool = True
    extra: dict[str, Any] = {}
    keys: dict[str, str] = {}

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        # A blank or a control character would end the request's first line.
        whole = self.url.isprintable() and " " not in self.url
        if parts.scheme not in ("http", "https") or not parts.hostname or not whole:
            raise ValueError(f"{self.url!r} is no URL such as http://127.0.0.1:8000/v1")
        keys = [*self.keys.values(), *([] if self.api_key is None else [self.api_key])]
        if not all(key.isascii() and key.isprintable() for key in keys):
            raise ValueError("an API key has printable ASCII characters only")

    def body(self, prompt: Prompt) -> bytes:
        fields: dict[str, Any] = {"model": self.model, "stream": True}
        if self.api == "chat":
            fields["messages"] = _messages(prompt)
        else:
            fields["prompt"] = prompt.text
        fields["max_tokens"] = prompt.max_tokens
        if self.usage:
            fields["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(fields | dict(prompt.fields or {}) | self.extra)


def _messages(prompt: Prompt) -> list[dict[str, str]]:
    said = [("system", prompt.system)] if prompt.system else []
    for question, answer in prompt.history:
        said += [("user", question), ("assistant", answer)]
    said.append(("user", prompt.text))
    return [{"role": role, "content": content} for role, content in said]


class Reply:
    """What came back. Times are of ``time.monotonic()``."""

    __slots__ = (
        "content_encoding", "content_type", "detail", "ended", "failure", "location", "pieces",
        "sent", "size", "status",
    )  # fmt: skip

    def __init__(self) -> None:
        self.sent = time.monotonic()
        self.ended = 0.0
        self.status = 0
        self.content_type = ""
        self.content_encoding = ""
        self.location = ""
        """Where a redirection points to; none is followed, as it could lead a key elsewhere."""
        self.pieces: list[tuple[float, bytes]] = []
        """The body as it came, with the time of each piece."""
        self.size = 0
        self.failure: Failure | None = None
        self.detail = ""
        """Of the failure."""

    def body(self) -> bytes:
        return b"".join(data for _, data in self.pieces)

    @property
    def begun(self) -> bool:
        return self.status != 0


class WireError(Exception):
    """A request failed below HTTP."""

    def __init__(self, failure: Failure, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure


class Client:
    """Sends requests to one endpoint. ``timeout``: seconds that each may take altogether."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        parts = urlsplit(endpoint.url)
        secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if secure else 80)
        self._ssl = ssl.create_default_context() if secure else None
        self._timeout = timeout
        self._idle: list[_Connection] = []
        host = parts.netloc.rpartition("@")[2]

        def head(method: str, path: str, api_key: str | None) -> str:
            target = parts.path.rstrip("/") + path + (f"?{parts.query}" if parts.query else "")
            key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
            return f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n{key}"

        def ask(api_key: str | None) -> bytes:
            path = "/chat/completions" if endpoint.api == "chat" else "/completions"
            kinds = "Content-Type: application/json\r\nAccept: text/event-stream\r\n"
            return (head("POST", path, api_key) + kinds + "Content-Length: ").encode()

        self._list = (head("GET", "/models", endpoint.api_key) + "\r\n").encode()
        self._head = ask(endpoint.api_key)
        self._heads = {tenant: ask(key) for tenant, key in endpoint.keys.items()}

    async def models(self) -> Reply:
        """What it answers to GET /models."""
        return await self._reply(self._list)

    async def send(self, body: bytes, tenant: str = "") -> Reply:
        """The answer, whole, or as far as it came: failures are told in it, never raised."""
        head = self._heads.get(tenant, self._head)
        return await self._reply(head + b"%d\r\n\r\n" % len(body) + body)

    async def _reply(self, data: bytes) -> Reply:
        reply = Reply()
        try:
            async with asyncio.timeout(self._timeout):
                await self._ask(data, reply)
        except TimeoutError:
            reply.failure, reply.detail = "timeout", f"no end within {self._timeout:g} s"
        except WireError as error:
            reply.failure, reply.detail = error.failure, str(error)
        reply.ended = time.monotonic()
        return reply

    async def _ask(self, data: bytes, reply: Reply) -> None:
        if self._idle:
            # The server may just have closed it, as it may when it is idle: then this request was
            # never looked at, and is sent again on a connection of its own.
            try:
                await self._exchange(self._idle.pop(), data, reply)
                return
            except WireError as error:
                if reply.begun or error.failure != "closed":
                    raise
        await self._exchange(await self._connect(), data, reply)

    async def _exchange(self, connection: _Connection, data: bytes, reply: Reply) -> None:
        try:
            await connection.ask(data, reply)
        finally:
            if connection.reusable:
                self._idle.append(connection)
            else:
                connection.close()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, connection = await loop.create_connection(
                    _Connection, self._host, self._port, ssl=self._ssl
                )
        except (OSError, UnicodeError) as error:  # the latter of names that can be none
            failure: Failure = "connect"
            if isinstance(error, OSError) and error.errno in _EXHAUSTED:
                failure = "exhausted"
            raise WireError(failure, f"{self._host}:{self._port}: {_why(error)}") from None
        return connection

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def _why(error: Exception) -> str:
    """Why there is no connection."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"no machine of that name is known ({error})"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"it does not speak TLS as it should ({error.reason}); is it http:// instead?"
    if isinstance(error, TimeoutError):
        return f"no connection within {_CONNECT_SECONDS:g} s; is that the right address?"
    if isinstance(error, ConnectionRefusedError):
        return f"{error}; does the server run?"
    return str(error) or type(error).__name__


# What a connection reads is taken out of here at once. A buffer of its own for each read, as
# asyncio.Protocol has, takes twice as long as all the rest of reading a token.
_BUFFER = memoryview(bytearray(1 << 18))


class _Connection(asyncio.BufferedProtocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._reply: Reply | None = None
        self._done: asyncio.Future[None] | None = None
        self._now = 0.0
        self._head = 0  # bytes that came before the body
        self._sized = False  # the answer says where it ends; else the connection's end is it
        self.reusable = False

    async def ask(self, data: bytes, reply: Reply) -> None:
        """Send a request; ``reply`` is filled until its end. Raises WireError."""
        self.reusable = False
        if self._transport is None or self._transport.is_closing():
            raise WireError("closed", "the connection was closed")
        self._parser = httptools.HttpResponseParser(self)
        self._reply = reply
        self._head = 0
        self._sized = False
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        try:
            await self._done
        finally:
            self._reply = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, failure: Failure, detail: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(WireError(failure, detail))

    # ---- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        self._now = time.monotonic()
        if self._reply is None:  # nobody asked
            self.reusable = False
            self.close()
            return
        try:
            self._parser.feed_data(_BUFFER[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if _BUFFER[:2] == _TLS_ALERT:
                self._fail("not_http", "it speaks TLS; is it https:// instead?")
            else:
                self._fail("not_http", f"the answer is no HTTP: {error}")
            return
        if not self._reply.size:
            self._head += nbytes
            if self._head > MAX_HEAD:
                self._fail("too_large", f"more than {MAX_HEAD} bytes came before an answer")

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        reply = self._reply
        if reply is not None and reply.begun and not self._sized and error is None:
            if self._done is not None and not self._done.done():
                self._done.set_result(None)
        else:
            begun = reply is not None and reply.begun
            self._fail("closed", f"closed {'amid the' if begun else 'before an'} answer")

    # ---- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._sized = True
        elif name == b"content-type" and self._reply is not None:
            self._reply.content_type = value.decode("latin-1")
        elif name == b"content-encoding" and self._reply is not None:
            self._reply.content_encoding = value.decode("latin-1")
        elif name == b"location" and self._reply is not None:
            self._reply.location = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._reply is not None and not self._is_interim():
            self._reply.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        reply = self._reply
        if reply is None:
            return
        reply.pieces.append((self._now, body))
        reply.size += len(body) + _PIECE
        if reply.size > MAX_ANSWER:
            self._fail("too_large", f"the answer is larger than {MAX_ANSWER} bytes")

    def _is_interim(self) -> bool:
        """Whether another answer follows this one (RFC 9110, section 15.2)."""
        return bool(self._parser.get_status_code() < HTTPStatus.OK)

    def on_message_complete(self) -> None:
        if self._is_interim():
            self._sized = False
        elif self._done is not None and not self._done.done():
            self.reusable = self._parser.should_keep_alive()
            self._done.set_result(None)
