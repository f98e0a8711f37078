"""Figures of what was played: those of the bench, by its code or, of many requests, from arrays.

A few requests become a ``Recording``, of which ``bench.measures`` makes the figures as of one that
was measured. Many leave some numbers each, and the gaps between their tokens a histogram with bins
0.2 % wide. Their intervals are those of order statistics, not bootstrapped. Tokens of requests that
failed are left out there.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tidemill.bench.measures import SHARES, Slo, Summary, summarise
from tidemill.bench.records import Record, Recording, Window
from tidemill.bench.statistics import Estimate, rank, weighted_percentiles
from tidemill.simulate.jobs import Job

_BINS = 500.0
"""Of gaps, for each factor of e."""

_SHORTEST = 1e-9
_Z = 1.959963984540054
"""Standard deviations of a normal distribution within which 95 % lie."""

Floats = npt.NDArray[np.float64]


class Tally:
    """Is told of what has ended, and when the window ``opened`` and ``closed``. ``shapes``: their
    names, by number. ``exact``: keep a record of each job; they keep their times then."""

    def __init__(self, shapes: Sequence[str], *, exact: bool) -> None:
        self.opened = math.inf
        self.closed = math.inf
        self.exact = exact
        self._shapes = list(shapes)
        self._records: list[Record] = []
        self._columns = _Columns()
        self._times = (array("d"), array("d"))  # when each was due, and when it had ended
        self._gaps: Counter[int] = Counter()

    def gap(self, seconds: float, n: int) -> None:
        """Between two tokens, of each of ``n`` counted requests."""
        self._gaps[math.floor(_BINS * math.log(max(seconds, _SHORTEST)))] += n

    def add(self, job: Job) -> None:
        """It has ended."""
        self._times[0].append(job.due)
        self._times[1].append(job.ended)
        if self.exact:
            self._records.append(self._record(job))
        else:
            self._columns.add(job, _inside(job, self.opened, self.closed))

    def merge(self, other: Tally) -> None:
        """Add what another one, of the same window, was told of."""
        self._records += other._records
        for mine, theirs in zip(self._times, other._times, strict=True):
            mine.extend(theirs)
        self._columns.merge(other._columns)
        self._gaps.update(other._gaps)

    def summary(self, slo: Slo | None, shape: str | None = None) -> Summary:
        window = Window(self.opened, self.closed)
        if self.exact:
            return summarise(Recording(self._records, window, 0.0), slo, shape)
        number = None if shape is None else self._shapes.index(shape)
        gaps = self._gaps if shape is None else Counter[int]()  # which are kept of all together
        return _summary(self._columns, gaps, window, slo, number)

    def outstanding(self, begin: float, end: float) -> float:
        """Requests that were due and had not ended, on average over a time."""
        due, ended = (np.clip(np.asarray(times), begin, end) for times in self._times)
        return float((ended - due).sum()) / (end - begin)

    def _record(self, job: Job) -> Record:
        answered = job.error is None
        return Record(
            index=job.conversation, shape=self._shapes[job.shape], due=job.due, sent=job.due,
            ended=job.ended, times=job.times.tolist() if job.times is not None else [],
            prompt_tokens=job.prompt_tokens, cached_tokens=job.cached_tokens,
            output_tokens=job.output_tokens if answered else None, error=job.error,
            detail=_DETAILS.get(job.error or "", ""), turn=job.turn, asked=job.max_tokens,
        )  # fmt: skip


_DETAILS = {
    "too_long": "more tokens than the context has",
    "queue_full": "too many requests were waiting",
    "lost": "its replica failed",
    "timeout": "it took longer than a request may",
}


class _Columns:
    """What is kept of each job, as arrays that grow."""

    def __init__(self) -> None:
        self.numbers = {name: array("d") for name in ("due", "ttft", "tpot", "e2e", "ended")}
        self.inside = 0.0  # tokens within the window, of all jobs
        self.counts = {
            name: array("q") for name in ("shape", "prompt", "cached", "output", "short")
        }
        self.errors: list[str | None] = []

    def add(self, job: Job, inside: float) -> None:
        numbers, counts = self.numbers, self.counts
        tokens = job.output_tokens
        numbers["due"].append(job.due)
        numbers["ttft"].append(job.first - job.due)
        numbers["tpot"].append((job.last - job.first) / (tokens - 1) if tokens > 1 else math.nan)
        numbers["e2e"].append(job.last - job.due)
        numbers["ended"].append(job.ended)
        counts["shape"].append(job.shape)
        counts["prompt"].append(job.prompt_tokens)
        counts["cached"].append(job.cached_tokens)
        counts["output"].append(tokens)
        counts["short"].append(tokens < job.max_tokens)
        self.errors.append(job.error)
        self.inside += inside

    def merge(self, other: _Columns) -> None:
        for name, numbers in other.numbers.items():
            self.numbers[name].extend(numbers)
        for name, counts in other.counts.items():
            self.counts[name].extend(counts)
        self.errors += other.errors
        self.inside += other.inside


def _inside(job: Job, opened: float, closed: float) -> float:
    """Tokens of an answer that came within the window, if they came at even distances."""
    if job.error is not None or opened == math.inf:
        return 0.0
    n, first = job.output_tokens, job.first
    gap = (job.last - first) / (n - 1) if n > 1 else 0.0
    if opened <= first and job.last < closed:
        return n
    if not gap:
        return n * (opened <= first < closed)
    before, after = ((edge - first) / gap for edge in (opened, closed))
    return min(max(math.ceil(min(after, n)), 0), n) - min(max(math.ceil(min(before, n)), 0), n)


def _summary(
    columns: _Columns, gaps: Counter[int], window: Window, slo: Slo | None, shape: int | None
) -> Summary:
    numbers = {name: np.asarray(values) for name, values in columns.numbers.items()}
    counts = {name: np.asarray(values) for name, values in columns.counts.items()}
    failed = np.array([error is not None for error in columns.errors], bool)
    due = (window.opened <= numbers["due"]) & (numbers["due"] < window.closed)
    if shape is not None:
        due &= counts["shape"] == shape
    good = due & ~failed
    errors = Counter(
        error for error, of_window in zip(columns.errors, due, strict=True) if error and of_window
    )
    requests, n_good = int(due.sum()), int(good.sum())
    first = numbers["due"] + numbers["ttft"]
    began = (window.opened <= first) & (first < window.closed)
    over = ~failed & (window.opened <= numbers["ended"]) & (numbers["ended"] < window.closed)
    prompt = int(counts["prompt"][good].sum())
    met = None if slo is None else int(good[_met(numbers, slo)].sum())
    latency = {
        name: _percentiles(values[~np.isnan(values)])
        for name in ("ttft", "tpot", "e2e")
        if len(values := numbers[name][good]) and not np.isnan(values).all()
    }
    if gaps:
        latency["itl"] = _of_histogram(gaps, n_good)
    return Summary(
        seconds=window.seconds,
        requests=requests,
        good=n_good,
        errors=dict(errors),
        examples={error: _DETAILS.get(error, "") for error in errors},
        unfinished=int((due & (numbers["ended"] > window.closed)).sum()),
        latency=latency,
        delay_p99=0.0,
        output_rate=columns.inside / window.seconds,
        prompt_rate=int(counts["prompt"][began].sum()) / window.seconds,
        request_rate=int(over.sum()) / window.seconds,
        mean_prompt_tokens=prompt / max(1, n_good),
        mean_output_tokens=int(counts["output"][good].sum()) / max(1, n_good),
        cached_share=int(counts["cached"][good].sum()) / max(1, prompt) if n_good else None,
        goodput=None if met is None else met / window.seconds,
        attained=None if met is None else met / max(1, requests),
        counted=True,
        client_share=0.0,
        watched={},
        invalid=None if requests else "no request was due in the window",
        short=int(counts["short"][good].sum()),
    )


def _met(numbers: dict[str, Floats], slo: Slo) -> npt.NDArray[np.bool_]:
    """Which keep to all limits; what one has no value for it keeps to."""
    met = np.ones(len(numbers["due"]), bool)
    for name in ("ttft", "tpot", "e2e"):
        if (limit := getattr(slo, name)) is not None:
            met &= ~(numbers[name] > limit)
    return met


def _percentiles(values: Floats) -> dict[str, Estimate]:
    values = np.sort(values)
    n = len(values)
    found = {}
    for name, share in SHARES.items():
        at = rank(n, share)
        reach = _Z * math.sqrt(n * share * (1 - share))
        low, high = max(0, math.floor(at - reach)), min(n - 1, math.ceil(at + reach))
        found[name] = Estimate(float(values[at]), float(values[low]), float(values[high]))
    return found


def _of_histogram(gaps: Counter[int], requests: int) -> dict[str, Estimate]:
    """Gaps of one request are alike, so that they count as ``requests`` values, not more."""
    bins = np.array(sorted(gaps))
    middles = np.exp((bins + 0.5) / _BINS)
    counts = np.array([gaps[number] for number in bins])
    found = {}
    for name, share in SHARES.items():
        reach = _Z * math.sqrt(share * (1 - share) / max(1, requests))
        shares = (share, max(0.0, share - reach), min(1.0, share + reach))
        found[name] = Estimate(*map(float, weighted_percentiles(middles, counts, shares)))
    return found
