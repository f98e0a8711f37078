"""The parts that grammars of tool calls are made of.

A grammar is a generator that is sent the text after a call's opening marker, one character at a
time: ``char = yield``. "" is the end of the text. It returns when the call's text is complete, and
raises NotACall at the first character that shows that it is none.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, str, T]

SPACES = " \t\r\n"
SPACE = frozenset(SPACES)


class NotACall(Exception):
    """The text is no call, or none any more. ``read``: how many of the characters that were read
    last are not part of it and are to be looked at anew, as they may begin one."""

    def __init__(self, read: str = "") -> None:
        super().__init__(read)
        self.read = len(read)


def skip_space() -> Steps[str]:
    """The first character that is no white space."""
    while (char := (yield)) in SPACE:
        pass
    return char


def either(
    literals: Collection[str], first: str | None = None, *, or_end: bool = False
) -> Steps[str]:
    """Read one of ``literals``, none of which begins another; gives which. ``first`` is a character
    of it that has been read. With ``or_end`` the end of the text is as good: gives "".

    Where it breaks off all of it is looked at anew, as a marker may begin like it.
    """
    text = ""
    while True:
        char = (yield) if first is None else first
        first = None
        if not char and or_end:
            return ""
        text += char
        if not char or not any(literal.startswith(text) for literal in literals):
            raise NotACall(text)
        if text in literals:
            return text


def expect(literal: str, first: str | None = None) -> Steps[str]:
    """Read exactly ``literal``; see ``either``."""
    return either((literal,), first)


def closing(literal: str, first: str | None = None) -> Steps[str]:
    """Read ``literal``, where the end of the text is as good; see ``either``."""
    return either((literal,), first, or_end=True)


def one_of(words: Collection[str], end: str, first: str | None = None) -> Steps[str]:
    """Read one of ``words`` and the character ``end`` behind it."""
    word = ""
    while True:
        char = (yield) if first is None else first
        first = None
        if char == end and word in words:
            return word
        word += char
        if not char or not any(w.startswith(word) for w in words):
            raise NotACall(char)


def read_until(literal: str) -> Steps[str]:
    """The text before ``literal``, which is read too."""
    last = literal[-1]
    size = len(literal)
    text: list[str] = []
    while char := (yield):
        text.append(char)
        if char == last and "".join(text[-size:]) == literal:
            return "".join(text[:-size])
    raise NotACall
