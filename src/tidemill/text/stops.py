"""Stop strings over a stream of text deltas."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class StopStrings:
    """Cuts a stream of text before the first stop string in it.

    The stop string that is complete first ends the text, as if each character came by itself; of
    several that are complete with the same character the longest counts. The text before it is
    passed on, the string and all that follows is not. So the result is the same for every way in
    which the text is cut into deltas.

    Only what may still become a stop string is held back: the longest suffix of the text that is
    a proper prefix of one. The strings make an automaton (Aho and Corasick, "Efficient string
    matching", CACM 18(6), 1975): the cost per character does not depend on how many there are.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        """Raises ValueError for an empty stop string, which would stop everything."""
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self._depth = [0]
        self._match: list[str | None] = [None]
        for string in strings:
            if not string:
                raise ValueError("a stop string must not be empty")
            self._insert(string)
        self._link()
        self._state = 0
        self._held = ""
        self._stopped: str | None = None

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, if one has."""
        return self._stopped

    def push(self, delta: str) -> tuple[str, str | None]:
        """The text that may be shown after ``delta``, and the stop string if one is complete.

        After a stop string nothing more comes out.
        """
        if self._stopped is not None:
            return "", self._stopped
        if len(self._next) == 1:
            return delta, None
        state = self._state
        for position, char in enumerate(delta):
            while char not in self._next[state] and state:
                state = self._fail[state]
            state = self._next[state].get(char, 0)
            if (found := self._match[state]) is not None:
                text = self._held + delta[: position + 1]
                self._stopped, self._held = found, ""
                return text[: len(text) - len(found)], found
        self._state = state
        text = self._held + delta
        cut = len(text) - self._depth[state]
        self._held = text[cut:]
        return text[:cut], None

    def flush(self) -> str:
        """What was held back, now that the text has ended without a stop string."""
        text, self._held, self._state = self._held, "", 0
        return text

    def _insert(self, string: str) -> None:
        state = 0
        for char in string:
            after = self._next[state].get(char)
            if after is None:
                after = len(self._next)
                self._next[state][char] = after
                self._next.append({})
                self._fail.append(0)
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
            state = after
        self._match[state] = string

    def _link(self) -> None:
        """Failure links: from each state to that of its longest proper suffix in the automaton."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, after in self._next[state].items():
                queue.append(after)
                fallback = self._fail[state]
                while fallback and char not in self._next[fallback]:
                    fallback = self._fail[fallback]
                self._fail[after] = self._next[fallback].get(char, 0)
                if self._match[after] is None:
                    self._match[after] = self._match[self._fail[after]]
