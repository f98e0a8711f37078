"""A report as blocks, and the two forms that it is shown in: for a terminal, and as Markdown."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Sequence

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
class Code:
    """``name`` is a file's, or empty for what is typed."""

    text: str
    name: str = ""


# Widest column of a table in text, but for the last.
_WIDEST = 34

Block = Heading | Paragraph | Bullets | Table | Code


def as_markdown(blocks: Iterable[Block]) -> str:
    """GitHub's Markdown."""
    made = []
    for block in blocks:
        match block:
            case Heading(text, level):
                made.append(f"{'#' * level} {text}")
            case Paragraph(text):
                made.append(text)
            case Bullets(items):
                made.append("\n".join(f"- {item}" for item in items))
            case Table(columns, rows):
                made.append("\n".join(_markdown_row(row) for row in _ruled(columns, rows)))
            case Code(text, name):
                fence = "`" * max(3, _longest_run(text) + 1)
                title = f"`{name}`:\n\n" if name else ""
                made.append(f"{title}{fence}{'' if name else 'sh'}\n{text.rstrip()}\n{fence}")
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
            case Code(text, name):
                title = f"{name}:\n" if name else ""
                made.append(title + textwrap.indent(text.rstrip(), "    "))
    return "\n\n".join(made) + "\n"


def _bullet(item: str, width: int) -> str:
    return "- " + "\n  ".join(_wrapped(item, width - 2))


def _ruled(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    return [columns, ["---"] * len(columns), *rows]


def _markdown_row(row: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest


def _text_table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """Columns as wide as they need, up to a share of the width; the last has what is left."""
    lines = [columns, *rows]
    widths = [min(max(len(row[i]) for row in lines), _WIDEST) for i in range(len(columns) - 1)]
    widths.append(max(20, width - sum(widths) - 2 * len(widths)))
    made = []
    for row in lines:
        cells = [_wrapped(cell, w) for cell, w in zip(row, widths, strict=True)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            padded = (f"{part:<{w}}" for part, w in zip(parts, widths, strict=True))
            made.append("  ".join(padded).rstrip())
    return "\n".join(made)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most ``width``, but for words that are longer: URLs are not broken."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
