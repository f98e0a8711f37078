"""The highest rate of requests at which an endpoint meets an SLO.

A rate is *met* if a wanted share of its requests meets the SLO, none fails, and the queue does not
grow. From what one request at a time takes, the rate is doubled until one is missed, or halved
until one is met. The two are then brought together by bisection, and the ends are measured
longer, with other arrivals, until each is sure or has been measured ``MAX_TRIALS`` times. Nothing
is remembered but what was measured at each rate: a rate that turns out otherwise when it is
measured longer moves the bracket again.

How sure a share is, is told by a Wilson interval. Requests that are late come together, so that
they say less than as many independent ones would: the number of requests is divided by the design
effect, which is estimated from shares of consecutive requests (batch means).
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np

from tidemill.bench.arrivals import MAX_RATE, Closed, Gamma
from tidemill.bench.measures import Slo
from tidemill.bench.records import Record, Recording
from tidemill.bench.traces import TraceFile

MAX_TRIALS = 3
"""Of one rate, each twice as long as the one before. One alone is never sure: where nearly all is
in use, a queue takes longer to show what it can be like."""

_Z = 1.6449
"""Of a normal distribution: 95 % lie below. Both bounds of a share are such."""

_BATCHES = 20
_GROWTH = 0.05
"""Of the requests that come, the share that may be left over. An endpoint with more of them does so
much less than is asked of it, and its queue grows without end."""

_SEEN = 400
"""Requests of which twice as much would be seen: arrivals vary by their square root."""

_SAMPLES = 100

_MOST_HALVINGS = 6
_BASELINE_SECONDS = 3.0
_LEAST_SECONDS = 5.0
LEAST_REQUESTS = 10
_LEAST_PATIENCE = 30.0
_LIVES = 100
"""Of requests, one after the other, that a trial is to hold: queues take long to settle."""


Measure = Callable[[Closed | Gamma | TraceFile, float, float, float], Recording]
"""A run: load, seconds of the window, seconds of warm-up, most seconds of a request. No two may
have the same prompts, which an endpoint could have in its cache."""

Limit = Literal["endpoint", "load generator"]
"""Who it is that misses."""


class Aim(msgspec.Struct, frozen=True):
    """What is looked for: the highest rate at which ``attain`` of the requests meet ``slo``, to
    within ``tolerance``. One trial's window lasts ``trial`` seconds at most; all of it ``budget``
    seconds. ``arrivals``: how they come, at any rate. Of a trace all ``requests`` are in each
    trial, however long that lasts."""

    slo: Slo
    attain: float = 0.99
    tolerance: float = 0.05
    trial: float = 60.0
    budget: float = 1200.0
    max_rate: float = MAX_RATE
    arrivals: Gamma | TraceFile = Gamma(1.0)
    requests: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.attain < 1:
            raise ValueError(f"attain must be a share between 0 and 1, not {self.attain}")

    @property
    def replays(self) -> bool:
        return isinstance(self.arrivals, TraceFile)

    @property
    def bounds_waiting(self) -> bool:
        """Whether requests that wait in a queue miss the SLO at some time."""
        return self.slo.ttft is not None or self.slo.e2e is not None

    def window(self, rate: float, each: float, before: int = 0) -> tuple[float, float]:
        """Seconds of a trial of a rate, where a request takes ``each`` seconds and there were so
        many ``before`` it; and of its warm-up."""
        if self.replays:
            return self.requests / rate, 0.0
        seconds = self._first(rate, each) * 2**before
        return seconds, min(seconds, max(1.0, 2 * each))

    def _first(self, rate: float, each: float) -> float:
        """If none misses the SLO it makes sure of that, where ``trial`` allows for so many. A few
        there must be."""
        enough = 1.1 * _Z**2 * self.attain / (1 - self.attain)
        if not self.bounds_waiting:
            enough = max(enough, 2 * _SEEN)
        most = max(self.trial, LEAST_REQUESTS / rate)
        return min(most, max(_LEAST_SECONDS, _LIVES * each, enough / rate))


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one rate. ``share`` of its requests meet the SLO, and with a confidence of
    95 % each at least ``low`` and at most ``high``. ``sure``: it is not only the likelier of the
    two. ``why`` it is missed, if not by that share; ``limit``: whose fault a miss is."""

    rate: float
    met: bool
    sure: bool
    trials: int
    requests: int
    share: float
    low: float
    high: float
    why: str = ""
    limit: Limit = "endpoint"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The bracket: the highest rate that was ``met``, and the lowest ``missed`` above it, as far as
    there are such. ``stopped``: why it is not as narrow as wanted, else empty."""

    met: Rate | None
    missed: Rate | None
    stopped: str
    rates: list[Rate]
    seconds: float


def search(
    measure: Measure,
    aim: Aim,
    say: Callable[[str], None] = lambda words: None,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """``say`` is told how long it will take, and of each rate what was found."""
    began = clock()
    trials: dict[float, list[Recording]] = {}
    judged: dict[float, Rate] = {}

    def end(stopped: str) -> Found:
        rates = [judged[rate] for rate in sorted(judged)]
        met, missed = bracket(rates)
        return Found(met=met, missed=missed, stopped=stopped, rates=rates, seconds=clock() - began)

    say("one request at a time")
    alone = measure(Closed(1), _BASELINE_SECONDS, 0.0, math.inf).due
    if sum(map(aim.slo.met_by, alone)) * 2 <= len(alone):
        return end("most requests miss the SLO even if there is but one at a time")
    each = statistics.fmean(r.ended - r.sent for r in alone)
    start = min(aim.max_rate, rounded(1 / max(each, 1e-4)))
    say(_estimate(aim, start, each))
    # Whoever waits for longer has missed the SLO, and would only hold up the search.
    patience = max(_LEAST_PATIENCE, 20 * each, 2 * (aim.slo.ttft or 0), 2 * (aim.slo.e2e or 0))
    while True:
        rate = _next([judged[rate] for rate in sorted(judged)], start, aim)
        if isinstance(rate, str):
            return end(rate)
        before = trials.setdefault(rate, [])
        seconds, warmup = aim.window(rate, each, len(before))
        if clock() - began + warmup + seconds > aim.budget:
            return end(f"the time is up ({aim.budget / 60:.3g} minutes)")
        before.append(measure(aim.arrivals.at(rate), seconds, warmup, patience))
        judged[rate] = judge(rate, before, aim)
        say(words(judged[rate]))


def bracket(rates: Sequence[Rate]) -> tuple[Rate | None, Rate | None]:
    """Of ascending rates, the highest met below the lowest missed, and that one."""
    missed = next((r for r in rates if not r.met), None)
    met = [r for r in rates if r.met and (missed is None or r.rate < missed.rate)]
    return (met[-1] if met else None), missed


def _next(rates: Sequence[Rate], start: float, aim: Aim) -> float | str:
    """The rate to measure next, or why there is none; an empty text if all is done."""
    met, missed = bracket(rates)
    if rates and rates[-1].limit == "load generator":  # or was this machine just busy?
        return rates[-1].rate if rates[-1].trials == 1 else _generator(rates[-1])
    if missed is None:
        if met is None:
            return start
        if met.rate >= aim.max_rate:
            return f"{met.rate:g} requests/s is the most that was to be tried"
        return min(aim.max_rate, 2 * met.rate)
    if met is None:
        if missed.rate < start / 2**_MOST_HALVINGS:
            return "no rate was low enough"
        return missed.rate / 2
    if missed.rate > met.rate * (1 + aim.tolerance):
        return rounded(math.sqrt(met.rate * missed.rate))
    unsure = [end for end in (met, missed) if not end.sure and end.trials < MAX_TRIALS]
    return min(unsure, key=lambda end: end.trials).rate if unsure else ""


def conclusion(found: Found, aim: Aim) -> str:
    """What came of it, in some lines."""
    of = f"at which {100 * aim.attain:.4g} % of the requests meet {aim.slo}"
    lines = [f"searched {found.seconds / 60:.1f} minutes for the highest rate {of}"]
    if found.met is not None:
        lines.append(f"  highest that meets it: {words(found.met)}")
    if found.missed is not None:
        lines.append(f"  lowest that misses it: {words(found.missed)}")
    if found.stopped:
        lines.append(f"  not narrowed down further: {found.stopped}")
    return "\n".join(lines)


def rounded(rate: float) -> float:
    """To four digits, as one would write it."""
    return float(f"{rate:.4g}")


def _generator(rate: Rate) -> str:
    return (
        f"the load generator is the limit, not the endpoint: on this machine it cannot send "
        f"{rate.rate:.3g} requests/s in time"
    )


def _estimate(aim: Aim, start: float, each: float) -> str:
    """Five doublings, a bisection of one of them, and two ends that are measured again."""
    bisections = math.ceil(math.log2(math.log(2) / math.log(1 + aim.tolerance)))
    longest, _ = aim.window(start, each)
    about = min(aim.budget, (5 + bisections + 2 * 2) * (longest + 2 * each))
    return (
        f"one request takes {each:.2g} s; the search will take about {about / 60:.0f} minutes, and "
        f"{aim.budget / 60:.0f} at most"
    )


# ---- one rate


def judge(rate: float, trials: Sequence[Recording], aim: Aim) -> Rate:
    """What the trials of a rate say together."""
    due = [trial.due for trial in trials]
    flags = [[aim.slo.met_by(r) for r in requests] for requests in due]
    share, low, high = share_of(flags)
    met, why = share >= aim.attain, ""
    limit: Limit = "endpoint"
    sure = high < aim.attain or (
        low >= aim.attain and (aim.bounds_waiting or len(due[-1]) >= 2 * _SEEN)
    )
    errors = Counter(r.error for requests in due for r in requests if r.error is not None)
    # A trace has an end, and with it comes what it has, a burst or a lull.
    grows = [0.0 if aim.replays else grown(trial) for trial in trials]
    if errors:
        met, why, sure = False, _errors(errors), errors.total() > 1
        limit = "load generator" if "exhausted" in errors else limit
    elif grows[-1] > 0:  # the longest one
        met, why = False, f"the queue grows by {grows[-1]:.0%} of the requests"
        sure = sum(growth > 0 for growth in grows) > 1
    elif not met and share_of(_as_sent(due, aim.slo))[0] >= aim.attain:
        limit = "load generator"
    return Rate(
        rate=rate, met=met, sure=sure and len(trials) > 1, trials=len(trials),
        requests=sum(map(len, due)), share=share, low=low, high=high, why=why, limit=limit,
    )  # fmt: skip


def words(rate: Rate) -> str:
    """One rate in a line."""
    verdict = ("met" if rate.met else "missed") + ("" if rate.sure else ", not sure")
    why = f"; {rate.why}" if rate.why else ""
    return (
        f"{rate.rate:.4g} requests/s: {verdict}; {rate.share:.1%} of {rate.requests} requests meet "
        f"it ({rate.low:.1%} to {rate.high:.1%}){why}"
    )


def share_of(flags: Sequence[Sequence[bool]]) -> tuple[float, float, float]:
    """The share of the requests of all trials that are met, and its bounds. Flags of one trial are
    in the order in which the requests were due."""
    n = sum(map(len, flags))
    if not n:
        return 0.0, 0.0, 1.0
    share = sum(map(sum, flags)) / n
    return share, *_wilson(share, n / _design_effect(flags, share))


def _wilson(share: float, n: float) -> tuple[float, float]:
    """Wilson, E. B. (1927): Probable inference, the law of succession, and statistical inference.
    JASA 22(158), 209-212."""
    middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(share * (1 - share) / n + (_Z / (2 * n)) ** 2)
    return max(0.0, middle - half), min(1.0, middle + half)


def _design_effect(flags: Sequence[Sequence[bool]], share: float) -> float:
    """By how much the variance of shares of consecutive requests exceeds that of independent
    requests; 1 at least."""
    size = sum(map(len, flags)) // _BATCHES
    if size < 2 or share in (0, 1):
        return 1.0
    shares = [
        sum(trial[i : i + size]) / size
        for trial in flags
        for i in range(0, len(trial) - size + 1, size)
    ]
    return max(1.0, size * statistics.variance(shares, share) / (share * (1 - share)))


def grown(trial: Recording) -> float:
    """The share of the requests by which the queue grows, if it does; else 0. It is the slope of
    the number of requests in flight over the second half of the window, so that it has settled."""
    window = trial.window
    middle = (window.opened + window.closed) / 2
    came = sum(middle <= r.due < window.closed for r in trial.records)
    if came < 2:
        return 0.0
    times = np.linspace(middle, window.closed, _SAMPLES)
    due = np.sort([r.due for r in trial.records])
    ended = np.sort([r.ended for r in trial.records])
    flying = np.searchsorted(due, times) - np.searchsorted(ended, times)
    growth = float(np.polyfit(times - middle, flying, 1)[0]) * (window.closed - middle)
    return growth / came if growth > max(_GROWTH * came, 2 * math.sqrt(came)) else 0.0


def _as_sent(due: Sequence[Sequence[Record]], slo: Slo) -> list[list[bool]]:
    """What would be met if latency counted from when requests were sent: the endpoint's part."""
    return [[slo.met_by(msgspec.structs.replace(r, due=r.sent)) for r in trial] for trial in due]


def _errors(errors: Counter[str]) -> str:
    counts = ", ".join(f"{count} {kind}" for kind, count in errors.most_common(3))
    return f"{errors.total()} requests failed: {counts}"
