"""Figures and strings of others as words."""

from __future__ import annotations

import datetime
import unicodedata
from pathlib import PurePath

from tidemill.bench.measures import Slo
from tidemill.bench.report import estimate, percent
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
    return NONE if found is None else estimate(found)


def share(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.0%}" if value in (0, 1) else percent(value)


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


def listed(names: list[str]) -> str:
    """a, b and c"""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def model(result: Result) -> str:
    """What it is called, not where it lies."""
    return clean(PurePath(result.target.model).name) or NONE


def moment(when: str) -> str:
    """A time in UTC to the minute."""
    at = datetime.datetime.fromisoformat(when)
    return f"{at.astimezone(datetime.UTC):%Y-%m-%d\N{NO-BREAK SPACE}%H:%M}"


def count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def limits(slo: Slo | None) -> str:
    """TTFT 1 s, TPOT 100 ms"""
    if slo is None:
        return NONE
    values = ((name, getattr(slo, name)) for name in slo.__struct_fields__)
    return ", ".join(f"{name.upper()} {plain(limit)}" for name, limit in values if limit)


def plain(value: float) -> str:
    """Seconds that somebody chose, with no digits that were not."""
    return f"{value:g} s" if value >= 1 else f"{1000 * value:g} ms"
