"""The process that runs one model's engine: ``python -m tidemill.server.worker FD``.

FD is one end of a socket pair, the other one being the front end's. HTTP, JSON, templates and
tokenising happen there, so that they neither hold the engine's interpreter up nor go down with its
native code. It ends when the front end closes its end, however that came about; signals are left
to the front end, which drains.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from tidemill.engine.base import Event, Request
from tidemill.hardware.scheduling import wake_promptly
from tidemill.llm.commands import Commands
from tidemill.llm.core import Core, LoadOptions
from tidemill.server.logs import where_from
from tidemill.server.wire import (
    Frames,
    Kind,
    WireError,
    encode,
    pack_error,
    pack_event,
    pack_stats,
    unpack_request,
)

STATS_INTERVAL = 0.25  # seconds between two reports of a busy engine
_READ_BYTES = 1 << 16

# Commands that the worker gives itself: a request whose grammar is compiled, or could not be.
_BEGIN, _REFUSE = "begin", "refuse"

log = logging.getLogger("tidemill.worker")


class FrontEndGone(Exception):
    """The front end has closed its end of the connection."""


class Worker:
    """Steps one engine while there is work; commands are obeyed between steps."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._frames = Frames()
        self._commands: Commands[list[Any]] = Commands()
        self._events: list[list[Any]] = []
        self._events_time = 0.0
        self._stats_sent = 0.0
        self._compiling: set[str] = set()  # requests whose grammars are being compiled
        self._compiler: ThreadPoolExecutor | None = None

    def run(self) -> None:
        """Load what the first frame names, then serve until the front end is gone."""
        try:
            first, *more = self._read()
            self._commands.put(*more)
            core = self._load(first)
            if core is None:
                return
            reader = threading.Thread(target=self._listen, name="tidemill-commands", daemon=True)
            reader.start()
            try:
                self._serve(core)
            finally:
                core.close()
        except FrontEndGone:
            return

    # ---- the connection

    def _send(self, kind: Kind, *fields: Any) -> None:
        frame = encode(kind, *fields)
        try:
            with self._sending:  # any thread may log
                self._connection.sendall(frame)
        except OSError:
            raise FrontEndGone from None

    def log(self, record: logging.LogRecord) -> None:
        """Have the front end log it, in its form."""
        error = record.exc_info[1] if record.exc_info else None
        trace = None if error is None else where_from(error)
        self._send(Kind.LOG, record.levelno, record.name, record.getMessage(), trace)

    def _read(self) -> list[list[Any]]:
        """The next frames, at least one."""
        while True:
            try:
                data = self._connection.recv(_READ_BYTES)
            except OSError:
                data = b""
            if not data:
                raise FrontEndGone
            if frames := self._frames.feed(data):
                return frames

    def _listen(self) -> None:
        """In a thread of its own: hand on what arrives."""
        wake_promptly()
        try:
            while True:
                self._commands.put(*self._read())
        except (FrontEndGone, WireError):
            pass
        finally:  # also when it ends otherwise: the front end would wait for ever
            self._commands.close()

    # ---- the model

    def _load(self, frame: list[Any]) -> Core | None:
        _, model, options = frame
        told = 0.0

        def on_stage(stage: str, fraction: float) -> None:
            nonlocal told
            if fraction in (0.0, 1.0) or time.monotonic() - told > 0.1:
                told = time.monotonic()
                self._send(Kind.STAGE, stage, fraction)

        try:
            loading = cast("LoadOptions", {**options, "on_stage": on_stage})
            core = Core.load(model, loading, max_waiting=options["max_waiting"], interactive=True)
        except (OSError, MemoryError, RuntimeError, ValueError) as error:
            self._send(Kind.FAILED, str(error) or type(error).__name__)
            return None
        # Before any step, or the KV cache would look full.
        self._send(Kind.STATS, pack_stats(core.driver.engine.stats))
        compiled = core.compiled
        self._send(
            Kind.READY,
            {
                "max_context": core.driver.engine.max_context,
                "threads": compiled.describe_threads(),
                "kv_blocks": compiled.cache.kv.n_blocks,
                "kv_block_size": compiled.cache.kv.block_size,
                "memory_bytes": compiled.cache.plan.total,
            },
        )
        return core

    def _serve(self, core: Core) -> None:
        driver = core.driver
        while self._obey(core):
            driver.step()
            self._tell(core)

    def _obey(self, core: Core) -> bool:
        """Carry out what has come; wait while there is nothing to do. False: the end."""
        commands = self._commands.take(wait=not core.driver.busy)
        if commands is None:
            return False
        for kind, *fields in commands:
            if kind == Kind.ADD:
                self._add(core, fields[0])
            elif kind == Kind.ABORT:
                self._compiling.discard(fields[0])
                core.driver.abort(fields[0])
            elif kind == _BEGIN:
                self._begin(core, fields[0])
            elif kind == _REFUSE:
                self._refuse(*fields)
        return True

    def _add(self, core: Core, packed: list[Any]) -> None:
        """Begin a request. A grammar is compiled on another thread first, so that the others'
        steps go on; what is dropped meanwhile does not begin."""
        try:
            request = unpack_request(packed)
            if request.params.grammar is None:
                self._submit(core, request)
                return
        except FrontEndGone:
            raise
        except Exception as error:  # of any kind: it is the request's, and its sender waits
            self._refuse(packed[0], error)
            return
        self._compiling.add(request.id)
        if self._compiler is None:
            self._compiler = ThreadPoolExecutor(1, thread_name_prefix="tidemill-grammars")
        self._compiler.submit(self._compile, core, request)

    def _compile(self, core: Core, request: Request) -> None:
        done: list[Any]
        try:
            done = [_BEGIN, replace(request, constraint=core.constraint(request.params))]
        except Exception as error:
            done = [_REFUSE, request.id, error]
        self._commands.put(done)

    def _begin(self, core: Core, request: Request) -> None:
        """Its grammar has been compiled."""
        if request.id not in self._compiling:
            return  # dropped meanwhile
        self._compiling.discard(request.id)
        try:
            self._submit(core, request)
        except FrontEndGone:
            raise
        except Exception as error:
            self._refuse(request.id, error)

    def _submit(self, core: Core, request: Request) -> None:
        core.driver.submit(request, self._inbox)
        self._send(Kind.ACCEPTED, request.id)

    def _refuse(self, request_id: str, error: Exception) -> None:
        self._send(Kind.REFUSED, request_id, pack_error(error))

    def _inbox(self, events: Sequence[Event], now: float) -> None:
        self._events.extend(map(pack_event, events))
        self._events_time = now

    def _tell(self, core: Core) -> None:
        """Send what the step gave, as one frame, and now and then how the engine is doing: first,
        so that whoever has an answer finds it counted."""
        now = time.monotonic()
        if now - self._stats_sent >= STATS_INTERVAL or not core.driver.busy:
            self._stats_sent = now
            self._send(Kind.STATS, pack_stats(core.driver.engine.stats))
        if self._events:
            self._send(Kind.EVENTS, self._events_time, self._events)
            self._events = []


def main() -> None:
    # A terminal's Ctrl-C and a service manager's SIGTERM reach the whole group: the front end
    # decides what they mean, and this process ends with its connection.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as connection, suppress(BrokenPipeError):
        worker = Worker(connection)
        logging.basicConfig(handlers=[_ToFrontEnd(worker)], level=logging.WARNING)
        worker.run()


class _ToFrontEnd(logging.Handler):
    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(FrontEndGone):
            self._worker.log(record)


if __name__ == "__main__":
    main()
