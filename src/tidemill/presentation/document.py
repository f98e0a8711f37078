"""A report as blocks, and the forms that it is shown in: for a terminal, as Markdown, as HTML.

Text in blocks is ours and has marks: `code` between backticks, and addresses. (The reports of
``bench`` have pictures and sections, and text that others wrote, in which nothing is a mark: blocks
of their own, in ``bench/reporting/document.py``.)
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Sequence
from html import escape

from tidemill.presentation import markdown
from tidemill.records import dataclass


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """Shares from 0 to 1, by row and column; a row begins with its name."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float, ...]], ...]


@dataclass(frozen=True, slots=True)
class Command:
    """What is typed into a shell."""

    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """One that is made of characters."""

    text: str


# Widest column of a table in text, but for the last; and what that has at least, if it needs it.
_WIDEST = 34
_LEAST = 20

# Characters of a whole bar in text.
_BAR = 6

Block = Heading | Paragraph | Bullets | Table | Bars | Command | Picture


def as_markdown(blocks: Iterable[Block]) -> str:
    """GitHub's Markdown."""
    made = []
    for block in blocks:
        match block:
            case Heading(text, level):
                made.append(f"{'#' * level} {_markdown(text)}")
            case Paragraph(text):
                made.append(_markdown(text))
            case Bullets(items):
                made.append("\n".join(f"- {_markdown(item)}" for item in items))
            case Table(columns, rows):
                made.append(_markdown_table(columns, rows))
            case Bars(columns, bars):
                cells = [(row, *(f"{share:.2f}" for share in shares)) for row, shares in bars]
                made.append(_markdown_table(columns, cells))
            case Command(text):
                made.append(markdown.code(text.rstrip(), "sh"))
            case Picture(text):
                made.append(markdown.code(text.rstrip()))
    return "\n\n".join(made) + "\n"


def as_text(blocks: Iterable[Block], width: int = 88) -> str:
    """Plain text, at most ``width`` characters wide except for commands."""
    made = []
    for block in blocks:
        match block:
            case Heading(text, level):
                made.append(text if level > 2 else f"{text}\n{'=-'[level - 1] * len(text)}")
            case Paragraph(text):
                made.append("\n".join(_wrapped(text, width)))
            case Bullets(items):
                made.append("\n".join(_bullet(item, width) for item in items))
            case Table(columns, rows):
                made.append(_text_table(columns, rows, width))
            case Bars(columns, bars):
                cells = [(row, *(f"{s:.2f} {_bar(s)}" for s in shares)) for row, shares in bars]
                made.append(_text_table(columns, cells, width))
            case Command(text):
                lines = itertools.chain(*(_broken(line, width - 4) for line in text.splitlines()))
                made.append(textwrap.indent("\n".join(lines), "    "))
            case Picture(text):
                made.append(textwrap.indent(text.rstrip(), "    "))
    return "\n\n".join(made) + "\n"


