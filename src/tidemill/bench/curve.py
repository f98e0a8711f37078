"""The throughput-latency curve: the same requests at several rates, or numbers at a time.

Unless rates are given they are spread from little to somewhat more than the endpoint can do, which
is found first: the number of requests at a time is doubled until they are done no faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidemill.bench.arrivals import Closed, Gamma
from tidemill.bench.measures import Summary, request_rate
from tidemill.bench.report import load_words, percent, seconds
from tidemill.bench.result import Result
from tidemill.bench.scenario import rate_of
from tidemill.bench.search import LEAST_REQUESTS, Measure, rounded
from tidemill.bench.traces import TraceFile

_GAIN = 1.1
_MOST_AT_A_TIME = 1024
_OVER = 1.1
"""Of what can be done, the highest rate of a curve."""

_WIDTH = 48
_CELLS = [
    (("ttft", "p50"), 11), (("ttft", "p99"), 10), (("tpot", "p50"), 11), (("tpot", "p99"), 10),
    (("e2e", "p99"), 10),
]  # fmt: skip
"""Columns of latencies, and how wide they are."""


class Saturation(NamedTuple):
    """``rate``: the most requests a second, which came with ``concurrency`` of them at a time."""

    rate: float
    concurrency: int


def saturate(
    measure: Measure, trial: float, say: Callable[[str], None] = lambda words: None
) -> Saturation:
    """How many requests an endpoint ends a second at most; ``trial`` seconds for each number at a
    time. A rate of 0 is one of an endpoint that ended none."""
    best = Saturation(0.0, 1)
    concurrency = 1
    while concurrency <= _MOST_AT_A_TIME:
        recording = measure(Closed(concurrency), trial, min(2.0, trial / 4), math.inf)
        rate = request_rate(recording)
        say(f"{concurrency} at a time: {rate:.3g} requests/s")
        if rate < best.rate * _GAIN or not rate:
            break
        best = Saturation(rate, concurrency)
        concurrency *= 2
    return best


def spread(most: float, points: int) -> list[float]:
    """Rates from little to somewhat more than ``most``, evenly."""
    return [rounded(_OVER * most * (i + 1) / points) for i in range(points)]


def enough(load: Closed | Gamma | TraceFile, trial: float, requests: int) -> float:
    """Seconds of a point: ``trial``, or as long as a few requests take to come; of a trace, all its
    ``requests``."""
    if (rate := rate_of(load)) is None:
        return trial
    return requests / rate if isinstance(load, TraceFile) else max(trial, LEAST_REQUESTS / rate)


# ---- as text


def table(points: Sequence[Result]) -> str:
    """The points of a curve in the order of their loads, and pictures of their latencies."""
    ordered = [(r, r.summary) for r in sorted(points, key=_load) if r.summary is not None]
    lines = [
        f"{'':>14}{'done/s':>9}{'tokens/s':>10}{'TTFT p50':>11}{'p99':>10}{'TPOT p50':>11}"
        f"{'p99':>10}{'E2E p99':>10}  SLO met"
    ]
    for result, summary in ordered:
        latencies = "".join(f"{_cell(summary, *which):>{width}}" for which, width in _CELLS)
        met = "" if summary.attained is None else percent(summary.attained)
        failed = f", {sum(summary.errors.values())} failed" if summary.errors else ""
        invalid = " INVALID" if summary.invalid else ""
        lines.append(
            f"{_label(result):>14}{summary.request_rate:>9.2f}"
            f"{summary.output_rate:>10.0f}{latencies}  {met}{failed}{invalid}"
        )
    for name in ("ttft", "tpot"):
        lines += _picture(name, ordered)
    return "\n".join(lines)


def _load(result: Result) -> tuple[bool, float]:
    """What results are ordered by: closed loops first."""
    load = result.scenario.load
    if isinstance(load, Closed):
        return False, load.concurrency
    return True, rate_of(load) or 0.0


def _label(result: Result) -> str:
    load = result.scenario.load
    rate = rate_of(load)
    return load_words(load) if rate is None else f"{rate:g}/s"


def _cell(summary: Summary, name: str, share: str) -> str:
    found = summary.latency.get(name)
    return "-" if found is None else seconds(found[share].value)


def _picture(name: str, points: Sequence[tuple[Result, Summary]]) -> list[str]:
    """A line for each load, from its p50 to its p99, on a logarithmic scale."""
    drawn = [(result, s.latency[name]) for result, s in points if name in s.latency]
    values = [found[share].value for _, found in drawn for share in ("p50", "p99")]
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low <= 0 or high <= low * 1.01:
        return []
    scale = (_WIDTH - 1) / math.log(high / low)

    def place(value: float) -> int:
        return round(scale * math.log(value / low))

    ends = f"{seconds(low)} to {seconds(high)}, logarithmic"
    lines = ["", f"{name.upper()} from p50 (o) to p99 (*): {ends}"]
    for result, found in drawn:
        p50, p99 = place(found["p50"].value), place(found["p99"].value)
        bar = " " * p50 + "o" + "-" * (p99 - p50 - 1) + "*" * (p99 > p50)
        lines.append(f"{_label(result):>14} |{bar:{_WIDTH}}|")
    return lines
