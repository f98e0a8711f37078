"""How far a measurement is, on stderr: a line that is rewritten, or one every ten seconds."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from tidemill.cli.progress import is_drawn, rewrite_line

if TYPE_CHECKING:
    from tidemill.bench.run import Progress

_LINE_EVERY = 10.0
"""Seconds, where no line can be rewritten."""


class BenchProgress:
    """Of the measurement of ``name``. Leaves a clean line behind."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._draws = is_drawn()
        self._last = time.monotonic()

    def step(self, words: str) -> None:
        """What is being done now, if that can be taken back."""
        if self._draws:
            rewrite_line(f"{self._name}: {words}")

    def run(self, progress: Progress) -> None:
        """How far a run is."""
        if self._draws:
            self.step(line(progress))
        elif time.monotonic() - self._last >= _LINE_EVERY:
            self.note(line(progress))

    def note(self, words: str) -> None:
        """What is to stay."""
        if self._draws:
            rewrite_line()
        self._last = time.monotonic()
        print(f"{self._name}: {words}", file=sys.stderr, flush=True)

    def __enter__(self) -> BenchProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._draws:
            rewrite_line()


def line(progress: Progress) -> str:
    """The most important first, as a narrow terminal cuts it off. TTFT is at p50 and p99."""
    failed = f", {progress.failed} failed" if progress.failed else ""
    parts = [
        f"{progress.phase}{_until(progress)}",
        f"{progress.sent} sent, {progress.in_flight} in flight{failed}",
    ]
    if progress.ttft_p50 is not None and progress.ttft_p99 is not None:
        parts += [
            f"{progress.request_rate:.1f}/s, {progress.output_rate:.0f} tok/s",
            f"TTFT {1000 * progress.ttft_p50:.0f}/{1000 * progress.ttft_p99:.0f} ms",
        ]
    return " | ".join(parts)


def _until(progress: Progress) -> str:
    """When the phase ends: by the time, or after how many answers."""
    n = progress.waits_for
    if not n:
        return f" {progress.left:.0f} s"
    most = "" if progress.at_most is None else f", {progress.at_most:.0f} s at most"
    return f", waiting for {n} answer{'s' * (n > 1)}{most}"
