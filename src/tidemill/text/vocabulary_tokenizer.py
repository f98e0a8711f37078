"""What tokenizers from GGUF files and from Hugging Face folders have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property

from tidemill.text.errors import TokenizerError
from tidemill.text.matcher import TokenMatcher
from tidemill.text.vocabulary import Vocabulary, is_text

# A character that Unicode reserves as a non-character; `encode_guarded` drops it.
GUARD = "\ufdd0"


class VocabularyTokenizer(ABC):
    """A ``Tokenizer`` over a ``Vocabulary``; subclasses encode.

    ``chat_templates`` holds all templates by name, "default" being the usual one.
    ``strips_leading_space``: one space at the start of a decoded text is the tokenizer's own
    prefix and not part of it.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        bos_id: int | None,
        eos_id: int | None,
        eos_ids: frozenset[int],
        special_ids: frozenset[int],
        chat_templates: Mapping[str, str],
        strips_leading_space: bool,
        vocab_size: int | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self._vocab_size = max(len(vocabulary), vocab_size or 0)
        self._bos_id = bos_id
        self._eos_id = eos_id
        self._eos_ids = eos_ids
        self._special_ids = special_ids
        self.chat_templates = dict(chat_templates)
        self.strips_leading_space = strips_leading_space

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def bos_id(self) -> int | None:
        return self._bos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._eos_ids

    @property
    def eos_id(self) -> int | None:
        """The one end token that the files name first, as templates print it."""
        return self._eos_id

    @property
    def special_ids(self) -> frozenset[int]:
        return self._special_ids

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")

    @cached_property
    def longest_token(self) -> int:
        return max(map(len, self.vocabulary.texts), default=1)

    @cached_property
    def special_matcher(self) -> TokenMatcher:
        """Finds the control tokens that are spelled out in a text."""
        texts = self.vocabulary.texts
        return TokenMatcher({texts[i]: i for i in self._special_ids})

    @abstractmethod
    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]: ...

    @abstractmethod
    def encode_guarded(self, text: str) -> list[int]:
        """Like ``encode(text, add_special=False, parse_special=True)``, but GUARD characters in
        ``text`` are dropped after control tokens have been looked for, so that one inside the
        name of a control token keeps it plain text."""

    def token_bytes(self, token_id: int) -> bytes:
        if len(self.vocabulary) <= token_id < self._vocab_size:
            return b""  # a row that pads the model's output matrix
        return self.vocabulary.bytes_of(token_id)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        hidden = self._special_ids if skip_special else frozenset()
        data = b"".join(self.token_bytes(i) for i in ids if i not in hidden)
        if self.strips_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    @staticmethod
    def _require_text(text: str) -> None:
        if not isinstance(text, str):
            raise TokenizerError(f"only text can be encoded, not {type(text).__name__}")
        if not is_text(text):
            raise TokenizerError(
                "the text has lone surrogates, which are not Unicode characters;"
                " decode the input as UTF-8 before it gets here"
            )
