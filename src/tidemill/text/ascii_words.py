"""Splitting ASCII text by a pre-tokenizer's patterns.

The ``tokenizers`` library splits any text, but loading it and compiling patterns for all of Unicode
takes longer than everything else that is done with a short prompt. Python's own patterns lack only
the classes of characters (``\\p{L}``), and these are soon listed for ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# General categories of Unicode, as far as they have ASCII characters: ranges for use in [].
_CLASSES = {
    "L": "A-Za-z",
    "Lu": "A-Z",
    "Ll": "a-z",
    "Lt": "",
    "Lm": "",
    "Lo": "",
    "M": "",
    "N": "0-9",
    "P": r"!\"#%&'()*,\-./:;?@\[\\\]_{}",
    "S": r"$+<=>\^`|~",
}
_TOKEN = re.compile(r"\\p\{(\w+)\}|\\.|.", re.DOTALL)


class AsciiSplitter:
    """Each pattern splits the pieces that the one before it left: its matches, and what is between
    them, are pieces."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [re.compile(translate(pattern), re.ASCII) for pattern in patterns]

    def split(self, text: str) -> list[str]:
        """The pieces of ``text``, which must be ASCII."""
        pieces = [text] if text else []
        for pattern in self._patterns:
            pieces = [part for piece in pieces for part in _isolate(pattern, piece)]
        return pieces


def translate(pattern: str) -> str:
    """The pattern for Python's ``re``, with the same matches in ASCII text."""
    translated = []
    inside = False
    for token in _TOKEN.finditer(pattern):
        text, name = token[0], token[1]
        if name is not None:
            text = _CLASSES[name] if inside else f"[{_CLASSES[name]}]"
        elif text == "[" and inside:
            text = r"\["
        elif text in "[]":
            inside = text == "["
        translated.append(text)
    return "".join(translated)


def _isolate(pattern: re.Pattern[str], piece: str) -> Iterator[str]:
    position = 0
    for match in pattern.finditer(piece):
        if match.start() > position:
            yield piece[position : match.start()]
        if match[0]:
            yield match[0]
        position = match.end()
    if position < len(piece):
        yield piece[position:]
