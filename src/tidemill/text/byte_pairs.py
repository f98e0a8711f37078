"""Byte-level BPE: text is split by a family's patterns, then bytes are merged by rank.

The ``tokenizers`` library does it fast, but takes longer to take in a vocabulary than a whole short
prompt takes here. So the first texts are merged by the few lines below, from the file's own list
of merges, and the library is set up once there is more to do. Both give the same ids.

Source of the algorithm: Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with
Subword Units", ACL 2016 (arXiv:1508.07909).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from tidemill.text.errors import TokenizerError, library_errors
from tidemill.text.pretokenizers import PreTokenizer
from tidemill.text.vocabulary import Vocabulary, is_text

Encode = Callable[[str], list[int]]

# Characters in all that are merged here before the library is set up, and most in one word, whose
# merging takes quadratic time.
_FIRST_CHARS = 8192
_WORD_CHARS = 64


class ByteLevelEncoder:
    """Encodes plain text (special tokens have been taken out).

    ids: the id of each token's text. merges: "left right", the best first.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        ids: Mapping[str, int],
        special_ids: frozenset[int],
        merges: Sequence[str],
        pre: PreTokenizer,
    ) -> None:
        self._ids = ids
        self._special = {vocabulary.texts[i] for i in special_ids}
        self._merges = merges
        self._pre = pre
        self._library: Encode | None = None
        self._left = _FIRST_CHARS
        with library_errors("cannot build the pre-tokenizer"):
            self._normalizer = normalizers.NFC() if pre.nfc else None
            splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
            byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            self._splitter = pre_tokenizers.Sequence([*splits, byte_level])
        # Without fault, and without special tokens in it, the list means the same to everybody;
        # what anything else means is the library's to say.
        self._ranks: dict[str, int] | None = None
        if self._merges_are_plain():
            self._ranks = dict(zip(merges, range(len(merges)), strict=True))

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
        with library_errors("cannot encode the text"):
            if self._normalizer is not None:
                text = self._normalizer.normalize_str(text)
            words = self._splitter.pre_tokenize_str(text) if text else []
        for word, _ in words:
            found = self._merge(word)
            if found is None:
                return None
            ids += found
        return ids

    def _merge(self, word: str) -> list[int] | None:
        """Join the pair of best rank, the leftmost of equals, until no two neighbours are one."""
        ranks = self._ranks
        if ranks is None or len(word) > _WORD_CHARS:
            return None
        if self._pre.ignore_merges and word in self._ids and word not in self._special:
            return [self._ids[word]]
        symbols = list(word)
        if any(symbol not in self._ids or symbol in self._special for symbol in symbols):
            return None
        none = len(ranks)
        while len(symbols) > 1:
            found = [ranks.get(f"{left} {right}", none) for left, right in pairwise(symbols)]
            best = min(found)
            if best == none:
                break
            at = found.index(best)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        return [self._ids[symbol] for symbol in symbols]

    def _merges_are_plain(self) -> bool:
        """Whether every merge joins two tokens to a third, none of them special."""
        if not self._merges:
            return True
        parts = " ".join(self._merges).split(" ")
        if len(parts) != 2 * len(self._merges):
            return False
        id_of = self._ids.get
        ids = set(map(id_of, parts))
        ids.update(map(id_of, map(str.__add__, parts[::2], parts[1::2])))
        return None not in ids and ids.isdisjoint(map(id_of, self._special))

    def _build(self) -> Encode:
        pairs = [
            (left, right) for left, _, right in (merge.partition(" ") for merge in self._merges)
        ]
        texts = {text: i for text, i in self._ids.items() if is_text(text)}
        plain = {text: i for text, i in texts.items() if text not in self._special}
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
        with library_errors("tokenizer.ggml.merges does not fit tokenizer.ggml.tokens"):
            return models.BPE(vocab=vocab, merges=merges, ignore_merges=self._pre.ignore_merges)


def library_encode(tokenizer: Tokenizer) -> Encode:
    """Plain encoding by a tokenizer of the library."""

    def encode(text: str) -> list[int]:
        with library_errors("cannot encode the text"):
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
            return ids

    return encode
