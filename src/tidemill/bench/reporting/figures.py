"""What all pictures have in common: size, type, axes in seconds, legends."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import matplotlib
import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from tidemill.bench.reporting import svg
from tidemill.bench.reporting.document import Picture
from tidemill.bench.reporting.palette import stand_in
from tidemill.bench.reporting.words import clean, plain

WIDTH, HEIGHT = 4.6, 3.3
"""Inches; of each picture. Small, so that type is as large on a phone."""

_LONGEST = 46
"""Letters that fit into a line."""

_APART = 0.13
"""How far ticks are apart at least, as a share of the axis: their words have to fit."""

INK, MUTED, GRID, SHADE, LIMIT = map(stand_in, ("ink", "muted", "grid", "shade", "limit"))

SETTINGS = {
    "svg.fonttype": "none", "svg.hashsalt": "tidemill", "text.parse_math": False,
    "text.usetex": False, "font.family": ["DejaVu Sans"], "font.size": svg.SIZE, "text.color": INK,
    "axes.edgecolor": MUTED, "axes.labelcolor": MUTED, "axes.linewidth": 0.8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "axes.facecolor": "none", "figure.facecolor": "none",
    "figure.edgecolor": "none", "grid.color": GRID, "grid.linewidth": 0.8, "xtick.color": MUTED,
    "ytick.color": MUTED, "xtick.major.size": 0, "ytick.major.size": 0, "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round", "legend.frameon": False, "legend.fontsize": svg.SIZE,
    "legend.handlelength": 2.4, "figure.constrained_layout.use": True, "path.simplify": True,
}  # fmt: skip
"""Of matplotlib, in place of its defaults and of what a file of the user's says."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def drawn(draw: Callable[_P, _R]) -> Callable[_P, _R]:
    """With the settings above. Whoever draws must be done when it returns."""

    @functools.wraps(draw)
    def inner(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with matplotlib.style.context(["default", SETTINGS]):
            return draw(*args, **kwargs)

    return inner


def new(height: float = HEIGHT) -> Figure:
    return Figure(figsize=(WIDTH, height))


def finished(figure: Figure, name: str, caption: str, alt: str) -> Picture:
    return Picture(name, caption, alt, svg.element(figure, name, alt))


def legend(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """Above the axes; beside each other if they are short. Repeats have one entry."""
    entries = dict(zip(reversed(labels), reversed(handles), strict=True))
    names = list(dict.fromkeys(labels))
    said = [short(name) for name in names]
    widest = max(map(len, said), default=0)
    columns = max(1, min(len(names), 62 // (widest + 7)))
    figure.legend(
        [entries[name] for name in names], said, loc="outside upper left", ncols=columns,
        borderaxespad=0.2, columnspacing=1.4,
    )  # fmt: skip


def short(label: str) -> str:
    """Not too long for a picture; cut in the middle, as its end may be what tells it apart."""
    label = clean(label, 4 * _LONGEST)
    begin = _LONGEST // 3
    whole = len(label) <= _LONGEST
    return label if whole else f"{label[:begin]}…{label[begin + 1 - _LONGEST :]}"


def in_seconds(axis: Axes, which: str, low: float, high: float) -> None:
    """A logarithmic axis of seconds that has ``low`` and ``high`` on it, with few round ticks."""
    low, high = _room(low, high)
    ticks = _ticks(low, high)
    if which == "x":
        axis.set_xscale("log")
        axis.set_xlim(low, high)
    else:
        axis.set_yscale("log")
        axis.set_ylim(low, high)
    ours = axis.xaxis if which == "x" else axis.yaxis
    ours.set_major_locator(FixedLocator(ticks))
    ours.set_major_formatter(FixedFormatter([plain(tick) for tick in ticks]))
    ours.set_minor_locator(NullLocator())


def _room(low: float, high: float) -> tuple[float, float]:
    """Some beyond both ends, and a factor of four between them at least."""
    low, high = max(low, 1e-5), max(high, 1e-5)
    middle = (low * high) ** 0.5
    return min(low / 1.15, middle / 2), max(high * 1.15, middle * 2)


def _ticks(low: float, high: float) -> list[float]:
    """As many as there is room for, round ones."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        found = [
            step * 10.0**power
            for power in powers
            for step in steps
            if low <= step * 10.0**power <= high
        ]
        apart = (after / before for before, after in itertools.pairwise(found))
        if min(apart, default=1.0) >= (high / low) ** _APART:
            return found
    return found[:: -(-len(found) // 6)]
