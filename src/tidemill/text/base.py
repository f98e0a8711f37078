"""The contract of a tokenizer, as the engine and everything above it see one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text to token ids and back. Implementations are safe to use from several threads."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids that the model's logits have (ids are below this)."""
        ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends a generation (end of sequence, of turn, of message)."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Control tokens: never part of visible text."""
        ...

    @property
    def chat_template(self) -> str | None: ...

    @property
    def longest_token(self) -> int:
        """Characters of the longest token: a text of more than n times as many has more than n
        tokens, unless the vocabulary's normalisation shortens it."""
        ...

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Ids of ``text``. ``add_special`` adds BOS/EOS as the model wants them;
        ``parse_special`` recognises control tokens written in the text (for rendered chat
        templates, which are encoded with add_special=False, parse_special=True)."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of ``ids``; invalid UTF-8 becomes U+FFFD, once per maximal bad part."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token stands for (a control token: its name in UTF-8)."""
        ...
