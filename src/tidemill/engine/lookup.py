"""Drafts from the sequence itself: what followed the last time that its end occurred in it.

Prompt lookup decoding (Saxena 2023; "n-gram matching" in LLMA, Yang et al. 2023, "Inference with
reference: lossless acceleration of large language models"): in code edits, summaries and quotes
much of the output is copied from the prompt or said again. It costs no model and no memory but
an index of bigrams.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tidemill.engine.sequence import Sequence

_LONGEST = 8  # tokens of a match that are compared
_CANDIDATES = 12  # earlier occurrences of the last bigram that are looked at, the latest first


class _Index:
    """Where each bigram of a sequence ends: the last place, and before each place the one before.

    ``last`` maps a bigram (as one number) to the position of its second token; ``before[p]`` is
    the place before p of the bigram that ends at p, -1 if there is none.
    """

    __slots__ = ("before", "last")

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        self.before: list[int] = []

    def extend(self, tokens: Seq[int]) -> None:
        """Take in the tokens that are new since the last call."""
        last, before = self.last, self.before
        if not before and tokens:
            before.append(-1)
        start = len(before)
        if start >= len(tokens):
            return
        previous = tokens[start - 1]
        for position in range(start, len(tokens)):
            token = tokens[position]
            key = previous << 32 | token
            before.append(last.get(key, -1))
            last[key] = position
            previous = token

    def longest(self, tokens: Seq[int]) -> tuple[int, int]:
        """The length of the longest match of the end of ``tokens`` with an earlier part of them,
        as far as looked for, and the position after that part; (0, 0) if there is none. Of equal
        ones the latest."""
        end = len(tokens) - 1
        best = place = 0
        candidate = self.before[end] if end > 0 else -1
        for _ in range(_CANDIDATES):
            if candidate < 0:
                break
            length = 2
            most = min(_LONGEST, candidate + 1)
            while length < most and tokens[candidate - length] == tokens[end - length]:
                length += 1
            if length > best:
                best, place = length, candidate + 1
                if best >= _LONGEST:
                    break
            candidate = self.before[candidate]
        return best, place


class PromptLookup:
    """Proposes the continuation of the longest earlier match. Its kinds of draft are the lengths
    of the match: the longer, the more often it is right."""

    def __init__(self) -> None:
        self._indices: dict[Sequence, _Index] = {}
        self._places: dict[Sequence, int] = {}

    def kinds(self, sequences: Seq[Sequence]) -> list[int]:
        self._places.clear()
        kinds = []
        for sequence in sequences:
            index = self._indices.get(sequence)
            if index is None:
                index = self._indices[sequence] = _Index()
            index.extend(sequence.tokens)
            length, place = index.longest(sequence.tokens)
            if length:
                self._places[sequence] = place
            kinds.append(length)
        return kinds

    def first_rate(self, kind: int) -> float:
        return min(0.1 * kind, 0.7)

    def propose(self, sequences: Seq[Sequence], lengths: Seq[int]) -> list[list[int]]:
        drafts = []
        for sequence, n in zip(sequences, lengths, strict=True):
            place, tokens = self._places[sequence], sequence.tokens
            draft = tokens[place : place + n].tolist()
            for i in range(n - len(draft)):  # the match reaches the end: it goes on with itself
                draft.append(draft[i])
            drafts.append(draft)
        return drafts

    def forget(self, sequence: Sequence) -> None:
        self._indices.pop(sequence, None)
        self._places.pop(sequence, None)
