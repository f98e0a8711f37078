"""Answers of gpt-oss, in OpenAI's harmony format: messages in channels.

Source: openai/harmony, docs/format.md. After the prompt's "<|start|>assistant" a model writes

    <|channel|>analysis<|message|>...<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json
    <|message|>{...}<|call|>
    <|start|>assistant<|channel|>final<|message|>...<|return|>

("to=" may stand before the channel too). The analysis channel is reasoning, a message to a function
is a call, everything else is content. Text outside of messages is content as well. (The line
break before the call's <|message|> is this page's.)
"""

from __future__ import annotations

import re

from tidemill.server.tools.markers import Markers
from tidemill.server.tools.pieces import Content, Piece, Reasoning, Span
from tidemill.server.tools.scanner import Calls
from tidemill.server.tools.steps import SPACE, SPACES, NotACall
from tidemill.server.tools.values import ValueReader

_MARKERS = Markers((
    "<|channel|>", "<|message|>", "<|start|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>",
))  # fmt: skip
_MAX_HEADER = 512
_BLOCK = 1024
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_HEADER_TEXT = re.compile(r"[\w .:=/-]*")
_RECIPIENT = re.compile(r"\bto=([\w.:/-]+)")
_FUNCTIONS = "functions."


class HarmonyScanner:
    """Reasoning, content and calls of a harmony text in chunks of any size; see ``Parser``."""

    def __init__(self, calls: Calls, *, max_held: int) -> None:
        self._calls = calls
        self._max_held = max_held
        self._part = ""  # the beginning of a marker
        # The prompt has begun the first message's header.
        self._state = self._header
        self._first = True
        self._raw: list[str] = []  # of a header, and of the call after it
        self._raw_size = 0
        self._name = ""
        self._reader = ValueReader()
        self._opened = self._complete = False  # the object of arguments
        self._out: list[Piece] = calls.pieces
        self._seen = 0  # characters that a state has taken
        self.spans: list[Span] = []
        """See ``Reader.reasoning``."""

    def push(self, text: str) -> list[Piece]:
        for start in range(0, len(text), _BLOCK):
            self._run(self._part + text[start : start + _BLOCK])
        return self._calls.take()

    def finish(self) -> list[Piece]:
        part, self._part = self._part, ""
        if self._state == self._between or (self._state == self._header and not self._first):
            self._drop()  # a header without a message says nothing
            return self._calls.take()
        if part:
            self._take(part, False)
        if self._state == self._call and self._complete:
            self._end_call()
        else:
            self._give_up()
        return self._calls.take()

    def _run(self, text: str) -> None:
        position = 0
        for found in _MARKERS.pattern.finditer(text):
            if found.start() > position:
                self._take(text[position : found.start()], False)
            self._take(found.group(), True)
            position = found.end()
        self._part = _MARKERS.begun(text[position:])
        rest = text[position : len(text) - len(self._part)]
        if rest:
            self._take(rest, False)

    def _take(self, text: str, is_marker: bool) -> None:
        self._seen += len(text)
        self._state(text, is_marker)

    # ---- each state takes a piece of text, or a marker

    def _header(self, text: str, is_marker: bool) -> None:
        self._hold(text)
        if is_marker and text in _ENDS:
            self._give_up()
        elif text == "<|message|>" and is_marker:
            self._begin_body("".join(self._raw))
        elif not is_marker and not self._fits_header(text):
            self._give_up()

    def _fits_header(self, text: str) -> bool:
        if self._raw_size > _MAX_HEADER or not _HEADER_TEXT.fullmatch(text):
            return False
        if not self._first:
            return True
        # Before the first marker there is nothing but a recipient.
        begun = "".join(self._raw).lstrip(" ")
        return begun.startswith("<|") or "to="[: len(begun)] == begun[:3]

    def _begin_body(self, header: str) -> None:
        self._first = False
        _, _, channel = header.partition("<|channel|>")
        recipient = _RECIPIENT.search(header)
        to = recipient.group(1) if recipient else ""
        name = to.removeprefix(_FUNCTIONS)
        if to.startswith(_FUNCTIONS) and name in self._calls.tools:
            self._name = name
            self._reader = ValueReader()
            self._opened = self._complete = False
            self._state = self._call
            return
        if to.startswith(_FUNCTIONS):
            self._give_up()
            return
        self._drop()
        self._state = self._reasoning if channel.startswith("analysis") else self._content

    def _reasoning(self, text: str, is_marker: bool) -> None:
        if not is_marker or not self._ends(text):
            self._out.append(Reasoning(text))
            start = self._seen - len(text)
            if self.spans and self.spans[-1][1] == start:
                start = self.spans.pop()[0]
            self.spans.append((start, self._seen))

    def _content(self, text: str, is_marker: bool) -> None:
        if not is_marker or not self._ends(text):
            self._out.append(Content(text))

    def _call(self, text: str, is_marker: bool) -> None:
        if is_marker and text not in ("<|message|>", "<|constrain|>"):
            if self._complete:
                self._end_call()
            else:
                self._hold(text if text in _ENDS else "")
                self._give_up()
            self._ends(text)
            return
        self._hold(text)
        try:
            for char in text:
                self._read_argument(char)
            if self._raw_size > self._max_held:
                raise NotACall
        except NotACall:
            self._give_up()

    def _read_argument(self, char: str) -> None:
        if char in SPACE and (self._complete or not self._opened):
            return
        if self._complete or (char != "{" and not self._opened):
            raise NotACall
        self._opened = True
        self._complete = self._reader.feed(char)

    def _between(self, text: str, is_marker: bool) -> None:
        if is_marker and text not in _ENDS:
            self._state = self._header
            self._hold(text)
        elif not is_marker and (text := text.lstrip(SPACES)):
            self._out.append(Content(text))
            self._state = self._content

    # ----

    def _ends(self, marker: str) -> bool:
        """Whether ``marker`` ends a message; the state after it."""
        if marker in _ENDS:
            self._state = self._between
        elif marker in ("<|start|>", "<|channel|>"):
            self._state = self._header
            self._hold(marker)
        else:
            return False
        return True

    def _end_call(self) -> None:
        self._calls.add(self._name, self._reader.text())
        self._drop()
        self._state = self._between

    def _hold(self, text: str) -> None:
        self._raw.append(text)
        self._raw_size += len(text)

    def _drop(self) -> None:
        self._raw.clear()
        self._raw_size = 0

    def _give_up(self) -> None:
        """What is held is content, and so is what follows in this message."""
        text = "".join(self._raw)
        self._drop()
        self._first = False
        if text:
            self._out.append(Content(text))
        self._state = self._content
