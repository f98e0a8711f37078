"""What files and endpoints say, fit for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Lines of text in which nothing moves the cursor, hides text or turns it around."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
