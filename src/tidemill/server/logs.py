"""Log lines, as text or JSON, that never hold up what is logged.

Prompts and answers are not among what is logged, unless the settings ask for it. So of an
exception the log has its kind and where it came from, but not its words, which may quote a prompt.
Nothing that a client sends can begin a line of its own, or control a terminal.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
import traceback
from typing import Any

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_TRACEBACK = "traceback"  # an extra of this name is shown as one
_MOST_CHARACTERS = 4 << 20  # waiting to be written; a prompt may be that of a book
_CHUNK_BYTES = 1 << 16
_FLUSH_SECONDS = 1.0

# Control characters, line ends of Unicode, what changes the direction of writing, surrogates.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def configure_logging(level: str, form: str, *, log_prompts: bool = False) -> None:
    """Logs go to stderr, as text or as one JSON object a line; nowhere if that was closed."""
    handler = logging.NullHandler() if sys.stderr is None else LogWriter(sys.stderr.fileno())
    handler.setFormatter((JsonFormatter if form == "json" else TextFormatter)(log_prompts))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("tidemill").setLevel(level.upper())


def where_from(error: BaseException) -> str:
    """The traceback of an exception, and of those that led to it, without their words."""
    parts: list[str] = []
    found: BaseException | None = error
    while found is not None and len(parts) < 8:
        kind = type(found)
        frames = "".join(traceback.format_tb(found.__traceback__))
        parts.append(
            f"Traceback (most recent call last):\n{frames}{kind.__module__}.{kind.__qualname__}"
        )
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return "\n\nwhich led to:\n\n".join(reversed(parts))


class _Formatter(logging.Formatter):
    def __init__(self, log_prompts: bool = False) -> None:
        super().__init__()
        self._log_prompts = log_prompts

    def traceback(self, record: logging.LogRecord) -> str | None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return getattr(record, _TRACEBACK, None)
        if self._log_prompts:
            return "".join(traceback.format_exception(error)).rstrip()
        return where_from(error)


class TextFormatter(_Formatter):
    """``2026-01-31 12:00:00 INFO message key=value ...``"""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        extras = "".join(f" {name}={_shown(value)}" for name, value in _extras(record).items())
        line = _escaped(f"{stamp} {record.levelname} {record.getMessage()}{extras}")
        if (trace := self.traceback(record)) is not None:
            # Set in, so that none of its lines looks like one of the log's own.
            line += "".join(f"\n    {_escaped(each)}" for each in trace.splitlines())
        return line


class JsonFormatter(_Formatter):
    """One JSON object a line, in ASCII, whatever the message holds."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if (trace := self.traceback(record)) is not None:
            line[_TRACEBACK] = trace
        return json.dumps(line, default=str)


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _OWN and name != _TRACEBACK
    }


def _shown(value: Any) -> str:
    """A value in a line of text: as JSON where it could not be told from what follows it."""
    if isinstance(value, str) and re.fullmatch(r'[^\s"=]+', value):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _escaped(text: str) -> str:
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class LogWriter(logging.Handler):
    """Writes lines to a file descriptor in a thread of its own: whoever reads them slowly, or not
    at all, or has no room for them, keeps nobody waiting. What is too much is dropped, and how much
    that was is told as soon as lines get through again."""

    def __init__(self, descriptor: int, most_characters: int = _MOST_CHARACTERS) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._most_characters = most_characters
        self._lines: list[str] = []
        self._characters = 0
        self._changed = threading.Condition()
        self._dropped = 0
        self._writing = False
        threading.Thread(target=self._write, name="tidemill-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # a line that cannot be made is no reason for what it is about to fail
            line = f"a line of the log from {record.pathname}:{record.lineno} cannot be formatted"
        with self._changed:
            if self._lines and self._characters + len(line) > self._most_characters:
                self._dropped += 1
                return
            self._lines.append(line)
            self._characters += len(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all is written, for a second at most."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._lines or self._writing), _FLUSH_SECONDS)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                lines, self._lines, self._characters = self._lines, [], 0
                self._writing = True
                dropped, self._dropped = self._dropped, 0
            told = [self._told(dropped)] if dropped else []
            data = "\n".join([*told, *lines, ""]).encode("utf-8", "backslashreplace")
            try:
                while data:
                    data = data[os.write(self._descriptor, data[:_CHUNK_BYTES]) :]
            except OSError:  # nobody reads it any more, or the disk is full: the next may do
                with self._changed:
                    self._dropped += dropped + len(lines)

    def _told(self, dropped: int) -> str:
        message = f"{dropped} lines of the log were dropped: they could not be written"
        return self.format(
            logging.LogRecord("tidemill.server", logging.WARNING, "", 0, message, (), None)
        )
