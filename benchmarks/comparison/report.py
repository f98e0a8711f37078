"""Rounds as a table and as JSON: medians, ratios taken round by round, lowest and highest."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comparison.rounds import Record
from comparison.works import LOWER_IS_BETTER, UNITS
from peers.protocol import Work


@dataclass(frozen=True)
class Ratio:
    """How many times better the base is than a peer: the median over rounds, and its range."""

    median: float
    lowest: float
    highest: float
    rounds: int


def ratio(base: Record, peer: Record, figure: str) -> Ratio | None:
    """Of the rounds that both have; None where there is none."""
    each = []
    for ours, theirs in zip(base.rounds, peer.rounds, strict=False):
        if ours is not None and theirs is not None:
            quotient = ours[figure] / theirs[figure]
            each.append(1 / quotient if figure in LOWER_IS_BETTER else quotient)
    if not each:
        return None
    return Ratio(statistics.median(each), min(each), max(each), len(each))


def median(record: Record, figure: str) -> float | None:
    values = [figures[figure] for figures in record.rounds if figures is not None]
    return statistics.median(values) if values else None


def rows(
    model: str,
    works: Mapping[str, Work],
    peers: Sequence[str],
    records: Mapping[tuple[str, str], Record],
    base: str = "tidemill",
) -> list[dict[str, Any]]:
    """One row for each work, figure and peer, ready for JSON."""
    found = []
    for name, work in works.items():
        for figure in work.figures:
            for peer in peers:
                record = records[name, peer]
                compared = None
                if peer != base and base in peers:
                    compared = ratio(records[name, base], record, figure)
                found.append(
                    {
                        "model": model, "work": name, "title": work.name, "figure": figure,
                        "unit": UNITS[figure], "peer": peer, "median": median(record, figure),
                        "ratio": None if compared is None else compared.median,
                        "lowest": None if compared is None else compared.lowest,
                        "highest": None if compared is None else compared.highest,
                        "rounds": [f and f[figure] for f in record.rounds],
                        "settings": record.settings, "tried": record.tried,
                        "error": record.error,
                    }
                )  # fmt: skip
    return found


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """The rows as text: a block for each work and figure."""
    lines: list[str] = []
    block = None
    for row in found:
        if block != (row["model"], row["title"], row["figure"]):
            block = (row["model"], row["title"], row["figure"])
            what = "" if row["title"].startswith(row["figure"]) else f", {row['figure']}"
            if row["unit"] == row["figure"] or row["figure"] in LOWER_IS_BETTER:
                what = ""
            lines += ["", f"{row['model']}: {row['title']}{what} ({row['unit']})"]
        lines.append(_line(row))
    return "\n".join(lines).lstrip("\n")


def _line(row: Mapping[str, Any]) -> str:
    start = f"  {row['peer']:18}"
    if row["median"] is None:
        return f"{start}not run: {row['error'] or 'no round was measured'}"
    text = f"{start}{_number(row['median']):>9}"
    if row["ratio"] is not None:
        text += f"{row['ratio']:8.2f}x ({row['lowest']:.2f}, {row['highest']:.2f})"
    else:
        text += " " * 9
    if row["settings"]:
        text += "   " + ", ".join(f"{k}: {v}" for k, v in row["settings"].items())
    if row["error"]:
        text += f"   later rounds lost: {row['error']}"
    return text.rstrip()


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"
