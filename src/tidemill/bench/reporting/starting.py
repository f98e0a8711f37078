"""A picture of how engines start, phase by phase."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from matplotlib.patches import Patch

from tidemill.bench.report import seconds
from tidemill.bench.reporting import figures
from tidemill.bench.reporting.document import Picture
from tidemill.bench.reporting.runs import Shown
from tidemill.bench.starts import medians

PHASES = {
    "listening": "until its port answers",
    "ready": "until it is ready",
    "first_token": "until the first token",
}
_STRENGTHS = (0.3, 0.6, 1.0)
"""Of a bar's colour, which is the engine's, by phase."""


def phases(middle: dict[str, float]) -> list[float]:
    """Seconds of each phase, from the seconds since the start at which it ended."""
    ends = [0.0, *(middle[name] for name in PHASES)]
    return [max(0.0, after - before) for before, after in itertools.pairwise(ends)]


@figures.drawn
def bars(name: str, shown: Sequence[Shown]) -> Picture | None:
    """The median start of each target, cold and warm, in phases on top of each other; dots are the
    single starts."""
    rows = [
        (one, cold, middle)
        for one in shown
        for cold in (True, False)
        if (middle := medians(one.result.starts, cold=cold))
    ]
    if not rows:
        return None
    figure = figures.new(1.7 + 0.38 * len(rows))
    axis = figure.subplots()
    said = []
    for row, (one, cold, middle) in enumerate(rows):
        left = 0.0
        lengths = phases(middle)
        for length, strength in zip(lengths, _STRENGTHS, strict=True):
            axis.barh(
                row, length, left=left, height=0.62, color=one.look.colour, alpha=strength,
                linewidth=0,
            )  # fmt: skip
            left += length
        singles = [start.first_token for start in one.result.starts if start.cold == cold]
        axis.plot(
            singles, [row] * len(singles), linestyle="", marker="o", markersize=3.5,
            color=figures.INK, markerfacecolor="none",
        )  # fmt: skip
        axis.annotate(
            seconds(left), (max([left, *singles]), row), xytext=(6, 0),
            textcoords="offset points", va="center", color=figures.INK,
        )  # fmt: skip
        parts = ", ".join(
            f"{seconds(length)} {words}"
            for length, words in zip(lengths, PHASES.values(), strict=True)
        )
        said.append(f"{one.title} {'cold' if cold else 'warm'}: {seconds(left)} ({parts})")
    axis.set_yticks(
        range(len(rows)), [f"{one.title}, {'cold' if cold else 'warm'}" for one, cold, _ in rows]
    )
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xlim(0, 1.18 * axis.get_xlim()[1])
    axis.set_xlabel("seconds since the process was started")
    axis.grid(axis="y", visible=False)
    handles = [Patch(color=figures.MUTED, alpha=a, linewidth=0) for a in _STRENGTHS]
    figures.legend(figure, handles, list(PHASES.values()))
    return figures.finished(
        figure, name, "From the start to the first token: median by phase; dots are single starts",
        f"Seconds from the start of the process to the first token. {'; '.join(said)}.",
    )  # fmt: skip
