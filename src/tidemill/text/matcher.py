"""Finding special tokens that are written out in a text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from tidemill.text.errors import TokenizerError

# Real special tokens have a few dozen characters. The bound keeps the cost of one search position
# small whatever a model file holds.
MAX_SPECIAL_CHARS = 1024


class TokenMatcher:
    """Splits a text at the leftmost-longest occurrences of a set of token texts.

    ``swallow_right`` holds the ids after which white space is dropped (the ``rstrip`` flag of
    Hugging Face added tokens). Vocabularies with thousands of special tokens are usual, so a
    position is first screened by its two leading characters.
    """

    def __init__(self, tokens: Mapping[str, int], swallow_right: Collection[int] = ()) -> None:
        self._tokens = {text: token_id for text, token_id in tokens.items() if text}
        self._swallow_right = frozenset(swallow_right)
        lengths: dict[str, set[int]] = {}
        for text, token_id in self._tokens.items():
            if len(text) > MAX_SPECIAL_CHARS:
                raise TokenizerError(
                    f"special token {token_id} has {len(text):,} characters;"
                    f" at most {MAX_SPECIAL_CHARS:,} are supported"
                )
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}
        self._head = _head_pattern(self._lengths)

    def find(self, text: str, start: int = 0) -> tuple[int, int, int] | None:
        """The first match at or after ``start``: its begin, its end and its token id."""
        if self._head is None:
            return None
        for head in self._head.finditer(text, start):
            begin = head.start()
            pair = text[begin : begin + 2]
            for key in (pair, pair[0]):
                for length in self._lengths.get(key, ()):
                    token_id = self._tokens.get(text[begin : begin + length])
                    if token_id is not None:
                        return begin, begin + length, token_id
        return None

    def split(self, text: str) -> Iterator[str | int]:
        """The text in order: token ids where special tokens stand, non-empty texts between."""
        position = 0
        while (match := self.find(text, position)) is not None:
            begin, end, token_id = match
            if begin > position:
                yield text[position:begin]
            yield token_id
            position = end
            if token_id in self._swallow_right:
                while position < len(text) and text[position].isspace():
                    position += 1
        if position < len(text):
            yield text[position:]


def _head_pattern(heads: Collection[str]) -> re.Pattern[str] | None:
    """Matches one character where a token may start, looking ahead at the second one."""
    seconds: dict[str, str] = {}
    single: set[str] = set()
    for head in heads:
        if len(head) == 1:
            single.add(head)
        else:
            seconds[head[0]] = seconds.get(head[0], "") + head[1]
    branches = [re.escape(first) for first in sorted(single)]
    branches += [
        f"{re.escape(first)}(?=[{re.escape(following)}])"
        for first, following in sorted(seconds.items())
        if first not in single
    ]
    return re.compile("|".join(branches)) if branches else None
