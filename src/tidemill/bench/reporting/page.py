"""A report as one HTML file, which needs nothing else: no network, no scripts, no fonts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from tidemill.bench.reporting.document import (
    Block,
    Bullets,
    Cell,
    Commands,
    Document,
    Notice,
    Paragraph,
    Picture,
    Section,
    Table,
    Terms,
)
from tidemill.bench.reporting.palette import style_sheet

_STYLE = Path(__file__).with_name("page.css")
_TOGETHER = {Picture: "pictures", Table: "tables"}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Browsers then fetch nothing, whatever slipped into the page."""


def html(document: Document) -> str:
    title = escape(document.title)
    inner = "\n".join(_blocks(document.blocks, 2, document.title))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="generator" content="tidemill bench report">
<title>{title}</title>
<style>
{style_sheet()}
{_STYLE.read_text("utf-8").strip()}
</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p>{escape(document.subtitle)}</p>
</header>
{_contents(document)}
<main>
{inner}
</main>
</body>
</html>
"""


def _contents(document: Document) -> str:
    links = "".join(
        f'<li><a href="#{section.name}">{escape(section.title)}</a></li>'
        for section in document.blocks
        if isinstance(section, Section)
    )
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>' if links else ""


def _blocks(blocks: Sequence[Block], level: int, within: str) -> Iterator[str]:
    """``within``: the title of the section that they are in. Pictures that follow each other are
    side by side, as are tables, where there is room."""
    for kind, some in itertools.groupby(blocks, type):
        inner = "\n".join(_block(block, level, within) for block in some)
        yield f'<div class="{_TOGETHER[kind]}">{inner}</div>' if kind in _TOGETHER else inner


def _block(block: Block, level: int, within: str) -> str:
    match block:
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Bullets(items):
            return _list(items)
        case Terms(terms):
            rows = (f"<dt>{escape(name)}</dt><dd>{escape(what)}</dd>" for name, what in terms)
            return f"<dl>{''.join(rows)}</dl>"
        case Notice(title, items):
            return (
                f'<div class="notice" role="note"><p><strong>{escape(title)}</strong></p>'
                f"{_list(items)}</div>"
            )
        case Table():
            return _table(block, within)
        case Commands(lines):
            return f'<pre tabindex="0"><code>{escape(chr(10).join(lines))}</code></pre>'
        case Picture(_, caption, _, drawn):
            return f"<figure>{drawn}<figcaption>{escape(caption)}</figcaption></figure>"
        case Section(name, title, inner):
            heading = f'<h{level} id="{name}-title">{escape(title)}</h{level}>'
            return (
                f'<section id="{name}" aria-labelledby="{name}-title">\n{heading}\n'
                + "\n".join(_blocks(inner, level + 1, title))
                + "\n</section>"
            )


def _list(items: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def _table(table: Table, within: str) -> str:
    caption = escape(table.caption)
    columns = "".join(
        f'<th scope="col"{_class("", i in table.words)}>{escape(name)}</th>'
        if name
        else "<td></td>"
        for i, name in enumerate(table.columns)
    )
    rows = "".join(
        f"<tr>{''.join(_cell(cell, i, i in table.words) for i, cell in enumerate(row))}</tr>"
        for row in table.rows
    )
    # What is wider than the window scrolls by itself, and so has to be reached by keyboard.
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(within)}: '
        f'{caption}"><table>'
        f"<caption>{caption}</caption><thead><tr>{columns}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(cell: Cell, column: int, words: bool) -> str:
    if column == 0:
        return f'<th scope="row">{escape(cell.text)}</th>'
    return f"<td{_class(cell.tone, words)}>{escape(cell.text)}</td>"


def _class(tone: str, words: bool) -> str:
    names = " ".join(filter(None, (tone, "words" if words else "")))
    return f' class="{names}"' if names else ""
