"""Tokens to text while they are being generated."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from tidemill.text.base import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class TokenTexts(dict[int, "str | None"]):
    """The texts of single tokens, worked out when first asked for; None for one whose bytes are
    not whole characters. Raises TokenizerError for ids outside the vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes

    def __missing__(self, token_id: int) -> str | None:
        try:
            text = self._token_bytes(token_id).decode()
        except UnicodeDecodeError:
            text = None
        self[token_id] = text
        return text


class IncrementalDetokenizer:
    """Text deltas of one growing token sequence.

    The joined deltas, with that of ``flush``, equal ``tokenizer.decode`` of all pushed ids: a text
    by itself. So a vocabulary with a space prefix (Llama 2) loses the space of its first word. They
    keep it where they continue the text of ``after``: they are then what ``decode`` of those ids
    and the pushed ones has more than that of those ids alone.

    A delta never has part of a character: bytes are held back until they are complete. Bytes that
    cannot become a character are U+FFFD as soon as that is certain. Constant time per token.
    ``texts`` can be shared by all detokenizers of one tokenizer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        after: Iterable[int] = (),
        texts: TokenTexts | None = None,
    ) -> None:
        self._texts = TokenTexts(tokenizer) if texts is None else texts
        self._token_bytes = tokenizer.token_bytes
        self._hidden = tokenizer.special_ids if skip_special else frozenset()
        self._decoder = _Utf8Decoder("replace")
        # Not in the Tokenizer protocol: only SentencePiece vocabularies have such a prefix.
        self._strip_space = getattr(tokenizer, "strips_leading_space", False) and not any(
            self._token_bytes(i) for i in after if i not in self._hidden
        )
        # Whether the next token's text is its own: no bytes are held back, no space is to go.
        self._plain = not self._strip_space

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` completes, "" if there is none yet.

        Raises TokenizerError for ids outside the vocabulary.
        """
        if token_id in self._hidden:
            return ""
        if self._plain and (text := self._texts[token_id]) is not None:
            return text
        data = self._token_bytes(token_id)
        if self._strip_space and data:
            data = data.removeprefix(b" ")
            self._strip_space = False
        text = self._decoder.decode(data)
        self._plain = not (self._strip_space or self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """What is still held back: an unfinished character, as U+FFFD."""
        return self._decoder.decode(b"", final=True)
