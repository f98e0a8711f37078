"""A picture of how engines start, phase by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.patches import Patch

from tidemill.bench.report import seconds
from tidemill.bench.reporting import figures
from tidemill.bench.reporting.document import Picture
from tidemill.bench.reporting.runs import Shown
from tidemill.bench.starts import medians

PHASES = {
    "mapped": "until the model is mapped",
    "listening": "until its port answers",
    "ready": "until it is ready",
    "first_token": "until the first token",
}
_STRENGTHS = {"mapped": 0.2, "listening": 0.4, "ready": 0.65, "first_token": 1.0}
"""Of a bar's colour, which is the engine's."""


def phases(middle: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each phase, in the order in which they end, from when that was since the start."""
    ends = sorted((middle[name], i, name) for i, name in enumerate(PHASES) if name in middle)
    starts = [0.0, *(end for end, _, _ in ends)]
    return {name: end - start for (end, _, name), start in zip(ends, starts, strict=False)}


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
    figure = figures.new(1.6 + 0.46 * len(rows))
    axis = figure.subplots()
    said = []
    for row, (one, cold, middle) in enumerate(rows):
        left = 0.0
        lengths = phases(middle)
        for phase, length in lengths.items():
            axis.barh(
                row, length, left=left, height=0.46, color=one.look.colour, linewidth=0,
                alpha=_STRENGTHS[phase],
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
        axis.annotate(
            f"{figures.short(one.label)}, {'cold' if cold else 'warm'}",
            (0, row - 0.27), xytext=(2, 1), textcoords="offset points", color=figures.INK,
        )  # fmt: skip
        parts = ", ".join(f"{seconds(n)} {PHASES[phase]}" for phase, n in lengths.items())
        said.append(f"{one.title} {'cold' if cold else 'warm'}: {seconds(left)} ({parts})")
    axis.set_yticks([])
    axis.set_ylim(len(rows) - 0.6, -0.7)
    axis.set_xlim(0, 1.18 * axis.get_xlim()[1])
    axis.set_xlabel("seconds since the process was started")
    axis.grid(axis="y", visible=False)
    known = [phase for phase in PHASES if any(phase in middle for _, _, middle in rows)]
    handles = [Patch(color=figures.MUTED, alpha=_STRENGTHS[phase], linewidth=0) for phase in known]
    figures.legend(figure, handles, [PHASES[phase] for phase in known])
    return figures.finished(
        figure, name, "From the start to the first token: median by phase; dots are single starts",
        f"Seconds from the start of the process to the first token. {'; '.join(said)}.",
    )  # fmt: skip