def as_html(blocks: Iterable[Block]) -> str:
    """Elements for the body of a page that brings the style; all text is escaped."""
    made = []
    for block in blocks:
        match block:
            case Heading(text, level):
                made.append(f"<h{level}>{_inline(text)}</h{level}>")
            case Paragraph(text):
                made.append(f"<p>{_inline(text)}</p>")
            case Bullets(items):
                made.append(f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</ul>")
            case Table(columns, rows):
                made.append(_html_table(columns, [[_inline(c) for c in row] for row in rows]))
            case Bars(columns, bars):
                cells = [[_inline(row), *map(_html_bar, shares)] for row, shares in bars]
                made.append(_html_table(columns, cells))
            case Command(text) | Picture(text):
                code = f'<pre tabindex="0"><code>{escape(text.rstrip())}</code></pre>'
                made.append(f"<figure>{code}</figure>")
    return "\n".join(made) + "\n"


_SPECIAL = re.compile(r"[\\<\[*]")  # in Markdown
# What stands between backticks is code; an address is a link, without the full stop after it.
_MARKED = re.compile(r"`([^`\n]+)`|(https?://[^\s<>\"']*[^\s<>\"'.,;:)])")


def _inline(text: str) -> str:
    made, at = [], 0
    for found in _MARKED.finditer(text):
        made.append(escape(text[at : found.start()]))
        code, url = found.groups()
        if code is not None:
            made.append(f"<code>{escape(code)}</code>")
        else:
            made.append(f'<a href="{escape(url)}" rel="noreferrer">{escape(url)}</a>')
        at = found.end()
    return "".join(made) + escape(text[at:])


def _html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already. It can be scrolled by itself, with the keyboard too."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for first, *cells in rows
    )
    return (
        '<div class="scroll" tabindex="0" role="group" aria-label="Table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _html_bar(share: float) -> str:
    return (
        f"{share:.2f} "
        '<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="100" height="8"/><rect width="{100 * share:.0f}" height="8"/></svg>'
    )


def _bar(share: float) -> str:
    full, eighths = divmod(round(8 * _BAR * share), 8)
    bar = "\u2588" * full + (chr(0x2590 - eighths) if eighths else "")
    return bar + "\u2591" * (_BAR - len(bar))


def _bullet(item: str, width: int) -> str:
    return "- " + "\n  ".join(_wrapped(item, width - 2))


def _markdown_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def cells(row: Iterable[str]) -> list[str]:
        return [markdown.cell(_markdown(text)) for text in row]

    return markdown.table(cells(columns), map(cells, rows))


def _markdown(text: str) -> str:
    """Text in which nothing but what is marked is taken for Markdown or HTML."""
    made, at = [], 0
    for found in _MARKED.finditer(text):
        made += [_SPECIAL.sub(r"\\\g<0>", text[at : found.start()]), found[0]]
        at = found.end()
    return "".join(made) + _SPECIAL.sub(r"\\\g<0>", text[at:])


def _text_table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """Columns as wide as they need, up to a share of the width; the last has what is left, and the
    widest give way where that is too little."""
    lines = [columns, *rows]
    *widths, last = (max(map(len, column)) for column in zip(*lines, strict=True))
    widths = [min(each, _WIDEST) for each in widths]
    left = width - sum(widths) - 2 * len(widths)
    while left < min(last, _LEAST) < max(widths, default=0):
        widths[widths.index(max(widths))] -= 1
        left += 1
    widths.append(max(left, min(last, _LEAST)))
    made = []
    for row in lines:
        cells = [_wrapped(cell, w) for cell, w in zip(row, widths, strict=True)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            padded = (f"{part:<{w}}" for part, w in zip(parts, widths, strict=True))
            made.append("  ".join(padded).rstrip())
    return "\n".join(made)


# A word of a shell: what is quoted belongs to it.
_WORD = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""")


def _broken(line: str, width: int) -> list[str]:
    """A line of a command, broken before options if it is too long, so that it still means the
    same: with a backslash, which no comment takes, and not within quotes."""
    body = line.removesuffix(" \\")
    words = _WORD.findall(body)
    left_over = _WORD.sub("", body).strip()  # a quote without its other one
    if len(line) <= width or not words or left_over or any(word[0] == "#" for word in words):
        return [line]
    options: list[str] = []  # each with its values
    for word in words:
        if options and word[0] != "-":
            options[-1] += " " + word
        else:
            options.append(word)
    indent = line[: len(line) - len(line.lstrip())]
    made = [indent + options[0]]
    for option in options[1:]:
        if len(made[-1]) + len(option) + len("  \\") <= width:
            made[-1] += " " + option
        else:
            made[-1] += " \\"
            made.append(f"{indent or '    '}{option}")
    return [*made[:-1], made[-1] + line[len(body) :]]


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most ``width``, but for words that are longer: URLs are not broken."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
