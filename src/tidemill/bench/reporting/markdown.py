"""A report as Markdown (GitHub's), with its pictures in files beside it."""

from __future__ import annotations

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
from tidemill.presentation import markdown as gfm
from tidemill.presentation.markdown import escaped


def markdown(document: Document, folder: str) -> str:
    """``folder``: where the pictures lie, as seen from the file; each as NAME.svg."""
    head = [f"# {escaped(document.title)}", escaped(document.subtitle)]
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
                yield escaped(text)
            case Bullets(items):
                yield _list(items)
            case Terms(terms):
                yield "\n".join(f"- **{escaped(name)}**: {escaped(what)}" for name, what in terms)
            case Notice(title, items):
                yield "\n".join(
                    f"> {line}".rstrip() for line in (f"**{escaped(title)}**", "", *_items(items))
                )
            case Table():
                yield f"{escaped(block.caption)}:"
                yield _table(block)
            case Commands(lines):
                yield gfm.code("\n".join(lines), "console")
            case Picture(name, caption, alt, _):
                yield f"![{escaped(alt)}]({folder}/{quote(name)}.svg)"
                yield f"*{escaped(caption)}*"
            case Section(_, title, inner):
                yield f"{'#' * level} {escaped(title)}"
                yield from _blocks(inner, level + 1, folder)


def _items(items: Sequence[str]) -> list[str]:
    return [f"- {escaped(item)}" for item in items]


def _list(items: Sequence[str]) -> str:
    return "\n".join(_items(items))


def _table(table: Table) -> str:
    rules = [":---" if i == 0 or i in table.words else "---:" for i in range(len(table.columns))]
    rows = [[escaped(cell.text) for cell in row] for row in table.rows]
    return gfm.table([escaped(name) for name in table.columns], rows, rules)
