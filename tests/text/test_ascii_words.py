"""ASCII text is split without the library just as the library splits it."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from tidemill.text.ascii_words import AsciiSplitter, translate
from tidemill.text.pretokenizers import PRE_TOKENIZERS

ALL = sorted({pre.patterns for pre in PRE_TOKENIZERS.values()})
SPLITTERS = {patterns: AsciiSplitter(patterns) for patterns in ALL}
LIBRARY = {
    patterns: pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    )
    for patterns in ALL
}
ASCII = "".join(map(chr, range(128)))

TEXTS = st.one_of(
    st.text(alphabet=ASCII, max_size=60),
    st.text(alphabet="aB '12s\n\r\t.,/$|", max_size=60),
    st.lists(st.sampled_from(["don't", "I'LL", "12345", "camelCase", "  ", "\r\n\n", "x=1;"])).map(
        "".join
    ),
)


@settings(derandomize=True, max_examples=400, deadline=None)
@given(text=TEXTS)
@example(text=ASCII)
@example(text=" ".join(ASCII))
@example(text="HTTPServer's  parse_url(x[0])\t\n\n  1234567 ...!?\r\n/ 'S 'Re \x0b\x0c\x1c \x1f ")
def test_pieces_are_the_librarys(text: str) -> None:
    for patterns in ALL:
        expected = [piece for piece, _ in LIBRARY[patterns].pre_tokenize_str(text)] if text else []
        assert SPLITTERS[patterns].split(text) == expected, patterns


@pytest.mark.parametrize("name", ["L", "Lu", "Ll", "N", "P", "S"])
def test_classes_have_the_characters_of_their_categories(name: str) -> None:
    members = re.findall(translate(rf"\p{{{name}}}"), ASCII)
    assert members == [char for char in ASCII if unicodedata.category(char).startswith(name)]
    assert re.findall(translate(rf"[^\p{{{name}}}]"), ASCII) == [
        char for char in ASCII if char not in members
    ]
