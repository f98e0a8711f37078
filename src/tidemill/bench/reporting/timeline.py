"""Pictures of a run from its beginning to its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tidemill.bench.records import Recording
from tidemill.bench.reporting import figures
from tidemill.bench.reporting.document import Picture
from tidemill.bench.reporting.runs import Shown

_STEPS = 160
"""Points in time at which requests are counted."""
_BINS = 50
"""In which tokens are added up."""
_TICKS = 130
"""Arrivals that can be told apart in a strip."""

Floats = npt.NDArray[np.float64]


@figures.drawn
def timelines(name: str, shown: Sequence[Shown]) -> list[Picture]:
    """Requests in flight with arrivals and errors, and tokens a second. Seconds count from where
    the measured window opened."""
    kept = [one for one in shown if one.recording is not None and one.recording.records]
    if not kept:
        return []
    return [_requests(f"{name}_requests", kept), _tokens(f"{name}_tokens", kept)]


def _requests(name: str, shown: Sequence[Shown]) -> Picture:
    figure = figures.new(figures.HEIGHT + 0.16 * (len(shown) - 1))
    axes = figure.subplots(2, 1, sharex=True, height_ratios=[7, 1 + len(shown)])
    above, strip = cast("tuple[Axes, Axes]", tuple(axes))
    lines = []
    said = []
    for row, one in enumerate(shown):
        recording, look = _recording(one), one.look
        sent, ended = _moments(recording)
        seconds = np.linspace(*_extent(recording), _STEPS)
        lines += above.plot(
            seconds, _in_flight(sent, ended, seconds), color=look.colour, linestyle=look.dash,
            drawstyle="steps-post", linewidth=1.5,
        )  # fmt: skip
        opened = recording.window.opened
        _strip(strip, row, [r.due - opened for r in recording.records], _span(shown), look.colour)
        failed = [r for r in recording.records if r.error is not None]
        at = _apart([r.ended - opened for r in failed], _span(shown))
        strip.plot(
            at, [row] * len(at), color=figures.LIMIT, linestyle="", marker="x", markersize=5,
            markeredgewidth=1.6,
        )  # fmt: skip
        kinds = Counter(str(r.error) for r in failed)
        errors = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
        said.append(
            f"{one.title}: {len(recording.records)} requests, at most "
            f"{_in_flight(sent, ended, sent).max()} in flight, errors: {errors}"
        )
    above.set_ylabel("requests in flight")
    above.set_ylim(bottom=0)
    above.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    strip.set_ylim(len(shown) - 0.4, -0.6)
    strip.set_yticks([])
    strip.set_ylabel("arrivals", rotation=0, ha="right", va="center")
    strip.grid(False)
    _shade([above, strip], shown)
    strip.set_xlabel("seconds of the measured window")
    figures.legend(figure, lines, [one.label for one in shown])
    return figures.finished(
        figure, name, "The run: requests in flight; below, when each was due, and × where one "
        "failed. Shaded: warm-up and ending",
        f"Requests in flight over the run. {'; '.join(said)}.",
    )  # fmt: skip


def _tokens(name: str, shown: Sequence[Shown]) -> Picture:
    figure: Figure = figures.new(figures.HEIGHT + 0.16 * (len(shown) - 1))
    axis = figure.subplots()
    lines = []
    said = []
    for one in shown:
        recording = _recording(one)
        edges, rates = _token_rates(recording)
        lines += axis.plot(
            edges, [*rates, rates[-1]], color=one.look.colour, linestyle=one.look.dash,
            drawstyle="steps-post", linewidth=1.5,
        )  # fmt: skip
        said.append(f"{one.title}: at most {max(rates):.0f} tokens a second")
    axis.set_ylim(bottom=0)
    axis.set_ylabel("output tokens/s")
    axis.set_xlabel("seconds of the measured window")
    _shade([axis], shown)
    figures.legend(figure, lines, [one.label for one in shown])
    return figures.finished(
        figure, name, "The run: output tokens that arrived a second. Shaded: warm-up and ending",
        f"Output tokens a second over the run. {'; '.join(said)}.",
    )  # fmt: skip


def _recording(one: Shown) -> Recording:
    assert one.recording is not None
    return one.recording


def _extent(recording: Recording) -> tuple[float, float]:
    """First and last of what is shown, in seconds after the window opened: of what came before and
    after it so much that the window stays in the middle."""
    opened, seconds = recording.window.opened, recording.window.seconds
    first = min(r.due for r in recording.records) - opened
    last = max(r.ended for r in recording.records) - opened
    return max(-seconds / 3, min(0.0, first)), min(2 * seconds, max(seconds, last))


def _span(shown: Sequence[Shown]) -> tuple[float, float]:
    extents = [_extent(_recording(one)) for one in shown]
    return min(low for low, _ in extents), max(high for _, high in extents)


def _moments(recording: Recording) -> tuple[Floats, Floats]:
    """When requests were sent, and when they ended, each ascending."""
    opened = recording.window.opened
    sent = np.sort([record.sent - opened for record in recording.records])
    return sent, np.sort([record.ended - opened for record in recording.records])


def _in_flight(sent: Floats, ended: Floats, at: Floats) -> npt.NDArray[np.int64]:
    """How many were sent and had not ended, at each of some moments."""
    found: npt.NDArray[np.int64] = np.searchsorted(sent, at, "right") - np.searchsorted(
        ended, at, "right"
    )
    return found


def _token_rates(recording: Recording) -> tuple[Floats, Floats]:
    """Edges of the bins, and what each holds. An answer's tokens are spread over its pieces."""
    opened = recording.window.opened
    pieces = [
        (time - opened, record.tokens / len(record.times))
        for record in recording.records
        for time in record.times
    ]
    edges = np.linspace(*_extent(recording), _BINS + 1)
    times, tokens = np.asarray(pieces, dtype=np.float64).reshape(-1, 2).T
    counts, _ = np.histogram(times, edges, weights=tokens)
    return edges, counts / np.diff(edges)


def _strip(
    axis: Axes, row: int, times: Sequence[float], span: tuple[float, float], colour: str
) -> None:
    """A short line for each arrival: all of them one path."""
    at = _apart(times, span)
    x = np.repeat(at, 3)
    y = np.tile([row - 0.32, row + 0.32, np.nan], len(at))
    axis.plot(x, y, color=colour, linewidth=0.9, solid_capstyle="butt")


def _apart(times: Sequence[float], span: tuple[float, float]) -> Floats:
    """Those that can be told apart on an axis of that span, ascending."""
    width = max(span[1] - span[0], 1e-9) / _TICKS
    ordered = np.sort(np.asarray(times, dtype=np.float64))
    _, first = np.unique(np.floor((ordered - span[0]) / width), return_index=True)
    found: Floats = ordered[first]
    return found


def _shade(axes: Sequence[Axes], shown: Sequence[Shown]) -> None:
    """What is not measured: before the window, and after it."""
    low, high = _span(shown)
    closed = max(_recording(one).window.seconds for one in shown)
    for axis in axes:
        axis.set_xlim(low, high)
        for start, end in ((low, 0.0), (closed, high)):
            if end > start:
                axis.axvspan(start, end, color=figures.SHADE, linewidth=0, zorder=0)
