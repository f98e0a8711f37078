"""One HTTP request and its answer, on top of ASGI.

What a framework's request and response classes leave to each handler is here once: bounded bodies,
clients that stop sending or reading, clients that leave, streams of server-sent events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec

from tidemill.server.account import Account
from tidemill.server.errors import ApiError
from tidemill.server.keys import Tenant

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"
LEAST_RATE = 1024
"""Bytes a second of a request's body that a client sends at least, after a while."""


class ClientGone(Exception):
    """The client closed its connection, or was cut off: there is nobody to answer."""


class Exchange:
    """A request (``body``, ``header``) and the way to answer it (``json``, ``events``).

    ``id`` names it in logs and answers. ``tenant`` is whose key it came with.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, id: str, tenant: Tenant,
        max_body: int, stall_seconds: float,
    ) -> None:  # fmt: skip
        self.scope = scope
        self.id = id
        self.tenant = tenant
        self.started = time.monotonic()
        self.status = 0
        """HTTP status of the answer, once it has begun."""
        self.streamed = False
        """Whether the answer comes in pieces."""
        self.error: str | None = None
        """The code of the error that it was answered with."""
        self.headers: Callable[[], Mapping[str, str]] = dict
        """Gives what the head of every answer has beside its own."""
        self.size = 0
        """Bytes of the body, once it has been read."""
        self.account = Account()
        """What it is given of a model, if it asks one."""
        self._receive = receive
        self._send_raw = send
        self._max_body = max_body
        self._stall_seconds = stall_seconds

    @property
    def path(self) -> str:
        return str(self.scope["path"])

    def header(self, name: bytes) -> str | None:
        for key, value in self.scope["headers"]:
            if key == name:
                return str(value.decode("latin-1"))
        return None

    async def body(self) -> bytes:
        """All of the body. Raises ApiError 413 or 408, ClientGone."""
        declared = self.header(b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > self._max_body:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        begun = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(None) as limit:
                while True:
                    # A byte now and then would otherwise hold the connection for days.
                    limit.reschedule(begun + self._stall_seconds + size / LEAST_RATE)
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    part = message.get("body", b"")
                    size += len(part)
                    if size > self._max_body:
                        raise self._too_large()
                    parts.append(part)
                    if not message.get("more_body"):
                        self.size = size
                        return b"".join(parts)
        except TimeoutError:
            raise ApiError(
                408, f"the request's body did not arrive within {self._stall_seconds:g} s"
            ) from None

    async def read(self, kind: type[S]) -> S:
        """The body as the JSON object that ``kind`` describes. Raises ApiError."""
        return decode(await self.body(), kind)

    def _too_large(self) -> ApiError:
        return ApiError(
            413, f"the request's body is larger than {self._max_body} bytes", code="too_large"
        )

    async def while_connected(self, work: Awaitable[T]) -> T:
        """The result of ``work``, which is cancelled if the client leaves meanwhile: ClientGone.
        To be used once the body has been read."""
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._until_gone())
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ClientGone
        finally:
            gone.cancel()
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    # ---- answering

    async def json(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        await self.send_body(encode(value), JSON, status, headers)

    async def send_body(
        self, body: bytes, content_type: str, status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        about = {"content-type": content_type}
        if status != 304:  # whose length would be that of the body it spares
            about["content-length"] = str(len(body))
        await self._begin(status, about, headers)
        await self._send({"type": "http.response.body", "body": body})

    async def events(self, source: AsyncGenerator[bytes, None], content_type: str = SSE) -> None:
        """Server-sent events, each as ``sse`` makes it, or pieces of another type. The answer
        begins with the first, so that what fails before it can still be told by a status.
        ``source`` is closed, also where nobody reads it to its end."""
        self.streamed = True
        async with aclosing(source) as events:
            async for event in events:
                if not self.status:
                    await self._begin(
                        200,
                        {
                            "content-type": content_type,
                            "cache-control": "no-cache",
                            "x-accel-buffering": "no",  # proxies are to pass each event on
                        },
                        None,
                    )
                await self._send({"type": "http.response.body", "body": event, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def _begin(
        self, status: int, headers: Mapping[str, str], more: Mapping[str, str] | None
    ) -> None:
        self.status = status
        every = {**headers, **self.headers(), **(more or {}), "x-request-id": self.id}
        every["request-id"] = self.id  # the name that Anthropic's clients look for
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(k.encode("latin-1"), v.encode("latin-1")) for k, v in every.items()],
            }
        )

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        # Waits while the connection's buffer is full, which connection.py puts an end to.
        try:
            await self._send_raw(message)
        except OSError:
            raise ClientGone from None


def sse(value: Any, event: str | None = None) -> bytes:
    """One server-sent event with ``value`` as JSON."""
    data = b"data: " + encode(value) + b"\n\n"
    return data if event is None else b"event: " + event.encode() + b"\n" + data


class TextEvents:
    """Server-sent events that differ in one text only, as most of a stream do: the rest is encoded
    once. ``make`` gives the value of an event by its text."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        mark = "\0"
        self._before, _, self._after = sse(make(mark)).partition(encode(mark))

    def __call__(self, text: str) -> bytes:
        return self._before + encode(text) + self._after


DONE = b"data: [DONE]\n\n"

encode = msgspec.json.Encoder().encode


def encoded(value: Any) -> msgspec.Raw:
    """``value`` as a part of what is to be JSON. A large answer is encoded in such parts, as no
    other thread runs while one value is being encoded."""
    return msgspec.Raw(encode(value))


def decode(body: bytes, kind: type[S]) -> S:
    """A JSON body as ``kind``. Raises ApiError 400 that names the field at fault."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        message, param = _explain(str(error))
        raise ApiError(400, message, param=param, code="invalid_type") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None


def _explain(text: str) -> tuple[str, str | None]:
    """msgspec's words for what is wrong, and the field that it is about."""
    said, _, path = text.partition(" - at `")
    param = path.removesuffix("`").removeprefix("$").lstrip(".") or None
    for start in ("Object contains unknown field `", "Object missing required field `"):
        if said.startswith(start):
            name = said.removeprefix(start).removesuffix("`")
            param = f"{param}.{name}" if param else name
            if "unknown" in start:
                return f"there is no parameter {param!r}", param
            return f"the parameter {param!r} is required", param
    said = said.replace("`", "'")
    return (f"{param}: {said}" if param else said), param
