"""A report as blocks. ``page.py`` shows them as HTML, ``markdown.py`` as Markdown: both have the
same words, numbers and pictures, as they are made of the same blocks.

Text in blocks is plain text, whatever it holds: who shows it escapes it.
"""

from __future__ import annotations

from typing import Literal

from tidemill.records import dataclass

Tone = Literal["", "good", "bad", "quiet"]
"""How a cell is to be read, beside its words: never by colour alone."""


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """What each of some words or names stands for."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """What a reader must know before the figures."""

    title: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """The first cell of each row is its header. ``words``: columns that hold words, not figures."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    words: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Commands:
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """``name`` is unique in a report, and good as a file's name. ``svg`` is one element, with its
    colours as variables (``svg.py``). ``alt``: what it shows, for those who do not see it."""

    name: str
    caption: str
    alt: str
    svg: str


@dataclass(frozen=True, slots=True)
class Section:
    """``name`` is unique in a report, for links."""

    name: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    subtitle: str
    blocks: tuple[Block, ...]


Block = Paragraph | Bullets | Terms | Notice | Table | Commands | Picture | Section
