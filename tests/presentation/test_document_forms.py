"""Blocks in their forms: nothing in a text breaks out of its place."""

from __future__ import annotations

import pytest

from tidemill.presentation.document import (
    Bars,
    Bullets,
    Code,
    Heading,
    Paragraph,
    Table,
    as_html,
    as_markdown,
    as_text,
)


def test_hostile_texts_do_not_break_out() -> None:
    text = as_markdown([Table(("a", "b"), (("x | y", "z"),)), Code("````\nrm\n````")])
    assert "| x \\| y | z |" in text
    assert "`````sh" in text
    assert as_text([Bullets(("a" * 200,))], 40).strip() == "- " + "a" * 200


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a < b & c", "a &lt; b &amp; c"),
        ("run `a <b>` now", "run <code>a &lt;b&gt;</code> now"),
        (
            "see https://a.test/b?c=1&d=2.",
            'see <a href="https://a.test/b?c=1&amp;d=2" rel="noreferrer">'
            "https://a.test/b?c=1&amp;d=2</a>.",
        ),
        ("javascript:alert(1)", "javascript:alert(1)"),
        ('https://a.test/"onclick=', '<a href="https://a.test/" rel="noreferrer">'
         "https://a.test/</a>&quot;onclick="),
        ("a ` b", "a ` b"),
    ],
)  # fmt: skip
def test_html_is_escaped(text: str, expected: str) -> None:
    assert as_html([Paragraph(text)]) == f"<p>{expected}</p>\n"
    assert f"<li>{expected}</li>" in as_html([Bullets((text,))])
    assert expected in as_html([Table((text,), ((text, text),))])
    assert as_html([Code("<a> & `b`\n", "<f>")]) == (
        "<figure><figcaption>&lt;f&gt;</figcaption>"
        '<pre tabindex="0"><code>&lt;a&gt; &amp; `b`</code></pre></figure>\n'
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<img src=x onerror=alert(1)>", "\\<img src=x onerror=alert(1)>"),
        ("[m](javascript:alert(1))", "\\[m](javascript:alert(1))"),
        ("a **b** c\\", "a \\*\\*b\\*\\* c\\\\"),
        ("run `a <b>` at https://a.test/[b]", "run `a <b>` at https://a.test/[b]"),
    ],
)
def test_markdown_is_escaped(text: str, expected: str) -> None:
    assert as_markdown([Paragraph(text)]) == f"{expected}\n"
    assert f"# {expected}" in as_markdown([Heading(text)])
    assert f"- {expected}" in as_markdown([Bullets((text,))])
    assert f"| {expected} | {expected} |" in as_markdown([Table(("a", "b"), ((text, text),))])


def test_shares_are_drawn() -> None:
    bars = [Bars(("engine", "total"), (("one", (1.0,)), ("half", (0.5,)), ("none", (0.0,))))]
    text = as_text(bars)
    assert "one     1.00 ██████" in text
    assert "half    0.50 ███░░░" in text
    assert "none    0.00 ░░░░░░" in text
    assert "| half | 0.50 |" in as_markdown(bars)
    assert '0.50 <svg class="share"' in as_html(bars)
    assert '<rect width="50"' in as_html(bars)
