"""Byte-level BPE: text is split by a family's patterns, then bytes are merged by rank.

The ``tokenizers`` library does it fast, but takes longer to load and to take in a vocabulary than a
whole short prompt takes here. So the first texts are merged by the few lines below, from the file's
own list of merges, and the library is set up once there is more to do. Both give the same ids.

Source of the algorithm: Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with
Subword Units", ACL 2016 (arXiv:1508.07909).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tidemill._native import TextIndex, Texts
from tidemill.text.ascii_words import AsciiSplitter
from tidemill.text.errors import TokenizerError, library_errors
from tidemill.text.pretokenizers import PreTokenizer
from tidemill.text.vocabulary import BYTE_LEVEL_ALPHABET, Vocabulary, is_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer, models

Encode = Callable[[str], list[int]]

# Characters in all that are merged here before the library is set up, and most in one word, whose
# merging takes quadratic time.
_FIRST_CHARS = 8192
_WORD_CHARS = 64

# Where the library takes several texts it would make threads for them; there is one at a time.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_SPELLED = {byte: char for char, byte in BYTE_LEVEL_ALPHABET.items()}


class ByteLevelEncoder:
    """Encodes plain text (special tokens have been taken out).

    merges: "left right", the best first.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        special_ids: frozenset[int],
        merges: Texts,
        pre: PreTokenizer,
    ) -> None:
        self._ids = vocabulary.ids
        self._special_ids = special_ids
        self._merges = merges
        self._pre = pre
        self._library: Encode | None = None
        self._left = _FIRST_CHARS
        # Without fault, and without special tokens in it, the list means the same to everybody;
        # what anything else means is the library's to say.
        self._ranks: TextIndex | None = None
        if self._ids.merges_are_plain(merges, list(special_ids)):
            self._ranks = TextIndex(merges)

    def encode(self, text: str) -> list[int]:
        """Raises TokenizerError for a text or a vocabulary that the library refuses."""
        if self._library is None:
            if self._ranks is not None and len(text) <= self._left:
                self._left -= len(text)
                ids = self._encode_here(text)
                if ids is not None:
                    return ids
            self._library = self._build()
            self._ranks = None
        return self._library(text)

    def _encode_here(self, text: str) -> list[int] | None:
        """None for what is left to the library."""
        ids: list[int] = []
        for word in self._words(text):
            found = self._merge(word)
            if found is None:
                return None
            ids += found
        return ids

    def _words(self, text: str) -> list[str]:
        """The pieces of a text, spelled by BYTE_LEVEL_ALPHABET."""
        if text.isascii():  # which is composed in any normal form
            return [word.translate(_SPELLED) for word in self._ascii.split(text)]
        with library_errors("cannot encode the text"):
            if self._normalizer is not None:
                text = self._normalizer.normalize_str(text)
            return [word for word, _ in self._splitter.pre_tokenize_str(text)]

    @cached_property
    def _ascii(self) -> AsciiSplitter:
        return AsciiSplitter(self._pre.patterns)

    @cached_property
    def _normalizer(self) -> Any:
        from tokenizers import normalizers

        return normalizers.NFC() if self._pre.nfc else None

    @cached_property
    def _splitter(self) -> Any:
        from tokenizers import Regex, pre_tokenizers

        with library_errors("cannot build the pre-tokenizer"):
            splits = [
                pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self._pre.patterns
            ]
            byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            return pre_tokenizers.Sequence([*splits, byte_level])

    def _merge(self, word: str) -> list[int] | None:
        """Join the pair of best rank, the leftmost of equals, until no two neighbours are one."""
        ranks = self._ranks
        if ranks is None or len(word) > _WORD_CHARS:
            return None
        if self._pre.ignore_merges:
            whole = self._ids.get(word)
            if whole is not None and whole not in self._special_ids:
                return [whole]
        symbols = list(word)
        first = [self._ids.get(symbol) for symbol in symbols]
        if None in first or not self._special_ids.isdisjoint(first):
            return None
        none = len(self._merges)
        while len(symbols) > 1:
            found = [ranks.get(f"{left} {right}", none) for left, right in pairwise(symbols)]
            best = min(found)
            if best == none:
                break
            at = found.index(best)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        return [self._ids[symbol] for symbol in symbols]

    def _build(self) -> Encode:
        from tokenizers import Tokenizer

        pairs = [
            (left, right) for left, _, right in (merge.partition(" ") for merge in self._merges)
        ]
        texts = {text: i for text, i in self._ids.items() if is_text(text)}
        plain = {text: i for text, i in texts.items() if i not in self._special_ids}
        try:
            model = self._model(plain, pairs)
        except TokenizerError:
            # A merge may involve a token that is typed as control.
            model = self._model(texts, pairs)
        with library_errors("cannot build the pre-tokenizer"):
            tokenizer = Tokenizer(model)
            if self._normalizer is not None:
                tokenizer.normalizer = self._normalizer
            tokenizer.pre_tokenizer = self._splitter
        return library_encode(tokenizer)

    def _model(self, vocab: dict[str, int], merges: list[tuple[str, str]]) -> models.BPE:
        from tokenizers import models

        with library_errors("tokenizer.ggml.merges does not fit tokenizer.ggml.tokens"):
            return models.BPE(vocab=vocab, merges=merges, ignore_merges=self._pre.ignore_merges)


def library_encode(tokenizer: Tokenizer) -> Encode:
    """Plain encoding by a tokenizer of the library."""

    def encode(text: str) -> list[int]:
        with library_errors("cannot encode the text"):
            return library_ids(tokenizer, text)

    return encode


def library_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text, without special ones around it. Other threads go on meanwhile: of the
    library's ways only those for several texts let go of the interpreter's lock."""
    ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids
