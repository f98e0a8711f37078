"""Drives a command through a pseudo-terminal, as a person at a keyboard would."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?=>]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9]|[=>])")


class Terminal:
    """``python -m tidemill ARGUMENTS`` with a terminal of its own."""

    def __init__(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        *,
        columns: int = 200,
        timeout: float = 60.0,
    ) -> None:
        self.timeout = timeout
        self._raw = b""
        self._seen = 0
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidemill", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            # Nobody answers here where prompt_toolkit asks the terminal for the cursor's position.
            env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **env},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._master)

    def send(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    @property
    def text(self) -> str:
        """All that was shown, without escape sequences."""
        return _ESCAPES.sub("", self._raw.decode(errors="replace"))

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed, as it does unless a program edits the line."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    def expect(self, pattern: str) -> str:
        """Wait until ``pattern`` is shown after what earlier calls found; the text up to it."""
        deadline = time.monotonic() + self.timeout
        while True:
            text = self.text
            match = re.compile(pattern).search(text, self._seen)
            if match is not None:
                found = text[self._seen : match.end()]
                self._seen = match.end()
                return found
            assert self._read(deadline), f"{pattern!r} was not shown; shown was:\n{text}"

    def finish(self) -> int:
        """Read on until the process ends; its exit code."""
        deadline = time.monotonic() + self.timeout
        while self._read(deadline):
            pass
        return self.process.wait(max(1.0, deadline - time.monotonic()))

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other end is closed
            return False
        self._raw += data
        return bool(data)
