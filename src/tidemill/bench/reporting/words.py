"""Figures and strings of others as words."""

from __future__ import annotations

import datetime
import unicodedata
from pathlib import PurePath

from tidemill.bench.report import seconds
from tidemill.bench.result import Result
from tidemill.bench.statistics import Estimate

_LONGEST = 80

NONE = "–"


def clean(text: str, longest: int = _LONGEST) -> str:
    """What an endpoint or a file says, in a line: without characters that control how text is
    shown (some turn it around, and XML has no place for others), and not too long."""
    line = " ".join(text.split())
    line = "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Cn") else c
        for c in line
    )
    return line if len(line) <= longest else line[: longest - 1] + "…"


def interval(found: Estimate | None) -> str:
    """A latency, with its interval in brackets."""
    if found is None:
        return NONE
    return f"{seconds(found.value)} ({seconds(found.low)} to {seconds(found.high)})"


def share(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.0%}" if value in (0, 1) else f"{value:.1%}"


def rate(value: float | None) -> str:
    """With three digits that matter."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    if value >= 100:
        return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def ratio(value: float) -> str:
    return f"{value:.2f}×" if value < 10 else f"{value:.0f}×"


def size(count: int) -> str:
    """Bytes."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def listed(names: list[str]) -> str:
    """a, b and c"""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def model(result: Result) -> str:
    """What it is called, not where it lies."""
    return clean(PurePath(result.target.model).name) or NONE


def moment(when: str) -> str:
    """A time in UTC to the minute; whatever a file says in its place as it is."""
    try:
        at = datetime.datetime.fromisoformat(when)
    except ValueError:
        return clean(when)
    return f"{at.astimezone(datetime.UTC):%Y-%m-%d %H:%M}"


def count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
