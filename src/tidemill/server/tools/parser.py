"""From a model's text to its parts: content, reasoning, tool calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tidemill.server.tools.deepseek import DeepSeek
from tidemill.server.tools.harmony import HarmonyScanner
from tidemill.server.tools.hermes import Hermes
from tidemill.server.tools.llama3 import Llama3
from tidemill.server.tools.mistral import Mistral
from tidemill.server.tools.pieces import Content, Piece, Span, call_id, join
from tidemill.server.tools.pythonic import Pythonic
from tidemill.server.tools.qwen3_coder import Qwen3Coder
from tidemill.server.tools.reasoning import REASONING, ReasoningSplitter
from tidemill.server.tools.scanner import Calls, CallScanner, Grammar, Tools

GRAMMARS: Mapping[str, Grammar] = {
    "hermes": Hermes(),
    "qwen3_coder": Qwen3Coder(),
    "llama3": Llama3(),
    "mistral": Mistral(),
    "pythonic": Pythonic(),
    "deepseek": DeepSeek(),
}
FORMATS = (*GRAMMARS, "harmony")

# A call that is longer is content: nothing holds more of an answer than this.
MAX_CALL_CHARS = 1 << 20


class _Scanner(Protocol):
    def push(self, text: str) -> list[Piece]: ...
    def finish(self) -> list[Piece]: ...


class Parser:
    """The parts of one answer as its text comes; made by ``parser_for``.

    However the text is cut into chunks, the pieces put together (``pieces.assemble``) are the same.
    What is text for certain is given out at once; what may be part of a call or a tag is held
    until that is known, and comes out as text, unchanged, if it is none.
    """

    def __init__(
        self, scanner: _Scanner | None, splitter: ReasoningSplitter | None, calls: Calls
    ) -> None:
        self._scanner = scanner
        self._splitter = splitter
        self._calls = calls

    @property
    def call_count(self) -> int:
        """Calls that have begun so far."""
        return self._calls.count

    @property
    def reasoning(self) -> Sequence[Span]:
        """See ``Reader``."""
        if self._splitter is not None:
            return self._splitter.spans
        return self._scanner.spans if isinstance(self._scanner, HarmonyScanner) else ()

    def push(self, text: str) -> list[Piece]:
        """What is new with ``text``."""
        if self._splitter is None:
            return self._scan(text)
        return self._scan_all(self._splitter.push(text))

    def finish(self) -> list[Piece]:
        """What was held back, now that the text has ended."""
        pieces = [] if self._splitter is None else self._scan_all(self._splitter.finish())
        if self._scanner is not None:
            pieces += self._scanner.finish()
        return join(pieces)

    def _scan_all(self, split: list[Piece]) -> list[Piece]:
        pieces: list[Piece] = []
        for piece in split:
            pieces += self._scan(piece.text) if isinstance(piece, Content) else [piece]
        return pieces if len(split) == 1 else join(pieces)

    def _scan(self, text: str) -> list[Piece]:
        if self._scanner is not None:
            return self._scanner.push(text)
        return [Content(text)] if text else []


def parser_for(
    format: str | None,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    reasoning: str | None = None,
    in_reasoning: bool = False,
    new_id: Callable[[], str] | None = None,
    max_call_chars: int = MAX_CALL_CHARS,
) -> Parser:
    """A parser for one answer.

    ``format`` is one of ``FORMATS``; None reads no calls. ``tools`` are those of the request, as
    in OpenAI's API: a call of another name is content, so without any there are no calls.
    ``reasoning`` is one of ``REASONING`` or None ("harmony" has its own), and ``in_reasoning`` says
    that the prompt has opened it (``detect.opens_reasoning``).

    A call is given out when it is complete: one that has been begun could not be taken back.
    ``new_id`` makes the calls' ids, where the text has none. Raises ValueError for an unknown name
    or for tools that are none.
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"there is no tool call format {format!r}; there are {', '.join(FORMATS)}")
    if reasoning is not None and reasoning not in REASONING:
        raise ValueError(
            f"there is no reasoning format {reasoning!r}; there are {', '.join(REASONING)}"
        )
    known = Tools(tools)
    make_id = new_id or (_mistral_id if format == "mistral" else call_id)
    calls = Calls(known, make_id)
    if format == "harmony":
        return Parser(HarmonyScanner(calls, max_held=max_call_chars), None, calls)
    scanner = None
    if format is not None and len(known):
        scanner = CallScanner(GRAMMARS[format], calls, max_held=max_call_chars)
    splitter = None
    if reasoning is not None:
        splitter = ReasoningSplitter(REASONING[reasoning], inside=in_reasoning)
    return Parser(scanner, splitter, calls)


def _mistral_id() -> str:
    """Nine letters and digits: Mistral's templates refuse any other id."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    return "".join(letters[byte % len(letters)] for byte in os.urandom(9))
