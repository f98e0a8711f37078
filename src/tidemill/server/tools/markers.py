"""Finds markers in a text that comes in chunks of any size."""

from __future__ import annotations

import re
from collections.abc import Iterable


class Markers:
    """A set of markers: ``pattern`` finds them, of two at one place the longer one."""

    def __init__(self, markers: Iterable[str]) -> None:
        longest_first = sorted(markers, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)))
        self._begun = frozenset(m[:n] for m in longest_first for n in range(1, len(m)))
        self._begun_ends = frozenset(begun[-1] for begun in self._begun)
        self._longest = len(longest_first[0])

    def begun(self, text: str) -> str:
        """The longest end of ``text`` that may become a marker: what has to be held back."""
        if text and text[-1] in self._begun_ends:
            for size in range(min(self._longest - 1, len(text)), 0, -1):
                if text[-size:] in self._begun:
                    return text[-size:]
        return ""
