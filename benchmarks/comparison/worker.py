"""A peer's process: bounded in time, stopped while others are measured."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ENDING = 10  # seconds that a process has to go once it is told to


class WorkerError(RuntimeError):
    """The peer said that it cannot, ended, or took too long; the message is for the table."""


class Worker:
    """One serving process; every request has a limit, after which the process is killed."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("ab") as errors:
            # A session of its own, so that the processes it starts are stopped and ended with it.
            self._process = subprocess.Popen(
                command, cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, start_new_session=True,
            )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any], seconds: float) -> Any:
        """The answer to one request. Raises WorkerError for anything else."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise WorkerError(self._obituary()) from error
        line = self._line(seconds)
        try:
            answer = json.loads(line)
        except ValueError as error:
            self.close()
            raise WorkerError(f"answered {line[:80]!r}, which is no JSON") from error
        if "ok" not in answer:
            raise WorkerError(str(answer.get("error", f"answered {answer}")))
        return answer["ok"]

    def pause(self) -> None:
        """Take it off the processors: idle threads of some engines go on spinning."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process and what it started; idempotent."""
        self._signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        out, line, until = self._process.stdout.fileno(), b"", time.monotonic() + seconds
        while not line.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                self.close()
                raise WorkerError(f"took longer than the limit of {seconds:.0f} s")
            data = os.read(out, 65536)
            if not data:
                raise WorkerError(self._obituary())
            line += data
        return line

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _obituary(self) -> str:
        self.close()
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - 4000))
            said = log.read().decode(errors="replace").strip().splitlines()
        last = " | ".join(line.strip() for line in said[-2:])[-300:]
        return f"its process ended (exit status {self._process.returncode}): {last}"
