"""Pictures of several loads: latency by rate, and throughput against speed for a user."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from tidemill.bench.arrivals import Closed, Gamma
from tidemill.bench.measures import Slo, Summary
from tidemill.bench.records import Recording
from tidemill.bench.report import load_words, seconds
from tidemill.bench.reporting import figures, words
from tidemill.bench.reporting.document import Picture
from tidemill.bench.reporting.runs import Shown
from tidemill.bench.scenario import rate_of
from tidemill.bench.search import Aim, bracket, judge
from tidemill.bench.traces import TraceFile


@figures.drawn
def rate_latency(name: str, series: Sequence[Sequence[Shown]]) -> list[Picture]:
    """TTFT and TPOT by the rate of requests, with the highest rate that meets the SLO."""
    made = (_by_rate(f"{name}_rate-{which}", which, series) for which in ("ttft", "tpot"))
    return [picture for picture in made if picture is not None]


def highest_rate(points: Sequence[Shown]) -> float | None:
    """The highest rate of a series that meets the SLO, as do all lower ones, by the rules of
    ``bench search``; None if none does. Without recordings nothing can be said of a rate."""
    trials: dict[float, list[Recording]] = {}
    slo = points[0].result.slo
    arrivals: Gamma | TraceFile = Gamma(1.0)
    for point in points:
        load = point.result.scenario.load
        if isinstance(load, Gamma | TraceFile) and load.rate and point.recording is not None:
            arrivals = load
            trials.setdefault(load.rate, []).append(point.recording)
    if slo is None:
        return None
    aim = Aim(slo, arrivals=arrivals)
    met, _ = bracket([judge(rate, trials[rate], aim) for rate in sorted(trials)])
    return None if met is None else met.rate


def _by_rate(name: str, which: str, series: Sequence[Sequence[Shown]]) -> Picture | None:
    figure = figures.new()
    axis = figure.subplots()
    lines: list[Line2D] = []
    labels: list[str] = []
    said: list[str] = []
    heights: list[float] = []
    for points in series:
        drawn = _longest(points, which)
        if len(drawn) < 2:
            continue
        label, look = points[0].label, points[0].look
        rates = list(drawn)
        p50, p99 = (
            [summary.latency[which][share].value for summary in drawn.values()]
            for share in ("p50", "p99")
        )
        axis.fill_between(rates, p50, p99, color=look.colour, alpha=0.12, linewidth=0)
        axis.plot(rates, p50, color=look.colour, linewidth=1, linestyle=look.dash)
        invalid = [rate for rate, summary in drawn.items() if summary.invalid]
        lines += axis.plot(
            rates, p99, color=look.colour, linestyle=look.dash, marker=look.marker, markersize=4.5,
            markevery=[i for i, rate in enumerate(rates) if rate not in invalid],
        )  # fmt: skip
        axis.plot(
            invalid, [p99[rates.index(rate)] for rate in invalid], color=look.colour, linestyle="",
            marker=look.marker, markersize=4.5, markerfacecolor="none",
        )  # fmt: skip
        labels.append(label)
        heights += [*p50, *p99]
        told = ", ".join(
            f"{rate:.3g}/s {seconds(value)}" + (" (invalid)" if rate in invalid else "")
            for rate, value in zip(rates, p99, strict=True)
        )
        said.append(f"{label} at p99: {told}")
        best = highest_rate(points)
        if best is not None and best in drawn:
            _mark_best(axis, best, p99[rates.index(best)], look.colour)
            said.append(f"{label} meets the SLO up to {best:.3g}/s")
    if not lines:
        return None
    limits = {getattr(slo, which) for one in series for slo in _slos(one)} - {None}
    for limit in sorted(limits):
        axis.axhline(limit, color=figures.LIMIT, linewidth=1.2)
        axis.annotate(
            f"SLO {words.plain(limit)}", (0, limit), xycoords=("axes fraction", "data"),
            xytext=(4, 3), textcoords="offset points", color=figures.LIMIT, fontsize=8.5,
        )  # fmt: skip
    figures.in_seconds(axis, "y", min([*heights, *limits]), max([*heights, *limits]))
    axis.set_xlim(left=0)
    axis.set_xlabel("requests/s (asked; of closed loops: answered)")
    axis.set_ylabel(f"{which.upper()}, p50 to p99")
    figures.legend(figure, lines, labels)
    return figures.finished(
        figure, name,
        f"{which.upper()} by rate: p50 (thin) to p99 (with markers); a ring is the highest rate "
        "that meets the SLO, a hollow marker an invalid run",
        f"{which.upper()} by the rate of requests. {'. '.join(said)}.",
    )  # fmt: skip


def _longest(points: Sequence[Shown], which: str) -> dict[float, Summary]:
    """By rate, ascending, what was measured; where a search tried one more than once, the longest
    time. Of a closed loop, whose load is no rate, that of its answers."""
    found: dict[float, Summary] = {}
    for point in points:
        summary = point.result.summary
        if summary is None or which not in summary.latency:
            continue
        rate = rate_of(point.result.scenario.load) or summary.request_rate
        if rate not in found or summary.seconds > found[rate].seconds:
            found[rate] = summary
    return dict(sorted(found.items()))


def _slos(points: Sequence[Shown]) -> list[Slo]:
    return [point.result.slo for point in points if point.result.slo is not None]


def _mark_best(axis: Axes, rate: float, height: float, colour: str) -> None:
    axis.plot(
        [rate], [height], linestyle="", marker="o", markersize=12, markerfacecolor="none",
        markeredgecolor=colour, markeredgewidth=1.8,
    )  # fmt: skip
    axis.annotate(
        f"{rate:.3g}/s", (rate, height), xytext=(9, -3), textcoords="offset points", fontsize=8.5,
        color=colour,
    )  # fmt: skip


@figures.drawn
def pareto(name: str, shown: Sequence[Shown]) -> Picture | None:
    """Output tokens a second for each core, against tokens a second for one user: right and up is
    better, and those that nobody beats in both are joined. Invalid runs are hollow, and not in the
    front."""
    points = [
        (one, speed, one.result.per_core)
        for one in shown
        if one.result.per_core and (speed := _speed(one.result.summary))
    ]
    if len(points) < 2:
        return None
    figure = figures.new()
    axis = figure.subplots()
    valid = [(x, y) for one, x, y in points if not _invalid(one)]
    front = _front(valid)
    axis.plot(
        [x for x, _ in front], [y for _, y in front], color=figures.MUTED, linewidth=5, alpha=0.3,
        solid_joinstyle="round", zorder=1,
    )  # fmt: skip
    handles: list[Line2D] = []
    labels: list[str] = []
    said: list[str] = []
    several = len(points) > len({one.label for one, _, _ in points})
    for one, x, y in points:
        look = one.look
        drawn = axis.plot(
            [x], [y], linestyle="", marker=look.marker, markersize=7, color=look.colour,
            markerfacecolor="none" if _invalid(one) else look.colour,
        )  # fmt: skip
        handles += drawn
        labels.append(one.label)
        asked = load_words(one.result.scenario.load)
        if several:
            axis.annotate(
                _short(one), (x, y), xytext=(5, 4), textcoords="offset points", fontsize=7.5,
                color=figures.MUTED,
            )  # fmt: skip
        said.append(
            f"{one.title} ({asked}): {words.rate(y)} tokens/s for each core, {words.rate(x)} for a "
            "user" + (", on the front" if (x, y) in front else "")
            + (", invalid" if _invalid(one) else "")
        )  # fmt: skip
    axis.set_xlim(0, 1.15 * max(x for _, x, _ in points))
    axis.set_ylim(0, 1.15 * max(y for _, _, y in points))
    axis.set_xlabel("tokens/s for a user (1 / TPOT at p50)")
    axis.set_ylabel("output tokens/s for each core")
    figures.legend(figure, handles, labels)
    return figures.finished(
        figure, name,
        "Throughput against speed: right and up is better. The broad line joins what nothing "
        "beats in both, a hollow marker is an invalid run",
        f"Throughput for each core against speed for a user. {'; '.join(said)}.",
    )  # fmt: skip


def _short(one: Shown) -> str:
    load = one.result.scenario.load
    if (rate := rate_of(load)) is not None:
        return f"{rate:.3g}/s"
    return f"{load.concurrency} at once" if isinstance(load, Closed) else load_words(load)


def _speed(summary: Summary | None) -> float | None:
    found = None if summary is None else summary.latency.get("tpot")
    return 1 / found["p50"].value if found and found["p50"].value > 0 else None


def _invalid(one: Shown) -> bool:
    summary = one.result.summary
    return summary is not None and summary.invalid is not None


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no other beats in one and equals or beats in the other, from left to right."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(set(points), reverse=True):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front[::-1]
