"""SentencePiece's byte-pair encoding, as Llama 2, Mistral and Gemma vocabularies use it.

The file has no list of merges: any two neighbours may merge if their joined text is a token, the
best score first, the leftmost of equals. The ``tokenizers`` library can only express this as a
ranked list of pairs, which would have to be derived first (half a million pairs for Gemma, several
seconds) and loses the tie rule, because each pair needs a rank of its own. The algorithm itself
is short and needs nothing but the token list, so it stands here.

Source: Kudo and Richardson, "SentencePiece", EMNLP 2018 (arXiv:1808.06226), and the behaviour of
the library of that name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush

from tidemill._native import TextIndex
from tidemill.text.errors import TokenizerError
from tidemill.text.vocabulary import SPACE_MARK

_CACHED_WORDS = 1 << 16
_CACHED_WORD_CHARS = 48
_SHORT_CHARS = 2048


class SpmEncoder:
    """Encodes plain text (special tokens have been taken out).

    pieces: the ids of all tokens. hidden: ids of those that merging does not produce. scores:
    by id, higher is merged earlier. unused: ids of pieces that are split up again after merging.
    byte_ids: the 256 byte tokens, or None without byte fallback; then ``unknown_id`` stands for
    what no piece covers.
    prefix_space: put a space before the text.
    """

    def __init__(
        self,
        pieces: TextIndex,
        scores: Sequence[float],
        *,
        hidden: Collection[int] = (),
        unused: Collection[int] = (),
        byte_ids: Sequence[int] | None,
        unknown_id: int | None,
        prefix_space: bool,
    ) -> None:
        if byte_ids is None and unknown_id is None:
            raise TokenizerError("the vocabulary has neither byte tokens nor an unknown token")
        self._pieces = pieces
        self._scores = scores
        self._hidden = frozenset(hidden)
        self._unused = frozenset(unused)
        self._byte_ids = byte_ids
        self._unknown_id = unknown_id
        self._prefix = SPACE_MARK if prefix_space else ""
        self._words: re.Pattern[str] | None = None  # made for the first long text
        self._cached = lru_cache(maxsize=_CACHED_WORDS)(self._merge)

    def encode(self, text: str) -> list[int]:
        escaped = self._prefix + text.replace(" ", SPACE_MARK)
        ids: list[int] = []
        for word in self._split(escaped):
            if len(word) <= _CACHED_WORD_CHARS:
                ids.extend(self._cached(word))
            else:
                ids.extend(self._merge(word))
        if self._byte_ids is None:
            return _fuse(ids, self._unknown_id)
        return ids

    def _split(self, escaped: str) -> list[str]:
        """Words that may be merged on their own. A short text need not be split: looking through
        the whole vocabulary for how takes longer than merging it in one."""
        if self._words is None:
            if len(escaped) <= _SHORT_CHARS:
                return [escaped]
            shown = (text for text, piece in self._pieces.items() if piece not in self._hidden)
            self._words = _word_pattern(shown)
        return self._words.split(escaped)

    def _merge(self, word: str) -> tuple[int, ...]:
        """Merge until no two neighbours form a piece. O(n log n) in the word's characters."""
        pieces, scores, hidden = self._pieces, self._scores, self._hidden
        symbols = list(word)  # a symbol merged into its left neighbour becomes ""
        last = len(symbols) - 1
        following = list(range(1, len(symbols) + 1))
        before = list(range(-1, last))
        split_of: dict[str, tuple[str, str]] = {}
        # The smallest entry is the best score, then the leftmost. The joined length tells whether
        # an entry is outdated: symbols only grow or vanish.
        queue: list[tuple[float, int, int, int]] = []

        def candidate(left: int, right: int) -> tuple[float, int, int, int] | None:
            text = symbols[left] + symbols[right]
            piece = pieces.get(text)
            if piece is None or piece in hidden:
                return None
            if piece in self._unused:
                split_of[text] = (symbols[left], symbols[right])
            return -scores[piece], left, right, len(text)

        for left in range(last):
            if (entry := candidate(left, left + 1)) is not None:
                queue.append(entry)
        heapify(queue)
        while queue:
            _, left, right, length = heappop(queue)
            if not symbols[left] or not symbols[right]:
                continue
            if len(symbols[left]) + len(symbols[right]) != length:
                continue
            symbols[left] += symbols[right]
            symbols[right] = ""
            beyond = following[left] = following[right]
            if beyond <= last:
                before[beyond] = left
                if (entry := candidate(left, beyond)) is not None:
                    heappush(queue, entry)
            if before[left] >= 0 and (entry := candidate(before[left], left)) is not None:
                heappush(queue, entry)

        ids: list[int] = []
        for symbol in symbols:
            if symbol:
                self._emit(symbol, split_of, ids)
        return tuple(ids)

    def _emit(self, symbol: str, split_of: Mapping[str, tuple[str, str]], ids: list[int]) -> None:
        pending = [symbol]
        while pending:
            text = pending.pop()
            piece = self._pieces.get(text)
            if piece is None or piece in self._hidden:
                ids.extend(self._fallback(text))
            elif piece in self._unused and text in split_of:
                left, right = split_of[text]
                pending += (right, left)
            else:
                ids.append(piece)

    def _fallback(self, text: str) -> list[int]:
        if self._byte_ids is not None:
            return [self._byte_ids[byte] for byte in text.encode()]
        assert self._unknown_id is not None
        return [self._unknown_id]


def _word_pattern(pieces: Iterable[str]) -> re.Pattern[str]:
    """Matches the (empty) places where no piece can cross, so that words may be cached.

    That is before a space that follows another character, unless some piece has just that pair
    inside (Gemma has one such piece).
    """
    joined = "\0".join(pieces)
    crossed = set(re.findall(f"([^{SPACE_MARK}\0]){SPACE_MARK}", joined))
    return re.compile(f"(?<=[^{SPACE_MARK}{re.escape(''.join(sorted(crossed)))}])(?={SPACE_MARK})")


def _fuse(ids: list[int], unknown_id: int | None) -> list[int]:
    """Neighbouring unknown tokens count as one, as in SentencePiece."""
    return [
        token_id
        for index, token_id in enumerate(ids)
        if token_id != unknown_id or index == 0 or ids[index - 1] != unknown_id
    ]
