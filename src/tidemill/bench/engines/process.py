"""A running engine: when it listens and is ready, which processes it is, how it is ended."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from tidemill.bench.engines import log
from tidemill.bench.engines.base import Engine, Launch, TargetError
from tidemill.bench.processes import (
    born,
    end_with_parent,
    family,
    free_port,
    kill_session,
    lives,
    maps_any,
)

_END_SECONDS = 15.0

_LOOK_EVERY = 0.02
"""Seconds between looks at what it has mapped, which cost more than a look at its port."""


class Phases(msgspec.Struct, frozen=True):
    """Seconds since the process was begun: its port answered, a file of the model was mapped, it
    was ready to be asked. ``mapped`` is None where no process was seen to map one: files can be
    read as well, and only Linux tells."""

    listening: float
    mapped: float | None
    ready: float


class EngineProcess:
    """An engine that was started."""

    def __init__(
        self, engine: Engine, launch: Launch, command: Sequence[str], port: int, printed: Path
    ) -> None:
        self.command = list(command)
        self.port = port
        self.url = f"http://127.0.0.1:{port}/v1"
        self._engine = engine
        self._launch = launch
        self._log = log.Log(printed)
        self._mapped: float | None = None
        environment = os.environ | engine.environment(launch, port)
        self.began = time.monotonic()
        # A session of its own, so that Ctrl-C is ours alone and we end it.
        self._process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=self._log.file, stderr=self._log.file,
            env=environment, start_new_session=True, preexec_fn=end_with_parent(),
        )  # fmt: skip

    def pids(self) -> list[int]:
        """Its process, and those that it has started."""
        return family(self._process.pid)

    def until_ready(self, seconds: float, files: Sequence[Path] = ()) -> Phases:
        """Wait until it can be asked, and tell when it came how far. ``files``: of the model, to be
        seen mapped. Raises TargetError, with what it said, if it ends or does not become ready."""
        wanted = {str(path.resolve()) for path in files}
        self._until(self._listens, seconds, wanted)
        listening = self._age()
        self._until(self._is_healthy, seconds, wanted)
        self._look(wanted)  # at what came since the last look
        self._engine.prepare(self, self._launch, seconds)
        self._log.keep_short()
        return Phases(listening, self._mapped, self._age())

    def _age(self) -> float:
        return time.monotonic() - self.began

    def _until(self, condition: Callable[[], bool], seconds: float, files: set[str]) -> None:
        look = self._age()
        while True:
            if self._process.poll() is not None:  # somebody else may have its port, and answer
                why = f"ended with status {self._process.returncode}"
            elif condition():
                return
            elif self._age() > seconds:
                why = f"was not ready within {seconds:g} s"
            elif self._log.size > log.LONGEST:
                why = f"printed more than {log.LONGEST >> 20} MiB before it was ready"
            else:
                if self._age() >= look:
                    self._look(files)
                    look = self._age() + _LOOK_EVERY
                time.sleep(0.002)
                continue
            raise TargetError(f"{self._engine.name} {why}: {self.last_words()}")

    def _look(self, files: set[str]) -> None:
        if files and self._mapped is None and maps_any(self.pids(), files):
            self._mapped = self._age()

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True
        return False

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", self._engine.health)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def last_words(self) -> str:
        """The end of what it has printed."""
        return self._log.last_words()

    def close(self) -> None:
        """End it, and all that it has started, in a process group of its own or not; wait for all,
        as they hold memory that the next one may need."""
        others = {pid: born(pid) for pid in self.pids()[1:]}
        try:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        finally:  # who does not wait (Ctrl-C once more) leaves nobody behind either
            self._kill(others)
            self._log.close()

    def _kill(self, others: Mapping[int, int | None]) -> None:
        kill_session(self._process.pid)  # whoever is left in its group
        self._process.wait()
        deadline = time.monotonic() + _END_SECONDS
        while left := [pid for pid, birth in others.items() if lives(pid, birth)]:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:  # the system does not let go of it
                break
            time.sleep(0.01)


@contextmanager
def started(engine: Engine, launch: Launch) -> Iterator[EngineProcess]:
    """An engine that is being started, and is ended in the end."""
    engine.check(launch.model)
    port = free_port()
    command = engine.command(launch, port)
    process = EngineProcess(engine, launch, command, port, launch.folder / "log")
    try:
        yield process
    finally:
        process.close()
