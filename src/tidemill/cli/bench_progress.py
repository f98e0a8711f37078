"""How far a measurement is, on stderr: a line that is rewritten, or one every ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemill.cli.progress import is_drawn, status_line

if TYPE_CHECKING:
    from tidemill.bench.run import Progress

_LINE_EVERY = 10.0
"""Seconds, where no line can be rewritten."""


@contextmanager
def bench_progress(
    name: str,
) -> Iterator[tuple[Callable[[str], None], Callable[[Progress], None]]]:
    """What ``measure`` tells of its steps, and of a run: two functions."""
    if is_drawn():
        with status_line() as rewrite:
            yield (
                lambda words: rewrite(f"{name}: {words}"),
                lambda progress: rewrite(f"{name}: {line(progress)}"),
            )
        return
    last = time.monotonic()

    def on_progress(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_EVERY:
            last = time.monotonic()
            print(f"{name}: {line(progress)}", file=sys.stderr, flush=True)

    yield lambda words: None, on_progress


def line(progress: Progress) -> str:
    """The most important first, as a narrow terminal cuts it off."""
    left = f" {progress.left:.0f} s" if progress.phase != "ending" else ""
    failed = f", {progress.failed} failed" if progress.failed else ""
    parts = [
        f"{progress.phase}{left}",
        f"{progress.ended} of {progress.sent} ended, {progress.in_flight} in flight{failed}",
    ]
    if progress.ttft_p50 is not None and progress.ttft_p99 is not None:
        parts += [
            f"{progress.request_rate:.1f}/s, {progress.output_rate:.0f} tokens/s",
            f"TTFT {1000 * progress.ttft_p50:.0f}, p99 {1000 * progress.ttft_p99:.0f} ms",
        ]
    return " | ".join(parts)
