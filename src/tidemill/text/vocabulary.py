"""The token list of a model: texts, kinds, and the bytes that each id stands for."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from tidemill._native import TextIndex, Texts
from tidemill.text.errors import TokenizerError

SPACE_MARK = "▁"  # SentencePiece writes a space as U+2581


class TokenType(enum.IntEnum):
    """Kinds of tokens; the values are those of ``tokenizer.ggml.token_type``."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Spelling(enum.Enum):
    """How normal tokens spell their bytes."""

    BYTE_LEVEL = "byte-level"  # one printable character per byte, as GPT-2 does
    SENTENCEPIECE = "sentencepiece"  # text with U+2581 for spaces


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of GPT-2's byte-level BPE: printable Latin-1 bytes stand for themselves,
    the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = sorted(set(range(256)).difference(printable))
    table.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return table


BYTE_LEVEL_ALPHABET = _byte_level_alphabet()
_BYTE_TOKEN = r"<0x([0-9A-Fa-f]{2})>"


class Vocabulary:
    """Texts and kinds (one TokenType in a byte) of all tokens.

    An empty text marks an id that the tokenizer never uses.
    """

    def __init__(self, texts: Sequence[str], types: bytes, spelling: Spelling) -> None:
        if len(texts) != len(types):
            raise TokenizerError(f"{len(texts):,} tokens but {len(types):,} token types")
        self.texts = texts if isinstance(texts, Texts) else Texts(list(texts))
        self.types = types
        self.spelling = spelling

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def ids(self) -> TextIndex:
        """The id of each text that is not empty."""
        return TextIndex(self.texts)

    def ids_of(self, *types: TokenType) -> list[int]:
        """The ids of the given kinds that have a text."""
        kinds = np.frombuffer(self.types, np.uint8)
        found: list[int] = np.flatnonzero(np.isin(kinds, [int(kind) for kind in types])).tolist()
        return [i for i in found if self.texts[i]]

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of a token; a control or unknown token gives its name in UTF-8."""
        if not 0 <= token_id < len(self.texts):
            raise TokenizerError(
                f"token id {token_id} is not in the vocabulary (ids are 0 to {len(self) - 1})"
            )
        text, kind = self.texts[token_id], self.types[token_id]
        if kind == TokenType.BYTE and (found := re.fullmatch(_BYTE_TOKEN, text)):
            return bytes((int(found[1], 16),))
        if kind in (TokenType.NORMAL, TokenType.UNUSED, TokenType.UNDEFINED, TokenType.BYTE):
            if self.spelling is Spelling.SENTENCEPIECE:
                text = text.replace(SPACE_MARK, " ")
            else:
                try:
                    return bytes([BYTE_LEVEL_ALPHABET[char] for char in text])
                except KeyError:
                    pass  # not in the alphabet: taken literally, as the tokenizers library does
        # Bytes of the file that were not UTF-8 were kept as surrogates.
        return text.encode("utf-8", "surrogateescape")


def clean_texts(tokens: Iterable[object], where: str) -> Texts:
    """Token texts, given as str or bytes; bytes that are not UTF-8 are read as surrogate escapes.

    Raises TokenizerError for anything else.
    """
    if isinstance(tokens, Texts):
        return tokens
    items = list(tokens)
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) != len(items):
        texts = []
        for index, item in enumerate(items):
            if isinstance(item, bytes):
                texts.append(item.decode("utf-8", "surrogateescape"))
            elif isinstance(item, str):
                texts.append(item)
            else:
                raise TokenizerError(f"{where}[{index}] is a {type(item).__name__}, not a text")
    try:
        return Texts(texts)
    except ValueError as error:
        raise TokenizerError(f"{where}: {error}") from error


def is_byte_token(text: str) -> bool:
    """Whether a text names a byte of byte fallback: <0x00> to <0xFF>."""
    return re.fullmatch(_BYTE_TOKEN, text) is not None


def is_text(text: str) -> bool:
    """Whether a str is Unicode text, which lone surrogates are not."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
