"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as they need to be; the last one is free."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            [*(c.ljust(w) for c, w in zip(line[:-1], widths, strict=False)), line[-1]]
        ).rstrip()
        for line in lines
    )
