"""What other threads ask of the thread that steps an engine."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

C = TypeVar("C")


class Commands(Generic[C]):
    """Commands that are obeyed between steps, in order."""

    def __init__(self) -> None:
        self._left: list[C] = []
        self._closed = False
        self._wake = threading.Condition()

    def put(self, *commands: C) -> bool:
        """False if it is closed: they will never be obeyed."""
        with self._wake:
            if not self._closed:
                self._left.extend(commands)
                self._wake.notify()
            return not self._closed

    def take(self, *, wait: bool) -> list[C] | None:
        """All that have come; with ``wait`` at least one. None once it is closed."""
        with self._wake:
            while wait and not (self._left or self._closed):
                self._wake.wait()
            return None if self._closed else self._drain()

    def close(self) -> None:
        """Whoever takes is woken, and told so; idempotent."""
        with self._wake:
            self._closed = True
            self._wake.notify()

    def drain(self) -> list[C]:
        """Close, and give those that were never taken."""
        with self._wake:
            self._closed = True
            return self._drain()

    def _drain(self) -> list[C]:
        left, self._left = self._left, []
        return left
