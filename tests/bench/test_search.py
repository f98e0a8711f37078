"""The search on servers whose capacity is known, in virtual time."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable

import pytest

from tidemill.bench.arrivals import Closed, Gamma
from tidemill.bench.measures import Slo
from tidemill.bench.records import Record, Recording, Window
from tidemill.bench.search import Aim, Found, Rate, bracket, grown, judge, search, share_of
from tidemill.bench.traces import TraceFile

SLO = Slo(ttft=0.5)
EACH = 0.2  # seconds that one request takes of a server that has nothing else to do

Answer = Callable[[float, random.Random], tuple[float, str | None]]
"""Of a request that comes at a rate: its TTFT, and of which kind its error is."""


class Virtual:
    """A server that needs no time: ``answer`` says how each request goes."""

    def __init__(
        self, answer: Answer, *, late: Callable[[float], float] = lambda rate: 0.0
    ) -> None:
        self._answer = answer
        self._late = late
        self.now = 0.0
        self.asked: list[tuple[float, float]] = []  # rates, and seconds of the window

    def measure(
        self, load: Closed | Gamma, seconds: float, warmup: float, timeout: float
    ) -> Recording:
        rng = random.Random(f"{load} {self.now}")
        if isinstance(load, Closed):
            rate, due = 0.0, [i * EACH for i in range(int(seconds / EACH))]
        else:
            rate = load.rate
            due = list(itertools.takewhile(lambda t: t < warmup + seconds, load.due(rng)))
            self.asked.append((rate, seconds))
        records = []
        for i, when in enumerate(due):
            ttft, error = self._answer(rate, rng)
            sent = when + self._late(rate)
            records.append(record(i, when, sent, sent + ttft, error))
        self.now += warmup + seconds
        return Recording(records, Window(warmup, warmup + seconds), 0.0)


class Queue(Virtual):
    """``slots`` requests at a time, each for ``EACH`` seconds: it can do slots / EACH a second."""

    def __init__(self, slots: int) -> None:
        super().__init__(lambda rate, rng: (0.0, None))
        self._slots = slots

    def measure(
        self, load: Closed | Gamma, seconds: float, warmup: float, timeout: float
    ) -> Recording:
        recording = super().measure(load, seconds, warmup, timeout)
        free = [0.0] * self._slots
        for r in recording.records:
            begins = max(r.due, heapq.heappop(free))
            heapq.heappush(free, begins + EACH)
            r.times, r.ended = [begins + EACH / 10, begins + EACH], begins + EACH
        return recording


class Replaying(Virtual):
    """As many requests as a trace has, evenly, in as long as that takes."""

    requests = 300

    def measure(
        self, load: Closed | Gamma | TraceFile, seconds: float, warmup: float, timeout: float
    ) -> Recording:
        if isinstance(load, TraceFile):
            assert load.rate is not None
            assert seconds == pytest.approx(self.requests / load.rate)
            assert warmup == 0
            load = Gamma(load.rate, 1e6)
        return super().measure(load, seconds, warmup, timeout)


def record(index: int, due: float, sent: float, first: float, error: str | None = None) -> Record:
    times = [] if error else [first, first + EACH]
    return Record(index, "chat", due, sent, first + EACH, times, output_tokens=2, error=error)


def until(capacity: float) -> Answer:
    return lambda rate, rng: (0.1 if rate <= capacity else 0.9, None)


def found(server: Virtual, **fields: float) -> Found:
    return search(server.measure, Aim(SLO, **fields), clock=lambda: server.now)  # type: ignore[arg-type]


@pytest.mark.parametrize("capacity", [0.37, 5.0, 6.4, 333.0])
@pytest.mark.parametrize("tolerance", [0.05, 0.2])
def test_a_sharp_limit_is_within_the_bracket(capacity: float, tolerance: float) -> None:
    server = Virtual(until(capacity))
    result = found(server, tolerance=tolerance, trial=600.0, budget=1e6)
    assert result.met is not None
    assert result.missed is not None
    assert result.met.rate <= capacity < result.missed.rate <= result.met.rate * (1 + tolerance)
    assert result.met.sure
    assert result.missed.sure
    assert result.stopped == ""
    assert [r.rate for r in result.rates] == sorted({rate for rate, _ in server.asked})


def test_a_trace_is_replayed_from_end_to_end_at_any_rate() -> None:
    server = Replaying(until(20))
    trace = TraceFile("t.csv", speed=3.0, limit=300)
    aim = Aim(SLO, budget=1e6, arrivals=trace, requests=300)
    result = search(server.measure, aim, clock=lambda: server.now)
    assert result.met is not None
    assert result.missed is not None
    assert result.met.rate <= 20 < result.missed.rate <= 1.05 * result.met.rate
    for rate in result.rates:  # but for the last ones, which are drawn
        assert rate.requests == pytest.approx(300 * rate.trials, rel=0.02)


def test_a_trace_that_ends_with_a_burst_is_not_thought_to_go_on_so() -> None:
    """Half of its requests come in the last tenth of it."""
    due = [i / 10 for i in range(90)] + [9 + i / 90 for i in range(90)]
    records = [record(i, at, at, at + 0.1) for i, at in enumerate(due)]
    for r in records:
        r.ended = r.due + 2.0
    trial = Recording(records, Window(0.0, 10.0), 0.0)
    assert grown(trial) > 0
    assert not judge(18, [trial], Aim(SLO)).met
    assert judge(18, [trial], Aim(SLO, arrivals=TraceFile("t.csv"), requests=180)).met


@pytest.mark.parametrize("seed", range(5))
def test_a_queue_is_not_let_grow_where_nothing_limits_waiting(seed: int) -> None:
    """TPOT is kept whatever comes, and yet no more than 20 requests a second can be done."""
    server = Queue(slots=4)
    server.now = seed  # of its random numbers
    result = search(server.measure, Aim(Slo(tpot=1.0), budget=1e6), clock=lambda: server.now)
    assert result.met is not None
    assert result.missed is not None
    assert 0.9 * 20 < result.met.rate < result.missed.rate < 1.15 * 20
    assert "queue grows" in result.missed.why


def test_what_waits_for_too_long_is_missed_before_all_is_in_use() -> None:
    """Of a server that can do 20 requests a second. Long runs tell what the rates found are."""
    server = Queue(slots=4)
    result = found(server, budget=1e6)

    def long_run(rate: float) -> float:
        recording = server.measure(Gamma(rate), 3000.0, 10.0, 30.0)
        return sum(map(SLO.met_by, recording.records)) / len(recording.records)

    assert result.met is not None
    assert result.missed is not None
    assert result.missed.rate < 20
    assert long_run(result.met.rate) > 0.975
    assert long_run(result.missed.rate) < 0.998


def noisy(capacity: float, attain: float) -> Answer:
    """At the capacity just as many are met as are wanted; fewer above it, more below."""

    def answer(rate: float, rng: random.Random) -> tuple[float, str | None]:
        missed = min(1.0, (1 - attain) * (rate / capacity) ** 4)
        return (0.9 if rng.random() < missed else 0.1), None

    return answer


@pytest.mark.parametrize("attain", [0.99, 0.9])
@pytest.mark.parametrize("tolerance", [0.05, 0.5])
def test_what_is_sure_in_noise_is_right_and_the_rest_is_near(
    attain: float, tolerance: float
) -> None:
    wrong = sure = 0
    for capacity in [7.0 + i / 7 for i in range(20)]:
        server = Virtual(noisy(capacity, attain))
        result = found(server, attain=attain, tolerance=tolerance, budget=1e6)
        assert result.met is not None
        assert result.missed is not None
        assert 0.6 * capacity < result.met.rate < result.missed.rate < 1.7 * capacity
        for end in (result.met, result.missed):
            assert end.sure or end.trials == 3
            sure += end.sure
            wrong += end.sure and end.met != (end.rate <= capacity)
    # Rates that are 5 % apart differ by less than their noise, and it says so.
    assert sure > 20 if tolerance == 0.5 else sure < 20
    assert wrong <= 2  # each bound is wrong once in twenty times


def test_nothing_meets_it() -> None:
    result = found(Virtual(lambda rate, rng: (0.9, None)))
    assert (result.met, result.missed) == (None, None)
    assert "even if there is but one" in result.stopped


def test_no_rate_is_low_enough() -> None:
    server = Virtual(lambda rate, rng: (0.9 if rate else 0.1, None))
    result = found(server, budget=1e6)
    assert result.met is None
    assert result.missed is not None
    assert result.stopped == "no rate was low enough"


def test_everything_meets_it() -> None:
    result = found(Virtual(lambda rate, rng: (0.1, None)), max_rate=100.0, budget=1e6)
    assert result.met is not None
    assert result.met.rate == 100
    assert result.missed is None
    assert "most that was to be tried" in result.stopped


def test_a_load_generator_that_is_late_is_not_the_endpoint() -> None:
    server = Virtual(lambda rate, rng: (0.1, None), late=lambda rate: 2.0 if rate > 50 else 0.0)
    result = found(server, budget=1e6)
    assert result.met is not None
    assert result.met.rate <= 50
    assert "the load generator is the limit" in result.stopped
    # An endpoint that is slow as well is what is missed, however late it was asked.
    slow = Virtual(until(20), late=lambda rate: 2.0 if rate > 50 else 0.0)
    result = found(slow, budget=1e6)
    assert result.met is not None
    assert result.missed is not None
    assert result.met.rate <= 20 < result.missed.rate
    assert result.stopped == ""


@pytest.mark.parametrize(("kind", "limit"), [("http_429", "endpoint"), ("exhausted", "load")])
def test_requests_that_fail_are_missed(kind: str, limit: str) -> None:
    server = Virtual(lambda rate, rng: (0.1, kind if rate > 12 else None))
    result = found(server, budget=1e6)
    assert result.met is not None
    assert result.missed is not None
    assert result.met.rate <= 12 < result.missed.rate
    assert kind in result.missed.why
    assert result.missed.limit.startswith(limit)


def test_it_ends_in_time_with_what_it_has() -> None:
    server = Virtual(until(400))
    result = found(server, budget=100.0)
    assert server.now <= 100
    assert result.met is not None
    assert "the time is up" in result.stopped


def test_how_long_it_takes_is_said_first_and_kept() -> None:
    said: list[str] = []
    server = Virtual(until(30))
    search(server.measure, Aim(SLO, budget=300.0), said.append, lambda: server.now)
    assert "0.3 s" in said[1]
    assert "5 at most" in said[1]
    assert server.now <= 300
    assert all("requests/s: " in words for words in said[2:])


# ---- one rate


def trial(flags: list[bool]) -> Recording:
    """A request each second, of which some are met."""
    records = [record(i, i, i, i + (0.1 if flag else 0.9)) for i, flag in enumerate(flags)]
    return Recording(records, Window(0.0, len(flags)), 0.0)


@pytest.mark.parametrize(
    ("met", "missed", "verdict"),
    [
        (300, 0, (True, True)),
        (200, 0, (True, False)),
        (290, 10, (False, True)),
        (99, 1, (True, False)),
        (98, 2, (False, False)),
        (0, 5, (False, True)),
    ],
)
def test_verdicts(met: int, missed: int, verdict: tuple[bool, bool]) -> None:
    flags = [True] * met + [False] * missed
    random.Random(1).shuffle(flags)
    half = len(flags) // 2
    rate = judge(1.0, [trial(flags[:half]), trial(flags[half:])], Aim(SLO))
    assert (rate.met, rate.sure) == verdict
    assert rate.low <= rate.share <= rate.high


def test_trials_of_a_rate_are_taken_together_and_one_is_never_sure() -> None:
    two = judge(1.0, [trial([True] * 150)] * 2, Aim(SLO))
    assert (two.sure, two.trials, two.requests) == (True, 2, 300)
    assert not judge(1.0, [trial([True] * 300)], Aim(SLO)).sure
    assert not judge(1.0, [trial([False] * 300)], Aim(SLO)).sure


def test_misses_that_come_together_say_less() -> None:
    scattered = [i % 20 != 0 for i in range(400)]
    together = sorted(scattered)
    share, low, high = share_of([scattered])
    same, lower, higher = share_of([together])
    assert share == same == 0.95
    assert lower < low - 0.03
    assert higher > high


def test_wilson_intervals_are_those_of_the_paper() -> None:
    """Of 8 out of 10, by hand: p = 0.8, z = 1.6449."""
    z = 1.6449
    middle = (0.8 + z**2 / 20) / (1 + z**2 / 10)
    half = z / (1 + z**2 / 10) * math.sqrt(0.8 * 0.2 / 10 + z**2 / 400)
    flags = [[True] * 4 + [False] + [True] * 4 + [False]]
    assert share_of(flags) == pytest.approx((0.8, middle - half, middle + half))
    assert share_of([]) == (0, 0, 1)
    assert share_of([[True] * 10])[2] == 1


@pytest.mark.parametrize(("share", "grows"), [(0.5, False), (0.9, False), (1.2, True)])
def test_a_queue_that_grows(share: float, grows: bool) -> None:
    server = Queue(slots=4)
    verdicts = [grown(server.measure(Gamma(share * 20), 60.0, 2.0, 30.0)) > 0 for _ in range(20)]
    assert verdicts.count(grows) >= 19


def test_an_endpoint_that_is_only_slow_has_no_queue() -> None:
    server = Virtual(lambda rate, rng: (3.0, None))
    assert grown(server.measure(Gamma(50.0), 60.0, 10.0, 30.0)) == 0


def test_a_bracket_ends_at_the_lowest_that_is_missed() -> None:
    def rate(value: float, met: bool) -> Rate:
        return Rate(
            rate=value, met=met, sure=True, trials=1, requests=1, share=1.0, low=1.0, high=1.0
        )

    rates = [rate(1, True), rate(2, True), rate(3, False), rate(4, True), rate(5, False)]
    assert bracket(rates) == (rates[1], rates[2])
    assert bracket(rates[:2]) == (rates[1], None)
    assert bracket(rates[2:]) == (None, rates[2])


@pytest.mark.parametrize("attain", [0.0, 1.0, math.nan])
def test_shares_that_cannot_be_attained(attain: float) -> None:
    with pytest.raises(ValueError, match="attain"):
        Aim(SLO, attain)
