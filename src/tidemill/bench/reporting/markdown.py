"""A report as Markdown (GitHub's), with its pictures in files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from tidemill.bench.reporting.document import (
    Block,
    Bullets,
    Commands,
    Document,
    Notice,
    Paragraph,
    Picture,
    Section,
    Table,
    Terms,
)

_SPECIAL = re.compile(r"[\\`*_\[\]<>|~#&]")


def markdown(document: Document, folder: str) -> str:
    """``folder``: where the pictures lie, as seen from the file; each as NAME.svg."""
    head = [f"# {plain(document.title)}", plain(document.subtitle)]
    return "\n\n".join([*head, *_blocks(document.blocks, 2, quote(folder))]) + "\n"


def pictures(blocks: Sequence[Block]) -> Iterator[Picture]:
    """All that are in a report."""
    for block in blocks:
        if isinstance(block, Picture):
            yield block
        elif isinstance(block, Section):
            yield from pictures(block.blocks)


def _blocks(blocks: Sequence[Block], level: int, folder: str) -> Iterator[str]:
    for block in blocks:
        match block:
            case Paragraph(text):
                yield plain(text)
            case Bullets(items):
                yield _list(items)
            case Terms(terms):
                yield "\n".join(f"- **{plain(name)}**: {plain(what)}" for name, what in terms)
            case Notice(title, items):
                yield "\n".join(
                    f"> {line}".rstrip() for line in (f"**{plain(title)}**", "", *_items(items))
                )
            case Table():
                yield f"{plain(block.caption)}:"
                yield _table(block)
            case Commands(lines):
                yield _code("\n".join(lines))
            case Picture(name, caption, alt, _):
                yield f"![{plain(alt)}]({folder}/{quote(name)}.svg)"
                yield f"*{plain(caption)}*"
            case Section(_, title, inner):
                yield f"{'#' * level} {plain(title)}"
                yield from _blocks(inner, level + 1, folder)


def plain(text: str) -> str:
    """Plain text, with nothing in it that Markdown would take for its own."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def _items(items: Sequence[str]) -> list[str]:
    return [f"- {plain(item)}" for item in items]


def _list(items: Sequence[str]) -> str:
    return "\n".join(_items(items))


def _table(table: Table) -> str:
    rules = [":---" if i == 0 or i in table.words else "---:" for i in range(len(table.columns))]
    rows = [[plain(cell.text) for cell in row] for row in table.rows]
    return "\n".join(_row(row) for row in ([plain(name) for name in table.columns], rules, *rows))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}console\n{text}\n{fence}"
