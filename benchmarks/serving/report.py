"""Runs as a table: medians over the rounds, and ratios taken within a round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

from tidemill.bench.measures import Summary

BASE = "tidemill"


class Run(msgspec.Struct):
    """One load on one server in one round. ``lost``: of the requests ``sent``, warm-up included,
    those without an answer of the length asked for. ``rate``: requests a second of an open loop.
    ``front_end`` is the process that speaks HTTP."""

    server: str
    load: str
    round: int
    sent: int = 0
    lost: int = 0
    rate: float | None = None
    front_end: int = 0
    summary: Summary | None = None
    by_shape: dict[str, Summary] = {}
    error: str | None = None

    def __str__(self) -> str:
        head = f"{self.load:18} {self.server:13}"
        if self.summary is None:
            return f"{head} not run: {self.error}"
        rate = "" if self.rate is None else f" at {self.rate:.2f}/s"
        figures = "  ".join(f"{name} {show(value(self))}" for name, (value, show) in FIGURES.items()
                            if value(self) is not None)  # fmt: skip
        invalid = f"  INVALID: {self.summary.invalid}" if self.summary.invalid else ""
        return (
            f"{head}{rate}  {figures}  lost {self.lost} of {self.sent}  client "
            f"{self.summary.client_share:.1%} of a core, front end {self.front_end_share:.1%}"
            f"{invalid}"
        )

    @property
    def front_end_share(self) -> float:
        """Of the CPU time of all of the server's processes."""
        watched = self.summary.watched if self.summary else {}
        return watched.get(self.front_end, 0.0) / max(1e-9, sum(watched.values()))


def _latency(run: Run, name: str, share: str, shape: str | None = None) -> float | None:
    summary = run.by_shape.get(shape) if shape else run.summary
    found = summary.latency.get(name, {}).get(share) if summary else None
    return None if found is None else found.value


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.0f} ms"


def _rate(tokens: float | None) -> str:
    return "-" if tokens is None else f"{tokens:.0f} tok/s"


Figure = Callable[[Run], float | None]
FIGURES: dict[str, tuple[Figure, Callable[[float | None], str]]] = {
    "output": (lambda r: r.summary.output_rate if r.summary else None, _rate),
    "TTFT p50": (lambda r: _latency(r, "ttft", "p50"), _ms),
    "TTFT p99": (lambda r: _latency(r, "ttft", "p99"), _ms),
    "short TTFT p99": (lambda r: _latency(r, "ttft", "p99", "chat"), _ms),
    "ITL p50": (lambda r: _latency(r, "itl", "p50"), _ms),
    "ITL p99": (lambda r: _latency(r, "itl", "p99"), _ms),
}


def text(runs: Sequence[Run]) -> str:
    """A block for each load."""
    lines = ["median over the rounds; in brackets tidemill / the other, within a round: median "
             "(lowest, highest)"]  # fmt: skip
    for load in dict.fromkeys(run.load for run in runs):
        of_load = [run for run in runs if run.load == load]
        lines += ["", load]
        for server in dict.fromkeys(run.server for run in of_load):
            lines.append(_line(server, of_load))
    everybody = {run.server for run in runs}
    for server in sorted(everybody):
        lost = sum(run.lost for run in runs if run.server == server)
        sent = sum(run.sent for run in runs if run.server == server)
        lines += [*([""] if server == min(everybody) else []), f"{server}: lost {lost} of {sent}"]
    lines += [f"INVALID {run}" for run in runs if run.summary and run.summary.invalid]
    return "\n".join(lines)


def _line(server: str, runs: Sequence[Run]) -> str:
    mine = {run.round: run for run in runs if run.server == server and run.summary is not None}
    base = {run.round: run for run in runs if run.server == BASE and run.summary is not None}
    if not mine:
        return f"  {server:13} not run: {next(r.error for r in runs if r.server == server)}"
    cells = []
    for name, (value, show) in FIGURES.items():
        found = [v for run in mine.values() if (v := value(run)) is not None]
        if not found:
            continue
        cell = f"{name} {show(statistics.median(found))}"
        # Latencies are compared at the same rate only.
        pairs = [
            (value(base[i]), value(run)) for i, run in mine.items()
            if i in base and (name == "output" or base[i].rate == run.rate)
        ]  # fmt: skip
        ratios = [a / b for a, b in pairs if a is not None and b]
        if server != BASE and ratios:
            cell += f" [{statistics.median(ratios):.2f}x ({min(ratios):.2f}, {max(ratios):.2f})]"
        cells.append(cell)
    rates = [run.rate for run in mine.values() if run.rate is not None]
    if rates:
        cells.insert(0, f"{statistics.median(rates):.2f} requests/s")
    share = statistics.median(run.front_end_share for run in mine.values())
    if server == BASE:
        cells.append(f"front end {share:.1%} of CPU")
    return f"  {server:13} " + "; ".join(cells)
