"""The front end's end of a worker: starts the process, hands requests in, gives events out."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidemill.engine.base import EngineStats, ErrorEvent, Request
from tidemill.llm.mailbox import Mailbox
from tidemill.server.errors import ModelUnavailable
from tidemill.server.wire import (
    Frames,
    Kind,
    WireError,
    encode,
    pack_request,
    unpack_error,
    unpack_event,
    unpack_stats,
)

log = logging.getLogger("tidemill.server")

OnStage = Callable[[str, float], None]

_CLOSE_SECONDS = 10.0  # from the order to end until it is enforced


class WorkerProcess(asyncio.Protocol):
    """One model's engine in a process of its own; ``start`` makes them.

    All methods are for the event loop's thread. ``info`` is what the worker said of the model;
    ``stats`` the latest it said of its engine. ``ended`` becomes the reason once it is gone, for
    whatever cause; what ran then has ended with an error.
    """

    def __init__(self, on_stage: OnStage | None) -> None:
        loop = asyncio.get_running_loop()
        self.info: dict[str, Any] = {}
        self.stats = EngineStats()
        self.ended: asyncio.Future[str] = loop.create_future()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._on_stage = on_stage
        self._frames = Frames()
        self._mailboxes: dict[str, Mailbox] = {}
        self._transport: asyncio.Transport | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._closing = False
        self._burial: asyncio.Future[None] | None = None

    @classmethod
    async def start(
        cls, model: Path, options: Mapping[str, Any], on_stage: OnStage | None = None
    ) -> WorkerProcess:
        """A worker whose model is loaded. Raises ModelUnavailable with what the worker says."""
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        worker = cls(on_stage)
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "tidemill.server.worker", str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL,
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        worker._process = process
        ours.setblocking(False)
        await loop.create_connection(lambda: worker, sock=ours)
        worker._send(Kind.LOAD, os.fspath(model), dict(options))
        try:
            await worker._ready
        except BaseException:
            await worker.close()
            raise
        return worker

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def submit(self, request: Request) -> Mailbox:
        """Queue a request, which runs until it has ended or is aborted. Raises what the engine says
        of it (RequestError, QueueFullError), or ModelUnavailable if the worker is gone."""
        self._check_alive()
        mailbox = self._mailboxes[request.id] = Mailbox(request.params.n)
        self._send(Kind.ADD, pack_request(request))
        try:
            await mailbox.accepted
        except BaseException:
            self.abort(request.id)
            raise
        return mailbox

    def abort(self, request_id: str) -> None:
        """Drop a request; nothing happens if it has ended."""
        mailbox = self._mailboxes.pop(request_id, None)
        if mailbox is not None and not self.ended.done():
            self._send(Kind.ABORT, request_id)

    def fail(self, request_id: str, message: str) -> None:
        """End a request with an error."""
        mailbox = self._mailboxes.get(request_id)
        if mailbox is not None:
            mailbox.post([ErrorEvent(request_id, message)], time.monotonic())
            self.abort(request_id)

    async def close(self) -> None:
        """End the process, and what runs in it."""
        assert self._process is not None
        self._closing = True
        if self._transport is not None:
            self._transport.close()  # the worker ends when it sees that
        try:
            await asyncio.wait_for(self._process.wait(), _CLOSE_SECONDS)
        except TimeoutError:
            log.warning("worker %d does not end; killing it", self._process.pid)
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def _check_alive(self) -> None:
        if self.ended.done():
            raise ModelUnavailable(self.ended.result())

    def _send(self, kind: Kind, *fields: Any) -> None:
        assert self._transport is not None
        self._transport.write(encode(kind, *fields))

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for kind, *fields in self._frames.feed(data):
                self._obey(Kind(kind), fields)
        except (WireError, ValueError, TypeError) as error:
            log.error("the worker sent what cannot be understood: %s", error)
            assert self._transport is not None
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._burial = asyncio.ensure_future(self._bury())

    async def _bury(self) -> None:
        """The worker is gone: say so to everybody who waits for something of it."""
        assert self._process is not None
        try:
            code = await asyncio.wait_for(self._process.wait(), _CLOSE_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            code = await self._process.wait()
        reason = "the model was unloaded" if self._closing else _reason(code)
        if not self.ended.done():
            self.ended.set_result(reason)
        if not self._ready.done():
            self._ready.set_exception(ModelUnavailable(reason))
        mailboxes, self._mailboxes = self._mailboxes, {}
        for request_id, mailbox in mailboxes.items():
            mailbox.settle(ModelUnavailable(reason))
            mailbox.post([ErrorEvent(request_id, reason)], time.monotonic())

    def _obey(self, kind: Kind, fields: Sequence[Any]) -> None:
        match kind:
            case Kind.EVENTS:
                now, events = fields
                self._deliver(events, now)
            case Kind.STATS:
                self.stats = unpack_stats(fields[0])
            case Kind.ACCEPTED:
                if mailbox := self._mailboxes.get(fields[0]):  # not dropped meanwhile
                    mailbox.settle()
            case Kind.REFUSED:
                if mailbox := self._mailboxes.pop(fields[0], None):
                    mailbox.settle(unpack_error(fields[1]))
            case Kind.STAGE:
                if self._on_stage is not None:
                    self._on_stage(*fields)
            case Kind.READY:
                self.info = fields[0]
                if not self._ready.done():  # whoever waited may have left just now
                    self._ready.set_result(None)
            case Kind.FAILED:
                if not self._ready.done():
                    self._ready.set_exception(ModelUnavailable(fields[0]))
            case Kind.LOG:
                level, name, message, trace = fields
                extra = {"worker": self.pid, "traceback": trace}
                logging.getLogger(name).log(level, "%s", message, extra=extra)
            case _:
                raise WireError(f"a worker does not send {kind.name}")

    def _deliver(self, events: Sequence[Sequence[Any]], now: float) -> None:
        for packed in events:
            mailbox = self._mailboxes.get(packed[1])
            if mailbox is not None:
                mailbox.post([unpack_event(packed)], now)
                if mailbox.complete:
                    del self._mailboxes[packed[1]]


def _reason(code: int) -> str:
    """What is told of a worker that ended by itself."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        if name == "SIGKILL":
            name += ", as systems do when memory runs out"
        return f"the model's process was ended by {name}; it is started again, try again shortly"
    return f"the model's process ended with code {code}; it is started again, try again shortly"
