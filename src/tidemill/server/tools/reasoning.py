"""Splits off the reasoning that a message begins with."""

from __future__ import annotations

from tidemill.records import dataclass
from tidemill.server.tools.markers import Markers
from tidemill.server.tools.pieces import Content, Piece, Reasoning, Span
from tidemill.server.tools.steps import SPACES

_MAX_SPACE = 64


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """What stands before and behind reasoning."""

    open: str
    close: str


REASONING = {
    # Chat templates of deepseek-ai/DeepSeek-R1 and Qwen/Qwen3-8B.
    "think": ThinkTags("<think>", "</think>"),
    # mistralai/Magistral-Small-2507: control tokens around a "thinking chunk".
    "magistral": ThinkTags("[THINK]", "[/THINK]"),
}


class ReasoningSplitter:
    """Reasoning and content of a text that comes in chunks of any size.

    Reasoning is at the start of the message only, and no more than one. ``inside``: the prompt has
    opened it already; a model that opens it once more is forgiven. Line breaks next to the tags
    belong to them, as templates write them. Without the closing tag all is reasoning.
    """

    def __init__(self, tags: ThinkTags, *, inside: bool = False) -> None:
        self._tags = tags
        self._close = Markers((tags.close,))
        self._inside = inside
        self._state = self._start
        self._held = ""  # may be the beginning of a tag
        self._breaks = 0  # held back before the closing tag
        self._begun = False  # what comes now has had more than line breaks
        self._seen = 0  # characters
        self._bounds: list[int] = []  # where reasoning begins, and where it ends

    @property
    def spans(self) -> list[Span]:
        """See ``Reader.reasoning``."""
        if not self._bounds:
            return []
        start, end, *_ = (*self._bounds, self._seen)
        return [(start, end)]

    def push(self, text: str) -> list[Piece]:
        out: list[Piece] = []
        self._seen += len(text)
        while text:
            text = self._state(text, out)
        return out

    def finish(self) -> list[Piece]:
        held, self._held = self._held, ""
        if self._state == self._start:
            if not held:
                return []
            if not self._inside:
                return [Content(held)]
            self._open(held)
            held = held.strip("\n")
            return [Reasoning(held)] if held else []
        if self._state != self._reasoning:
            return []
        text = "\n" * self._breaks + held
        self._breaks = 0
        return [Reasoning(text)] if text.strip("\n") else []

    def _start(self, text: str, out: list[Piece]) -> str:
        """White space and the opening tag, or not."""
        held = self._held + text[: _MAX_SPACE + len(self._tags.open)]
        bare = held.lstrip(SPACES)
        known = min(len(bare), len(self._tags.open))
        space = len(held) - len(bare)
        rest = text[len(held) - len(self._held) :]
        if space <= _MAX_SPACE and bare[:known] == self._tags.open[:known]:
            if known < len(self._tags.open):
                self._held = held
                return rest
            self._held = ""
            return self._open(bare[known:] + rest)
        self._held = ""
        if self._inside:
            return self._open(held + rest)
        self._state = self._content
        self._begun = True  # nothing was cut off before it: it stays as it is
        return held + rest

    def _open(self, text: str) -> str:
        """``text``, all that is left, begins with reasoning."""
        self._state = self._reasoning
        self._bounds.append(self._seen - len(text))
        return text

    def _reasoning(self, text: str, out: list[Piece]) -> str:
        text = self._held + text
        self._held = ""
        end = text.find(self._tags.close)
        if end >= 0:
            rest = text[end + len(self._tags.close) :]
            self._bounds.append(self._seen - (len(text) - end))
            self._think(text[:end], out)
            self._state = self._content
            self._begun = False
            return rest
        self._held = self._close.begun(text)
        self._think(text[: len(text) - len(self._held)], out)
        return ""

    def _think(self, text: str, out: list[Piece]) -> None:
        if not self._begun:
            text = text.lstrip("\n")
        if not text:
            return
        self._begun = True
        bare = text.rstrip("\n")
        if bare:
            out.append(Reasoning("\n" * self._breaks + bare))
            self._breaks = 0
        self._breaks += len(text) - len(bare)

    def _content(self, text: str, out: list[Piece]) -> str:
        if not self._begun:
            text = text.lstrip("\n")
        if text:
            self._begun = True
            out.append(Content(text))
        return ""
