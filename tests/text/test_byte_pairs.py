"""Byte-level BPE gives the same ids for the first texts, merged here, as by the library."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemill._native import Texts
from tidemill.text import byte_pairs
from tidemill.text.byte_pairs import ByteLevelEncoder
from tidemill.text.errors import TokenizerError
from tidemill.text.pretokenizers import PRE_TOKENIZERS
from tidemill.text.vocabulary import BYTE_LEVEL_ALPHABET, Spelling, Vocabulary

SPECIAL = "<|end|>"


def made_up_merges(rng: random.Random) -> tuple[list[str], list[str]]:
    """Tokens and merges as training makes them: of neighbours that are tokens already."""
    tokens = list(BYTE_LEVEL_ALPHABET)
    common = [*"eotainshr", "Ġ", "Ġ", "Ċ", "1", "2", "Ã", "©", "ð", "Ł"]
    merges: list[str] = []
    while len(merges) < 400:
        pool = common if rng.random() < 0.5 else tokens[256:] or common
        left, right = rng.choice(pool), rng.choice(common if rng.random() < 0.7 else pool)
        if left + right not in tokens and len(left + right) < 9:
            tokens.append(left + right)
            merges.append(f"{left} {right}")
    return [*tokens, SPECIAL], merges


def encoder(
    pre: str, tokens: list[str] | None = None, merges: list[str] | None = None
) -> ByteLevelEncoder:
    if tokens is None or merges is None:
        tokens, merges = made_up_merges(random.Random(7))
    vocabulary = Vocabulary(tokens, bytes([1]) * len(tokens), Spelling.BYTE_LEVEL)
    special = frozenset({tokens.index(SPECIAL)})
    return ByteLevelEncoder(vocabulary, special, Texts(merges), PRE_TOKENIZERS[pre])


ENCODERS = {pre: encoder(pre) for pre in ("gpt-2", "llama-bpe", "qwen2", "smollm")}
LIBRARY = {pre: encoder._build() for pre, encoder in ENCODERS.items()}

TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="eotainshr  \n12é\U0001f600.'", max_size=120),
)


@pytest.mark.parametrize("pre", ENCODERS)
@settings(derandomize=True, max_examples=300, deadline=None)
@given(text=TEXTS)
@example(text="")
@example(text="there   these\n\n 1212 don't e\u0301 \u00e9")
@example(text="tttttttttttttttttttttttttttttttttttttttttttttttttttttttt")
def test_ids_are_the_librarys(pre: str, text: str) -> None:
    found = ENCODERS[pre]._encode_here(text)
    assert found is not None or any(len(word) > 32 for word in text.split())
    if found is not None:
        assert found == LIBRARY[pre](text)


def test_the_library_takes_over_when_there_is_more_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_pairs, "_FIRST_CHARS", 20)
    split = encoder("smollm")
    text = "there is no other"
    expected = split.encode(text)
    assert split._library is None
    assert split.encode(text) == expected
    assert split._library is not None
    assert split._ranks is None
    assert split.encode(text) == expected


def test_a_long_word_is_the_librarys() -> None:
    split = encoder("smollm")
    assert split.encode("t" * 5000) == LIBRARY["smollm"]("t" * 5000)
    assert split._library is not None


@pytest.mark.parametrize("merge", ["t zz", "zz t", "t", "t  h", "t h e", "", "q z"])
def test_a_faulty_list_of_merges_is_refused_with_the_first_text(merge: str) -> None:
    tokens, merges = made_up_merges(random.Random(7))
    split = encoder("smollm", tokens, [*merges, merge])
    with pytest.raises(TokenizerError, match="merges"):
        split.encode("x")


def test_merges_to_special_tokens_are_as_the_library_makes_them() -> None:
    tokens, merges = made_up_merges(random.Random(7))
    tokens[tokens.index(SPECIAL)] = "zz"
    vocabulary = Vocabulary(tokens, bytes([1]) * len(tokens), Spelling.BYTE_LEVEL)
    special = tokens.index("zz")
    split = ByteLevelEncoder(
        vocabulary, frozenset({special}), Texts([*merges, "z z"]), PRE_TOKENIZERS["smollm"]
    )
    assert split.encode("zz") == [special]
    assert split._library is not None
