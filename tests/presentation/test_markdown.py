"""Pieces of Markdown: what is in them stays in them."""

from __future__ import annotations

import pytest

from tidemill.presentation import markdown


def test_a_table() -> None:
    assert markdown.table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert markdown.table(("a",), [], ["---:"]) == "| a |\n| ---: |"


def test_a_bar_does_not_end_a_cell() -> None:
    assert markdown.cell("`x | y`") == "`x \\| y`"


def test_plain_text_has_nothing_special() -> None:
    text = r"\ ` * _ [a](b) <b> | ~ # &amp; plain. 1-2!"
    shown = markdown.escaped(text)
    assert shown.replace("\\", "") == text.replace("\\", "")
    for i, character in enumerate(shown):
        if character in "`*_[]<>|~#&":
            assert shown[i - 1] == "\\"
    assert markdown.escaped("\\") == "\\\\"


@pytest.mark.parametrize(
    ("text", "fence"),
    [("ls", "```"), ("a `b` c", "```"), ("```\nx\n```", "````"), ("`" * 9, "`" * 10)],
)
def test_code_does_not_end_its_fence(text: str, fence: str) -> None:
    assert markdown.code(text, "sh") == f"{fence}sh\n{text}\n{fence}"
