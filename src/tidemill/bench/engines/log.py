"""What an engine prints, in a file that does not grow without end."""

from __future__ import annotations

import os
import threading
from pathlib import Path

LONGEST = 64 << 20
"""Bytes of it; an engine that does not stop printing would fill the disk."""

_KEPT = 64
"""What is longer keeps one part in so many at its beginning, and as much at its end."""

_LOOK_EVERY = 0.1
"""Seconds."""

_LAST_WORDS = 8192
"""Bytes in which they are."""

_CUT = b"\n[... what was here is left out ...]\n"


class Log:
    """The engine appends to the file itself: somebody between them would take time of what is
    measured, and hold the engine up when late."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(b"")
        self.file = path.open("a+b", buffering=0)
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._keep_short, name="engine-log", daemon=True)

    @property
    def size(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def last_words(self) -> str:
        """Its end."""
        found = os.pread(self.file.fileno(), _LAST_WORDS, max(0, self.size - _LAST_WORDS))
        lines = found.decode(errors="replace").split("\n")
        return "\n".join(line for line in lines[-12:] if line.strip()) or "it said nothing"

    def keep_short(self) -> None:
        """From now on, until it is closed."""
        self._watch.start()

    def _keep_short(self) -> None:
        while not self._closing.wait(_LOOK_EVERY):
            if self.size > LONGEST:
                self._shorten()

    def _shorten(self) -> None:
        """Leave its middle out. What comes in this moment may be lost, or come before its turn."""
        file, kept = self.file.fileno(), LONGEST // _KEPT
        end = os.pread(file, kept, self.size - kept)
        os.ftruncate(file, kept)
        self.file.write(_CUT + end)

    def close(self) -> None:
        self._closing.set()
        if self._watch.ident is not None:  # it was started
            self._watch.join()
        self.file.close()
