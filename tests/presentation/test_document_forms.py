"""Blocks in their forms: nothing in a text breaks out of its place."""

from __future__ import annotations

import shlex

import pytest

from tidemill.presentation.document import (
    Bars,
    Bullets,
    Command,
    Heading,
    Paragraph,
    Picture,
    Table,
    as_html,
    as_markdown,
    as_text,
)


def test_hostile_texts_do_not_break_out() -> None:
    text = as_markdown([Table(("a", "b"), (("x | y", "z"),)), Command("````\nrm\n````")])
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
    for block in (Command("<a> & `b`\n"), Picture("<a> & `b`\n")):
        assert as_html([block]) == (
            '<figure><pre tabindex="0"><code>&lt;a&gt; &amp; `b`</code></pre></figure>\n'
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


@pytest.mark.parametrize(
    "command",
    [
        "tidemill bench run --target llama.cpp:smollm2 --scenario short-chat --slo ttft=1,tpot=0.1",
        "A=1 serve --model 'my  model.gguf' \\\n    --key \"$KEY  of mine\" --flag -v x:/y --last",
        "run --path \"$(pull --path 'a b')\" --sh 'it'\"'\"'s' --back a\\ b -c --dd > out",
    ],
)
def test_long_commands_are_broken_and_stay_what_they_are(command: str) -> None:
    for width in range(24, 90):
        shown = as_text([Command(command)], width)
        lines = shown.rstrip("\n").split("\n")
        assert all(line.endswith(" \\") for line in lines[:-1])
        assert all(len(line) <= max(width, 52) for line in lines)
        as_typed = [word for word in shlex.split(shown.replace("\\\n", "")) if word]
        assert as_typed == shlex.split(command.replace("\\\n", ""))
        if width >= 52:  # as long as the longest option with its value, indented
            assert all(len(line) <= width for line in lines), width
    assert len(as_text([Command(command)], 60).splitlines()) > 1


@pytest.mark.parametrize(
    "command",
    [
        "brew install something --with everything    # or apt, which has it too",
        "echo 'a quote without its end --and some options --and more of them",
        "one-word-that-is-longer-than-the-line-can-be-however-it-is-broken",
    ],
)
def test_what_cannot_be_broken_is_left(command: str) -> None:
    """A backslash in a comment goes on with nothing; in a quote it would be part of it."""
    assert as_text([Command(command)], 40) == f"    {command}\n"


@pytest.mark.parametrize("width", [20, 60, 80])
def test_wide_columns_of_a_table_give_way(width: int) -> None:
    words = "some words that take a whole line if they may"
    table = Table(("one", "two", "three", "four"), ((words, words, words, words),) * 2)
    lines = as_text([table], width).splitlines()
    assert max(map(len, lines)) <= max(width, 4 * 20 + 3 * 2)
    assert as_text([Table(("only",), ((words,),))], width).split() == ["only", *words.split()]


def test_pictures_are_not_broken() -> None:
    picture = "| a -b -c -d -e -f -g -h -i -j -k -l -m |"
    assert as_text([Picture(picture)], 20) == f"    {picture}\n"
    assert as_markdown([Picture(picture)]) == f"```\n{picture}\n```\n"


def test_shares_are_drawn() -> None:
    bars = [Bars(("engine", "total"), (("one", (1.0,)), ("half", (0.5,)), ("none", (0.0,))))]
    text = as_text(bars)
    assert "one     1.00 ██████" in text
    assert "half    0.50 ███░░░" in text
    assert "none    0.00 ░░░░░░" in text
    assert "| half | 0.50 |" in as_markdown(bars)
    assert '0.50 <svg class="share"' in as_html(bars)
    assert '<rect width="50"' in as_html(bars)
