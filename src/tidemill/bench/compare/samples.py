"""What one side knows of each figure: its value in each run, or resamples of a single one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tidemill.bench.compare.base import Side
from tidemill.bench.measures import LATENCIES, SHARES, Slo
from tidemill.bench.records import Recording
from tidemill.bench.result import Result
from tidemill.bench.statistics import (
    RESAMPLES,
    Estimate,
    Floats,
    Numbers,
    block_weights,
    resampled_percentiles,
)

_BINS = 60
"""Parts of the window, whose rates are resampled."""


class Sample(NamedTuple):
    """``values``: of each run. ``draws``: of a single run, what it might have been; None if that is
    not known."""

    values: list[float]
    draws: Floats | None = None


class Samples:
    """All figures of one side that are known of all of its runs, by name (``verdicts.KINDS``).

    ``requests``: of each latency the values of all requests. ``slo`` is None where the two sides do
    not have the same. ``stream``: of random numbers. Sides that had the same requests share one, so
    that in each resample they have the same again, and what requests differ by (their lengths, and
    when they came) is on both sides. Others must not share one.
    """

    def __init__(self, side: Side, slo: Slo | None, stream: int) -> None:
        self.good = min((summary.good for summary in side.summaries), default=0)
        self.requests: dict[str, list[float]] = {}
        runs: list[dict[str, Sample]] = []
        single = len(side.results) == 1
        for result, recording in zip(side.results, side.recordings, strict=True):
            rng = np.random.default_rng(stream)
            found = _of_result(result) | _of_summary(result, slo, rng)
            if recording is not None:
                if single:
                    found |= _Resampled(recording, found, slo, stream).figures
                for record in recording.due:
                    if record.error is None:
                        for name, of in LATENCIES.items():
                            self.requests.setdefault(name, []).extend(of(record))
            runs.append(found)
        self.figures = {
            name: Sample(
                [value for run in runs for value in run[name].values],
                runs[0][name].draws if single else None,
            )
            for name in runs[0]
            if all(name in run for run in runs)
        }


class _Resampled:
    """``figures`` of one run, with what its records say that they might have been."""

    def __init__(
        self, recording: Recording, figures: Mapping[str, Sample], slo: Slo | None, stream: int
    ) -> None:
        self.figures = dict(figures)
        self._window = recording.window
        self._stream = stream
        requests = recording.due
        if any(record.error is None for record in requests):
            for name, of in LATENCIES.items():
                self._percentiles(name, [of(r) if r.error is None else () for r in requests])
        self._rate(
            "output rate",
            [(t, r.tokens / len(r.times)) for r in recording.records for t in r.times],
        )
        self._rate("request rate", [(r.ended, r.error is None) for r in recording.records])
        if slo is not None:
            self._rate("goodput", [(r.due, slo.met_by(r)) for r in requests])
            self._mean("SLO attained", [slo.met_by(r) for r in requests])
        self._mean("errors", [r.error is not None for r in requests])
        self._mean("right answers", [r.verdict and r.verdict == "right" for r in requests])
        self._mean("answer length", [r.tokens if r.error is None else None for r in requests])

    def _weights(self, count: int) -> Iterator[Numbers]:
        """The same whenever they are asked for, and so for all figures."""
        return block_weights(count, np.random.default_rng([self._stream, count]))

    def _put(self, name: str, draws: Floats) -> None:
        if name in self.figures:
            self.figures[name] = self.figures[name]._replace(draws=draws)

    def _percentiles(self, name: str, groups: Sequence[Sequence[float]]) -> None:
        weights = self._weights(len(groups))
        draws = resampled_percentiles(groups, list(SHARES.values()), weights)
        for share, column in zip(SHARES, draws.T, strict=True):
            self._put(f"{name} {share}", column)

    def _mean(self, name: str, values: Sequence[float | None]) -> None:
        """Of the requests that have a value."""
        has = np.array([value is not None for value in values], np.float64)
        counts = np.array([value or 0 for value in values], np.float64)
        if has.any():
            rows = self._weights(len(values))
            draws = [(counts @ row) / of for row in rows if (of := has @ row)]
            self._put(name, np.array(draws))

    def _rate(self, name: str, events: Sequence[tuple[float, float]]) -> None:
        """``events``: moments, and what each counts."""
        moments, counts = np.asarray(events, np.float64).reshape(-1, 2).T
        window = (self._window.opened, self._window.closed)
        bins, _ = np.histogram(moments, _BINS, window, weights=counts)
        draws = [bins @ row for row in self._weights(_BINS)]
        self._put(name, np.array(draws) / self._window.seconds)


def _of_result(result: Result) -> dict[str, Sample]:
    """What has one value for each run. Of cold starts each start counts as a run."""
    found: dict[str, Sample] = {}
    for start in result.starts:
        for phase in ("listening", "ready", "first_token"):
            name = f"{'cold' if start.cold else 'warm'} {phase.replace('_', ' ')}"
            found.setdefault(name, Sample([])).values.append(getattr(start, phase))
    known: dict[str, float | None] = {"output per core": result.per_core}
    if (resources := result.resources) is not None:
        if resources.memory is not None:
            known["memory"] = float(resources.memory.peak)
        known["output per core used"] = resources.density.per_core_used
        if resources.density.per_watt:
            known["energy per token"] = 1 / resources.density.per_watt
        if resources.cost is not None:
            known["cost per 10^6 tokens"] = resources.cost.output
    return found | {name: Sample([value]) for name, value in known.items() if value is not None}


def _of_summary(result: Result, slo: Slo | None, rng: np.random.Generator) -> dict[str, Sample]:
    """The figures as they are. What they might have been, where there are no records: of latencies
    a log-normal distribution as wide as their interval, of shares a binomial one, as if requests
    were independent."""
    summary = result.summary
    if summary is None:
        return {}
    found = {
        f"{name} {share}": Sample([estimate.value], _log_normal(estimate, rng))
        for name, percentiles in summary.latency.items()
        for share, estimate in percentiles.items()
    }
    found["output rate"] = Sample([summary.output_rate])
    found["request rate"] = Sample([summary.request_rate])
    if summary.good:
        found["answer length"] = Sample([summary.mean_output_tokens])
    shares = {
        "errors": (sum(summary.errors.values()), summary.requests),
        "right answers": (summary.verdicts.get("right", 0), sum(summary.verdicts.values())),
    }
    if slo is not None and summary.attained is not None and summary.goodput is not None:
        found["goodput"] = Sample([summary.goodput])
        shares["SLO attained"] = (round(summary.attained * summary.requests), summary.requests)
    for name, (count, of) in shares.items():
        if of:
            found[name] = Sample([count / of], rng.binomial(of, count / of, RESAMPLES) / of)
    return found


def _log_normal(estimate: Estimate, rng: np.random.Generator) -> Floats | None:
    if not 0 < estimate.low <= estimate.high:
        return None
    sigma = math.log(estimate.high / estimate.low) / (2 * 1.96)
    found: Floats = estimate.value * np.exp(sigma * rng.standard_normal(RESAMPLES))
    return found
