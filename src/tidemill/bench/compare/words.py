"""A comparison as text for a terminal, and as Markdown."""

from __future__ import annotations

import shlex

from tidemill.bench.compare.base import Comparison, Figure, Side, Unit
from tidemill.bench.measures import LATENCIES
from tidemill.bench.report import seconds, size
from tidemill.bench.statistics import LEVEL, Estimate
from tidemill.presentation.markdown import escaped, table

_HEADER = ("", "A", "B", f"B / A ({LEVEL:.0%} interval)", "B is", "effect")
# Of Cliff's delta: Romano et al., "Exploring methods for evaluating group differences" (2006).
_EFFECTS = ((0.147, "negligible"), (0.33, "small"), (0.474, "medium"), (1.0, "large"))


def text(comparison: Comparison) -> str:
    """Several lines; what makes the comparison unfair comes first."""
    rows = [_HEADER, *map(row, comparison.figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{comparison.scenario}: B against A", *_who(comparison)]
    lines += [f"  !! {alarm}" for alarm in comparison.alarms]
    for first, *numbers, verdict, effect in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=False)]
        cells += [verdict.ljust(widths[-2]), effect]
        lines.append(("  " + "  ".join(cells)).rstrip())
    lines += [f"  warning: {warning}" for warning in comparison.warnings]
    lines += [f"  answers: {answers}" for answers in comparison.answers]
    lines += [f"  note: {note}" for note in _notes(comparison)]
    return "\n".join(lines)


def markdown(comparison: Comparison) -> str:
    """The same, to paste into an issue or a page."""
    lines = [f"### {comparison.scenario}: B against A", ""]
    lines += [f"- {escaped(line.strip())}" for line in _who(comparison)]
    lines += ["", *(f"> **{escaped(alarm)}**\n>" for alarm in comparison.alarms)]
    rows = ([escaped(text) for text in row(figure)] for figure in comparison.figures)
    lines += ["", table(_HEADER, rows, ("---",) + ("---:",) * 3 + ("---",) * 2)]
    said = [f"Warning: {warning}" for warning in comparison.warnings]
    said += [f"Answers: {answers}" for answers in comparison.answers] + _notes(comparison)
    return "\n".join([*lines, "", *(f"- {escaped(line)}" for line in said)])


def _who(comparison: Comparison) -> list[str]:
    return [f"  A  {_side(comparison.a)}", f"  B  {_side(comparison.b)}"]


def _side(side: Side) -> str:
    target = side.first.target
    who = f"{target.engine} {target.version}" if target.engine else target.url
    runs = f"{len(side.results)} runs" if len(side.results) > 1 else "1 run"
    arguments = f" · with {shlex.join(target.arguments)}" if target.arguments else ""
    return f"{who} · {target.model}{arguments} · {side.label} ({runs})"


def _notes(comparison: Comparison) -> list[str]:
    notes = list(comparison.notes)
    if any(figure.effect is not None for figure in comparison.figures):
        notes.insert(
            0,
            "effect: Cliff's delta of single requests (of gaps for ITL), from -1 (all of B's are "
            "smaller) over 0 to 1 (all are larger)",
        )
    return notes


def row(figure: Figure) -> tuple[str, ...]:
    """Of the table: name, A, B, change, verdict, effect."""
    name, _, rest = figure.name.partition(" ")
    title = f"{name.upper()} {rest}" if name in LATENCIES else figure.name
    return (
        title,
        _value(figure.a, figure.unit),
        _value(figure.b, figure.unit),
        _change(figure),
        figure.verdict or f"- ({figure.why})",
        "" if figure.effect is None else f"{figure.effect:+.2f} {_size(figure.effect)}",
    )


def _value(value: float, unit: Unit) -> str:
    if unit == "seconds":
        return seconds(value)
    if unit == "share":
        return f"{value:.1%}"
    if unit == "bytes":
        return size(round(value))
    suffix = {"per second": "/s", "joules": " J", "tokens": "", "money": ""}[unit]
    return f"{value:.3g}{suffix}" if value < 100 else f"{value:.0f}{suffix}"


def _change(figure: Figure) -> str:
    change = figure.change
    parts = [change.value, change.low, change.high] if isinstance(change, Estimate) else [change]
    if figure.is_ratio:
        # An end that is not 1 shall not be read as 1.
        narrow = 0 < max(parts) - min(parts) < 0.1
        said = [f"{part:.{3 if narrow else 2}f}" for part in parts]
    elif figure.unit == "share":
        said = [f"{100 * part:+.1f}" for part in parts]
        said[0] += " points"
    else:
        said = [f"{part:+.3g}" for part in parts]
    return said[0] + (f" ({said[1]} to {said[2]})" if len(said) > 1 else "")


def _size(effect: float) -> str:
    return next(name for limit, name in _EFFECTS if abs(effect) <= limit)
