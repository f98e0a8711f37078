"""Finds tool calls in a stream of text, by the grammar of one format."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from tidemill.server.tools.markers import Markers
from tidemill.server.tools.pieces import CallArguments, CallBegin, Content, Piece, join
from tidemill.server.tools.steps import SPACES, NotACall, Steps

# White space before a call belongs to its envelope, so it is held back until it is seen whether
# one follows; but not more of it than this.
_MAX_SPACE = 64
# Longer chunks are taken in blocks: what is looked at anew is put before the rest of its block.
_BLOCK = 1024
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Tools:
    """The tools of a request, as OpenAI's API describes them."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Raises ValueError for a tool without a name."""
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for i, tool in enumerate(tools):
            function = tool.get("function", tool)
            name = function.get("name") if isinstance(function, Mapping) else None
            if not isinstance(name, str) or not name:
                raise ValueError(f"tools[{i}] has no function with a name")
            parameters = function.get("parameters")
            self._parameters[name] = parameters if isinstance(parameters, Mapping) else {}
        self._sorted = sorted(self._parameters)

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def __len__(self) -> int:
        return len(self._parameters)

    def may_begin(self, text: str) -> bool:
        """Whether ``text`` begins the name of a tool."""
        place = bisect_left(self._sorted, text)
        return place < len(self._sorted) and self._sorted[place].startswith(text)

    def properties(self, name: str) -> Mapping[str, Any]:
        """The JSON schemas of a tool's parameters; empty where they are not known."""
        properties = self._parameters.get(name, {}).get("properties")
        return properties if isinstance(properties, Mapping) else {}


class Calls:
    """What a grammar reports to: the calls that it finds, and the tools that there are."""

    def __init__(self, tools: Tools, new_id: Callable[[], str]) -> None:
        self.tools = tools
        self.count = 0
        self.pieces: list[Piece] = []
        self._new_id = new_id
        self._ids: set[str] = set()
        self.on_commit: Callable[[], None] = lambda: None

    def add(self, name: str, arguments: str, id: str | None = None) -> None:
        """A call is complete. All that has been read is part of it."""
        if id is None or id in self._ids or not _ID.fullmatch(id):
            id = self._new_id()
        self._ids.add(id)
        self.pieces += (CallBegin(self.count, id, name), CallArguments(self.count, arguments))
        self.count += 1
        self.on_commit()

    def take(self) -> list[Piece]:
        """What has been found since it was last asked for."""
        pieces = join(self.pieces)
        self.pieces.clear()
        return pieces

    def name(self, ends: str, first: str | None = None, also: Collection[str] = ()) -> Steps[str]:
        """Read the name of a tool, or one of ``also``, up to one of ``ends``.

        Gives the name with the character that ended it.
        """
        name = ""
        while True:
            char = (yield) if first is None else first
            first = None
            if char and char in ends and (name in self.tools or name in also):
                return name + char
            name += char
            if not char or not (
                self.tools.may_begin(name) or any(word.startswith(name) for word in also)
            ):
                raise NotACall(char)


class Grammar(Protocol):
    """A format of tool calls.

    ``markers`` are the texts that may begin a call: anywhere, or where ``anchors`` says, at the
    start of a "line" or of the "message" only.
    """

    markers: Sequence[str]
    anchors: Mapping[str, str]

    def read(self, calls: Calls, marker: str) -> Steps[None]:
        """Read on after ``marker`` and report the calls. See ``steps``."""
        ...


class CallScanner:
    """Content and calls of a text that comes in chunks of any size; see ``Parser``.

    Text that may be a call is held until that is decided. If it is none it becomes content, all
    of it up to the character that decided; from there the search goes on. So no part of the text
    is looked at more often than a marker is long, whatever it contains.
    """

    def __init__(self, grammar: Grammar, calls: Calls, *, max_held: int) -> None:
        self._grammar = grammar
        self._calls = calls
        self._max_held = max_held
        self._markers = Markers(grammar.markers)
        self._out: list[Piece] = calls.pieces
        self._part = ""  # the beginning of a marker
        self._space = ""  # what the content so far ends with, held back
        self._blank = True  # no content but white space, and no call, so far
        self._last = ""  # character before ``_space``
        self._after_call = False
        self._reading: Steps[None] | None = None
        self._held: list[str] = []  # what was read of a call since its last commit
        self._held_size = 0
        calls.on_commit = self._committed
        self.steps = 0
        """Characters looked at so far, each as often as it was: tests bound it."""

    def push(self, text: str) -> list[Piece]:
        """What is certain after more ``text``."""
        for start in range(0, len(text), _BLOCK):
            self._run(text[start : start + _BLOCK])
        return self._calls.take()

    def finish(self) -> list[Piece]:
        """The rest, now that the text has ended."""
        while self._reading is not None or self._part:
            if self._reading is not None:
                self._read("")
            else:
                part, self._part = self._part, ""
                self._content(part)
        if self._space and not self._after_call:
            self._out.append(Content(self._space))
        self._space = ""
        return self._calls.take()

    def _run(self, text: str) -> None:
        position = 0
        while position < len(text):
            if self._reading is not None:
                self._read(text[position])
                position += 1
                continue
            if self._part:
                text, position = self._part + text[position:], 0
                self._part = ""
            position = self._search(text, position)

    # ---- outside of calls

    def _search(self, text: str, start: int) -> int:
        """Take content up to the next marker; where in ``text`` to go on."""
        found = self._markers.pattern.search(text, start)
        while found is not None and not self._is_anchored(found, text, start):
            found = self._markers.pattern.search(text, found.start() + 1)
        if found is not None:
            self.steps += found.end() - start
            self._content(text[start : found.start()])
            marker = found.group()
            self._held = [marker]
            self._held_size = len(marker)
            self._reading = self._grammar.read(self._calls, marker)
            next(self._reading)
            return found.end()
        self.steps += len(text) - start
        self._part = self._markers.begun(text[start:])
        self._content(text[start : len(text) - len(self._part)])
        return len(text)

    def _is_anchored(self, found: re.Match[str], text: str, start: int) -> bool:
        anchor = self._grammar.anchors.get(found.group())
        if anchor is None:
            return True
        before = text[start : found.start()]
        if anchor == "message":
            return self._blank and not before.strip(SPACES)
        return (self._last + self._space + before)[-1:] in ("", "\n")

    def _content(self, text: str) -> None:
        if not text:
            return
        text = self._space + text
        solid = len(text.rstrip(SPACES))
        if solid:
            self._blank = self._after_call = False
        shown = max(solid, len(text) - _MAX_SPACE)
        self._space = text[shown:]
        if shown:
            self._last = text[shown - 1]
            self._out.append(Content(text[:shown]))

    # ---- inside of a call

    def _read(self, char: str) -> None:
        reading = self._reading
        assert reading is not None
        self.steps += 1
        self._held.append(char)
        self._held_size += 1
        try:
            if self._held_size > self._max_held:
                raise NotACall
            reading.send(char)
            if not char:
                raise NotACall  # the grammar wants more, and there is none
        except StopIteration:
            self._reading = None
        except NotACall as failure:
            reading.close()
            self._reading = None
            held = "".join(self._held)
            again = min(failure.read, len(held))
            self._content(held[: len(held) - again])
            self._run(held[len(held) - again :])

    def _committed(self) -> None:
        self._held.clear()
        self._held_size = 0
        self._space = self._last = ""
        self._blank = False
        self._after_call = True
