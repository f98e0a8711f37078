"""Rounds as a table and as JSON: medians, ratios taken round by round, lowest and highest."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from comparison.machine import Limits, Load
from comparison.rounds import Records
from comparison.works import LOWER_IS_BETTER, UNITS
from peers import PEERS
from peers.protocol import Work

Row = dict[str, Any]


def rows(
    model: str,
    works: Mapping[str, Work],
    peers: Sequence[str],
    records: Records,
) -> list[Row]:
    """One row for each work, figure and peer, ready for JSON."""
    found = []
    for name, work in works.items():
        for figure in work.figures:
            for peer in peers:
                record = records[name, peer]
                found.append(
                    {
                        "model": model, "work": name, "title": work.name, "figure": figure,
                        "unit": UNITS[figure], "peer": peer,
                        "rounds": [f and f[figure] for f in record.rounds],
                        "settings": record.settings, "tried": record.tried,
                        "error": record.error,
                    }
                )  # fmt: skip
    return compared(found)


def compared(found: Sequence[Row], base: str = "tidemill") -> list[Row]:
    """The rows with their medians, and the ratios to the base's row of the same work and figure.

    A ratio says how many times better the base is: the median over the rounds that both have, the
    lowest and the highest.
    """
    bases = {_subject(row): row["rounds"] for row in found if row["peer"] == base}
    more = []
    for row in found:
        values = [value for value in row["rounds"] if value is not None]
        each = []
        if row["peer"] != base:
            pairs = zip(bases.get(_subject(row), ()), row["rounds"], strict=False)
            better = [(b, a) if row["figure"] in LOWER_IS_BETTER else (a, b) for a, b in pairs
                      if a is not None and b is not None]  # fmt: skip
            each = [a / b for a, b in better]
        more.append(
            {
                **row,
                "median": statistics.median(values) if values else None,
                "measured": len(values),
                "ratio": statistics.median(each) if each else None,
                "lowest": min(each, default=None),
                "highest": max(each, default=None),
            }
        )
    return more


def merged(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several runs as one: the rounds of one after those of another, so that a ratio is still taken
    within a round of one run. Whoever took no part in a run has no figures in its rounds.

    The settings shown are those of the last run; why a peer failed is told unless another run has
    figures of it.
    """
    runs = sorted(reports, key=lambda report: str(report["when"]))
    parts: dict[tuple[str, ...], dict[str, list[tuple[int, Row]]]] = {}
    for i, report in enumerate(runs):
        for row in report["rows"]:
            parts.setdefault(_subject(row), {}).setdefault(row["peer"], []).append((i, row))
    found = []
    for of_subject in parts.values():
        lengths = [
            max((len(row["rounds"]) for part in of_subject.values() for j, row in part if i == j),
                default=0)
            for i in range(len(runs))
        ]  # fmt: skip
        for peer in (name for name in PEERS if name in of_subject):
            rounds: list[float | None] = []
            by_run = dict(of_subject[peer])
            for i, length in enumerate(lengths):
                own = by_run[i]["rounds"] if i in by_run else []
                rounds += [*own, *[None] * (length - len(own))]
            last = of_subject[peer][-1][1]
            error = None if any(rounds) else last["error"]
            found.append({**last, "rounds": rounds, "error": error})
    peers = {peer["name"]: peer for report in runs for peer in report["peers"]}
    absent = {name: why for report in runs for name, why in report["absent"].items()}
    return {
        "when": runs[-1]["when"],
        "limits": runs[-1]["limits"],
        "loads": [load for report in runs for load in report["loads"]],
        "peers": [peers[name] for name in PEERS if name in peers],
        "absent": {name: why for name, why in absent.items() if name not in peers},
        "rows": compared(found),
    }


def _subject(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["model"], row["work"], row["figure"]


def text(report: Mapping[str, Any]) -> str:
    """What was measured by whom, on what, how quiet it was, and the table."""
    lines = [f"measured limits: {Limits(**report['limits'])}"]
    lines += [f"{p['name']}: {p['version']}; timed by {p['timed']}" for p in report["peers"]]
    lines += [f"{name}: not to be had: {why}" for name, why in report["absent"].items()]
    loads = [Load(load["busy"], load["stolen"], load["average"]) for load in report["loads"]]
    noisy = [str(load) for load in loads if not load.quiet]
    lines.append(f"before {len(noisy)} of {len(loads)} rounds the machine was not quiet")
    return "\n".join(
        [*lines, *noisy, "", table(report["rows"]), "",
         "median of so many rounds; how many times better Tidemill is, within a round: median "
         "(lowest, highest)"]
    )  # fmt: skip


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
    text = f"{start}{_number(row['median']):>9} of {row['measured']}"
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
