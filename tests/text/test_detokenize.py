"""Joined deltas equal the full decode, for every sequence of ids."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.text.detokenize import IncrementalDetokenizer, TokenTexts
from tidemill.text.errors import TokenizerError
from tidemill.text.vocabulary import Spelling, TokenType, Vocabulary
from tidemill.text.vocabulary_tokenizer import VocabularyTokenizer

BYTES = 4
WORDS = ["▁", "▁a", "b", "▁▁", "é", "世", "👩\u200d👩", "\u0301", "x▁y"]


class DecodeOnly(VocabularyTokenizer):
    """<unk>, <s>, </s>, an empty token, all bytes, some words, a user-defined token."""

    def __init__(self, *, strips_leading_space: bool) -> None:
        texts = ["<unk>", "<s>", "</s>", "", *(f"<0x{byte:02X}>" for byte in range(256))]
        texts += [*WORDS, " <b>"]
        types = bytes((2, 3, 3, 1)) + bytes((6,)) * 256 + bytes((1,)) * len(WORDS) + bytes((4,))
        super().__init__(
            Vocabulary(texts, types, Spelling.SENTENCEPIECE),
            bos_id=1,
            eos_id=2,
            eos_ids=frozenset((2,)),
            special_ids=frozenset((0, 1, 2)),
            chat_templates={},
            strips_leading_space=strips_leading_space,
            vocab_size=len(texts) + 3,  # the logits have three more rows
        )

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        raise NotImplementedError

    def encode_guarded(self, text: str) -> list[int]:
        raise NotImplementedError


TOKENIZERS = [DecodeOnly(strips_leading_space=flag) for flag in (False, True)]
SIZE = TOKENIZERS[0].vocab_size
any_ids = st.lists(st.integers(0, SIZE - 1), max_size=30)
byte_ids = st.binary(max_size=12).map(lambda data: [BYTES + byte for byte in data])
text_ids = st.text(max_size=6).map(lambda text: [BYTES + byte for byte in text.encode()])
sequences = st.lists(st.one_of(any_ids, byte_ids, text_ids), max_size=4).map(
    lambda parts: [token for part in parts for token in part]
)


def stream(
    tokenizer: VocabularyTokenizer, ids: Sequence[int], *, skip_special: bool = True
) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special=skip_special)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@settings(max_examples=200, derandomize=True, deadline=None)
@given(sequences, st.booleans(), st.sampled_from(TOKENIZERS))
def test_joined_deltas_equal_the_decode(
    ids: list[int], skip_special: bool, tokenizer: VocabularyTokenizer
) -> None:
    deltas = stream(tokenizer, ids, skip_special=skip_special)
    assert "".join(deltas) == tokenizer.decode(ids, skip_special=skip_special)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(st.tuples(sequences, st.booleans()), max_size=4), st.sampled_from(TOKENIZERS))
def test_detokenizers_that_share_texts_are_as_if_alone(
    texts: list[tuple[list[int], bool]], tokenizer: VocabularyTokenizer
) -> None:
    shared = TokenTexts(tokenizer)
    for ids, skip_special in texts:
        detokenizer = IncrementalDetokenizer(tokenizer, skip_special=skip_special, texts=shared)
        deltas = [*(detokenizer.push(token) for token in ids), detokenizer.flush()]
        assert deltas == stream(tokenizer, ids, skip_special=skip_special)


def test_texts_of_single_tokens() -> None:
    texts = TokenTexts(TOKENIZERS[1])
    assert [texts[BYTES + 0x41], texts[BYTES + 0xC3], texts[SIZE - 1]] == ["A", None, ""]
    assert texts[BYTES + 256 + WORDS.index("▁a")] == " a"
    with pytest.raises(TokenizerError):
        texts[SIZE]


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.text(max_size=20), st.sampled_from(TOKENIZERS))
def test_a_delta_never_has_part_of_a_character(text: str, tokenizer: VocabularyTokenizer) -> None:
    """Fed byte by byte, valid text comes out character by character and nothing is replaced."""
    deltas = stream(tokenizer, [BYTES + byte for byte in text.encode()])
    expected = text.removeprefix(" ") if tokenizer.strips_leading_space else text
    assert [delta for delta in deltas if delta] == list(expected)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.binary(max_size=30))
def test_invalid_bytes_never_stall(data: bytes) -> None:
    """What is held back is less than a character's bytes (two bad ones for half a surrogate)."""
    tokenizer = TOKENIZERS[0]
    detokenizer = IncrementalDetokenizer(tokenizer)
    shown = ""
    for count, byte in enumerate(data, 1):
        shown += detokenizer.push(BYTES + byte)
        held = data[:count].decode("utf-8", "replace").removeprefix(shown)
        assert len(held) <= 2


def test_emoji_over_byte_tokens() -> None:
    ids = [BYTES + byte for byte in "👩‍💻".encode()]
    deltas = stream(TOKENIZERS[0], ids)
    assert [delta for delta in deltas if delta] == ["👩", "\u200d", "💻"]


def test_an_unfinished_character_comes_with_the_flush() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZERS[0])
    assert detokenizer.push(BYTES + 0xE4) == ""
    assert detokenizer.push(BYTES + 0xB8) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_hidden_tokens_do_not_break_a_character() -> None:
    ids = [BYTES + 0xC3, 1, 3, BYTES + 0xA9]
    assert "".join(stream(TOKENIZERS[0], ids)) == "é" == TOKENIZERS[0].decode(ids)


def test_the_leading_space_is_dropped_once_and_only_where_it_is_a_prefix() -> None:
    plain, prefixed = TOKENIZERS
    a = BYTES + 256 + WORDS.index("▁a")
    spaces = BYTES + 256 + WORDS.index("▁▁")
    assert "".join(stream(plain, [a, a])) == " a a"
    assert "".join(stream(prefixed, [1, a, a])) == "a a"
    assert "".join(stream(prefixed, [spaces, a])) == "  a"
    assert "".join(stream(prefixed, [3, a])) == "a" == prefixed.decode([3, a])  # 3 is empty


@settings(max_examples=200, derandomize=True, deadline=None)
@given(sequences, sequences, st.booleans(), st.sampled_from(TOKENIZERS))
def test_a_continuation_is_what_the_whole_has_more_than_its_beginning(
    before: list[int], ids: list[int], skip_special: bool, tokenizer: VocabularyTokenizer
) -> None:
    before = [*before, BYTES + ord("x")]  # no character is cut by the border
    for after in (before, [1, 3] if skip_special else []):
        detokenizer = IncrementalDetokenizer(tokenizer, skip_special=skip_special, after=after)
        text = "".join([*map(detokenizer.push, ids), detokenizer.flush()])
        beginning = tokenizer.decode(after, skip_special=skip_special)
        whole = tokenizer.decode([*after, *ids], skip_special=skip_special)
        assert beginning + text == whole


def test_special_tokens_can_be_shown() -> None:
    assert "".join(stream(TOKENIZERS[0], [1, 2], skip_special=False)) == "<s></s>"


def test_ids_outside_the_vocabulary() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZERS[0])
    with pytest.raises(TokenizerError, match="not in the vocabulary"):
        detokenizer.push(SIZE)
    assert detokenizer.push(SIZE - 1) == ""  # a padding row of the logits


def test_types_match_the_vocabulary() -> None:
    tokenizer = TOKENIZERS[0]
    assert tokenizer.vocabulary.ids_of(TokenType.BYTE) == list(range(BYTES, BYTES + 256))
