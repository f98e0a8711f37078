"""Pictures of how long requests waited: distributions, by target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tidemill.bench import measures, report
from tidemill.bench.records import Record, Recording
from tidemill.bench.reporting import figures, words
from tidemill.bench.reporting.document import Picture
from tidemill.bench.reporting.runs import Shown
from tidemill.bench.statistics import rank

_TITLES = {
    "ttft": "Time to the first token (TTFT)",
    "tpot": "Time per token after it (TPOT)",
    "e2e": "Time to the last token (E2E)",
}
_OF: dict[str, Callable[[Record], float | None]] = {
    "ttft": measures.ttft, "tpot": measures.tpot, "e2e": measures.e2e,
}  # fmt: skip

_POINTS = 100
"""Of a curve at most, and as many again of its slowest tenth: more cannot be seen."""


@figures.drawn
def distributions(name: str, shown: Sequence[Shown]) -> list[Picture]:
    """A picture for each latency: which share of the requests took how long at most."""
    made = (_distribution(f"{name}_{which}", which, shown) for which in _TITLES)
    return [picture for picture in made if picture is not None]


def latencies(recording: Recording, which: str) -> npt.NDArray[np.float64]:
    """In seconds, ascending, of the good requests that were due in the window."""
    of = _OF[which]
    found = [
        value
        for record in recording.due
        if record.error is None and (value := of(record)) is not None
    ]
    return np.sort(np.asarray(found, dtype=np.float64))


def _distribution(name: str, which: str, shown: Sequence[Shown]) -> Picture | None:
    curves = [
        (one, values)
        for one in shown
        if one.recording is not None and len(values := latencies(one.recording, which))
    ]
    if not curves:
        return None
    figure = figures.new()
    axis = figure.subplots()
    ends = [value for _, values in curves for value in (values[0], values[-1])]
    limits = sorted(
        {limit for one, _ in curves if one.result.slo and (limit := getattr(one.result.slo, which))}
    )
    lines = []
    for one, values in curves:
        look = one.look
        lines += axis.plot(
            *_steps(values), color=look.colour, linestyle=look.dash, drawstyle="steps-post"
        )
        axis.plot(
            [_at(values, share) for share in measures.SHARES.values()],
            list(measures.SHARES.values()),
            color=look.colour, linestyle="", marker=look.marker, markersize=4.5,
        )  # fmt: skip
    figures.in_seconds(axis, "x", min([*ends, *limits]), max([*ends, *limits]))
    for limit in limits:
        axis.axvline(limit, color=figures.LIMIT, linewidth=1.2)
        axis.annotate(
            f"SLO {words.plain(limit)}", (limit, 0.04), xytext=(4, 0),
            textcoords="offset points", color=figures.LIMIT, fontsize=8.5, annotation_clip=False,
        )  # fmt: skip
    axis.set_ylim(0, 1.02)
    axis.set_yticks([0, 0.25, 0.5, 0.75, 0.9, 0.99])
    axis.set_yticklabels(["0", "25 %", "50 %", "75 %", "90 %", "99 %"])
    axis.set_ylabel("requests that took at most so long")
    figures.legend(figure, lines, [one.label for one, _ in curves])
    said = "; ".join(
        f"{one.title}: "
        + ", ".join(
            f"{share} {report.seconds(_at(values, of))}" for share, of in measures.SHARES.items()
        )
        for one, values in curves
    )
    limit_words = "".join(f"; the SLO is {words.plain(limit)}" for limit in limits)
    return figures.finished(
        figure, name, f"{_TITLES[which]}: share of requests by time, markers at p50, p90 and p99",
        f"{_TITLES[which]} as a cumulative distribution. {said}{limit_words}.",
    )  # fmt: skip


def _at(values: npt.NDArray[np.float64], share: float) -> float:
    return float(values[rank(len(values), share)])


def _steps(values: npt.NDArray[np.float64]) -> tuple[list[float], list[float]]:
    """Of the empirical distribution: at most some points, the slowest ones among them."""
    n = len(values)
    if n <= 2 * _POINTS:
        ranks = np.arange(n)
    else:
        ranks = np.unique(
            np.concatenate(
                [
                    np.linspace(0, n - 1, _POINTS).round(),
                    np.linspace(0.9 * (n - 1), n - 1, _POINTS).round(),
                ]
            ).astype(int)
        )
    shares = (ranks + 1) / n
    return [float(values[0]), *values[ranks].tolist()], [0.0, *shares.tolist()]
