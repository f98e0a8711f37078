"""Progress of downloads and loads on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.llm.loading import Stage
    from tidemill.store import ProgressEvent

_CLEAR_LINE = "\r\x1b[K"
_VERBS = {"download": "Downloading", "unpack": "Unpacking", "join": "Joining"}
_STAGES: dict[Stage, str] = {
    "open": "reading the model file",
    "tokenizer": "loading the tokenizer",
    "compile": "packing weights",
}
_BAR = 20


def is_drawn() -> bool:
    """Whether stderr is a terminal on which a line can be rewritten."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def rewrite_line(text: str = "") -> None:
    """Replace the terminal's line; a longer text is cut, as a wrapped line cannot be rewritten."""
    import shutil

    sys.stderr.write(_CLEAR_LINE + text[: shutil.get_terminal_size().columns - 1])
    sys.stderr.flush()


class DownloadProgress:
    """Draws the progress of a pull."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._draws = is_drawn()
        self._current: tuple[str, str] | None = None
        self._tenth = 0
        self._bar: Any = None

    def __call__(self, event: ProgressEvent) -> None:
        if self._quiet:
            return
        if (event.stage, event.file) != self._current:
            self._begin(event)
        if self._bar is not None:
            self._bar.update(event.done - self._bar.n)
        elif event.total and event.stage == "download":
            tenth = 10 * event.done // event.total
            if tenth > self._tenth:
                self._tenth = tenth
                self._line(f"{event.file}: {10 * tenth} %")

    def close(self) -> None:
        """Finish the bar, so that what is printed next starts on a line of its own."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _begin(self, event: ProgressEvent) -> None:
        from tidemill.store import format_bytes

        self.close()
        self._current = (event.stage, event.file)
        self._tenth = 10 * event.done // event.total if event.total else 0
        if event.stage == "wait":
            self._line(f"Another process is downloading {event.file}; waiting for it")
        elif self._draws:
            from tqdm import tqdm

            self._bar = tqdm(
                desc=f"{_VERBS[event.stage]} {event.file}",
                total=event.total,
                initial=event.done,
                unit="B",
                unit_scale=True,
                dynamic_ncols=True,
                leave=event.stage == "download",
                file=sys.stderr,
            )
        elif event.stage == "download":
            size = f" ({format_bytes(event.total)})" if event.total else ""
            resumed = f", continuing at {format_bytes(event.done)}" if event.done else ""
            self._line(f"Downloading {event.file}{size}{resumed}")

    def _line(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class LoadProgress:
    """From the download (if there is one) to the loaded model; leaves a clean line behind."""

    def __init__(self, model: str, *, quiet: bool = False) -> None:
        self._name = model.rstrip("/").rpartition("/")[2]
        self._shown = ""
        self._draws = is_drawn() and not quiet
        self._download = DownloadProgress(quiet=quiet)

    def on_download(self, event: ProgressEvent) -> None:
        self._download(event)

    def on_stage(self, stage: Stage, fraction: float) -> None:
        self._download.close()
        if not self._draws:
            return
        line = ""
        if stage in _STAGES:
            filled = int(_BAR * fraction)
            line = f"{self._name} [{'=' * filled}{' ' * (_BAR - filled)}] {_STAGES[stage]}"
        if line != self._shown:
            self._shown = line
            rewrite_line(line)

    def __enter__(self) -> LoadProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._download.close()
        if self._draws:
            rewrite_line()


@contextmanager
def status_line(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A function that rewrites one line of a terminal; it is cleared at the end."""
    if quiet or not is_drawn():
        yield lambda _: None
        return
    try:
        yield rewrite_line
    finally:
        rewrite_line()
