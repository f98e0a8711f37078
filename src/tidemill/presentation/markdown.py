"""GitHub's Markdown, piece by piece."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"[\\`*_\[\]<>|~#&]")


def escaped(text: str) -> str:
    """Plain text, with nothing in it that Markdown would take for its own."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def cell(text: str) -> str:
    """What is Markdown already, for a table: an upright bar would end the cell."""
    return text.replace("|", "\\|")


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], rules: Sequence[str] | None = None
) -> str:
    """Cells are Markdown without bare upright bars. ``rules`` align the columns: ``---:``."""
    lines = (columns, rules or ["---"] * len(columns), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str, language: str = "") -> str:
    """A block, fenced by more backticks than stand together in it."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
