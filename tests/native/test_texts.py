"""Texts read in place and found by what they say, against Python's own lists and dictionaries."""

from __future__ import annotations

import gc
import struct
import weakref

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemill._native import TextIndex, Texts, read_gguf_strings

SOME = ["", "a", "é", "漢字", "\U0001f600", "a" * 300, "12345678", "\0", "", "\udcff\udc80"]
# What is UTF-8 and what is not, around every border of its ranges.
BORDERS = [
    bytes.fromhex(text)
    for line in (
        "7f 80 bf c0 c1bf c280 dfbf dfc0 df e09fbf e0a080 ed9fbf eda080 edbfbf ee8080 efbfbf",
        "e08080 efbf f08fbfbf f0908080 f48fbfbf f4908080 f5808080 f7bfbfbf f48fbf ff fe",
    )
    for text in line.split()
]


def gguf(texts: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


def view(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class TestTexts:
    def test_a_sequence_of_str(self) -> None:
        texts = Texts(SOME)
        assert len(texts) == len(SOME)
        assert list(texts) == SOME
        assert [texts[i] for i in range(-len(SOME), 0)] == SOME
        assert texts[2:-1:2] == SOME[2:-1:2]
        assert texts[::-1] == SOME[::-1]
        for outside in (len(SOME), -len(SOME) - 1):
            with pytest.raises(IndexError):
                texts[outside]
        assert list(Texts([])) == []
        assert repr(Texts(SOME[:2])) == repr(SOME[:2])
        assert repr(Texts(["a"] * 9)) == "['a', 'a', 'a', 'a', Ellipsis]"

    def test_only_text_that_has_bytes(self) -> None:
        for bad in ("\ud800", "a\udfff"):
            with pytest.raises(ValueError, match="surrogates"):
                Texts(["a", bad])
        with pytest.raises(TypeError):
            Texts(["a", 1])  # type: ignore[list-item]

    def test_read_in_place(self) -> None:
        texts = [text.encode() for text in SOME if text.isprintable()]
        data = view(b"xyz" + gguf(texts) + b"rest")
        alive = weakref.ref(data)
        read, end = read_gguf_strings(data, 3, len(texts))
        assert end == len(data) - 4
        del data
        gc.collect()
        assert alive() is not None
        assert list(read) == [text.decode() for text in texts]
        del read
        gc.collect()
        assert alive() is None

    @settings(derandomize=True, max_examples=300, deadline=None)
    @given(data=st.binary(max_size=24))
    def test_only_utf8_is_read(self, data: bytes) -> None:
        for border in (b"", *BORDERS):
            text = data + border + data[:3]
            if is_utf8(text):
                assert list(read_gguf_strings(view(gguf([text])), 0, 1)[0]) == [text.decode()]
            else:
                with pytest.raises(ValueError, match="string 0 is not valid UTF-8"):
                    read_gguf_strings(view(gguf([text])), 0, 1)

    @pytest.mark.parametrize(
        ("data", "offset", "count", "message"),
        [
            (gguf([b"abc"]), 0, 2, "2 strings cannot fit in the 11 bytes"),
            (gguf([b"abc"]), 12, 0, "cannot fit in the 0 bytes"),
            (gguf([b"abc"]), 0, 2**64 - 1, "cannot fit"),
            (gguf([b"abcdefgh"]), 0, 2, "the file ends before string 1|string 1"),
            (struct.pack("<Q", 9) + b"abcdefgh", 0, 1, "string 0 claims 9 bytes where 8 are left"),
            (struct.pack("<Q", 2**64 - 1), 0, 1, "string 0 claims 18446744073709551615 bytes"),
            (gguf([b"abcdefgh"]) + b"abc", 0, 2, "ends before string 1"),
        ],
    )
    def test_what_leaves_the_data(self, data: bytes, offset: int, count: int, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            read_gguf_strings(view(data), offset, count)


class TestIndex:
    @settings(derandomize=True, max_examples=200, deadline=None)
    @given(
        texts=st.lists(st.text(max_size=20), max_size=80),
        others=st.lists(st.text(max_size=3), max_size=20),
    )
    @example(texts=SOME, others=["\ud800", "b", ""])
    def test_as_a_dictionary(self, texts: list[str], others: list[str]) -> None:
        index = TextIndex(Texts(texts))
        ids = {text: i for i, text in enumerate(texts) if text}
        assert len(index) == len(ids)
        assert dict(index.items()) == ids
        for text in [*texts, *others]:
            assert index.get(text) == ids.get(text)
            assert index.get(text, -1) == ids.get(text, -1)
            assert (text in index) == (text in ids)
            if text in ids:
                assert index[text] == ids[text]
            else:
                with pytest.raises(KeyError):
                    index[text]
        shown = [text for text in texts if text]
        assert (index.twice is None) == (len(set(shown)) == len(shown))

    def test_many(self) -> None:
        texts = [f"{i * 7919 % 100_003:x}" for i in range(100_000)]
        index = TextIndex(Texts(texts))
        assert [index.get(text) for text in texts] == list(range(len(texts)))
        assert index.twice is None
        again = TextIndex(Texts([*texts, texts[7]]))
        assert again.twice == (7, 100_000)
        assert again[texts[7]] == 100_000

    def test_keeps_its_texts(self) -> None:
        index = TextIndex(Texts(["a", "b"]))
        gc.collect()
        assert index["b"] == 1

    def test_only_texts(self) -> None:
        with pytest.raises(TypeError):
            TextIndex(["a"])  # type: ignore[arg-type]


class TestMerges:
    TOKENS = TextIndex(Texts(["a", "b", "ab", "c", "abc", "", "é", "aé"]))

    @pytest.mark.parametrize("merges", [[], ["a b"], ["a b", "ab c", "a é"]])
    def test_plain(self, merges: list[str]) -> None:
        assert self.TOKENS.merges_are_plain(Texts(merges), [5])

    @pytest.mark.parametrize(
        "merge", ["", " ", "a", "ab", "a  b", "a b ", " a b", "a b c", "a c", "x a", "a x", " ab"]
    )
    def test_not_plain(self, merge: str) -> None:
        assert not self.TOKENS.merges_are_plain(Texts(["a b", merge]), [])

    @pytest.mark.parametrize("excluded", [0, 1, 2])
    def test_excluded(self, excluded: int) -> None:
        assert self.TOKENS.merges_are_plain(Texts(["a b"]), [3])
        assert not self.TOKENS.merges_are_plain(Texts(["a b"]), [3, excluded])
