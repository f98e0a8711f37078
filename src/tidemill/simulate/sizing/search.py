"""The search: bounds first, then the highest rate that one replica carries, then how many.

Each option is asked what it can do at best (``fluid.py``). Those that do not fit, or cannot be fast
enough even alone, are out. The others are simulated, the most promising first, with step times as
much longer as their error band says; one that even at its best takes more than what was found, and
is no faster for a user, is not. Last the limits of the best ones' batches are varied, and all
replicas of the winner are simulated together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from tidemill.bench.arrivals import MAX_CONCURRENCY
from tidemill.records import dataclass
from tidemill.simulate.base import ReplicaSpec, currency_of
from tidemill.simulate.sizing.fluid import Mix, ceiling, first_token, fitted, next_token
from tidemill.simulate.sizing.goal import Goal
from tidemill.simulate.sizing.option import (
    Entry,
    Measure,
    Option,
    Outcome,
    Point,
    front,
    replicas_for,
    shown,
    unit_of,
)
from tidemill.simulate.sizing.trial import Metric, Trial, Trials, cause, meets, misses

PRECISION = 1.05
"""The load that is found and one that is too high differ by this factor at most."""

MOST_DEARER = 8
"""Options that are simulated though they take more than what was found, as they may be faster."""

MOST_TUNED = 3
"""Of the best options, those whose batches are varied."""

_SLICE = 8
"""Replicas that are simulated together; more are as many such groups beside each other."""

_FIRST = 0.75  # of the rate that may be possible, which is tried first
_ALONE = 0.02  # of what a replica could carry: next to nobody else is there
_MOST_LOADS = 24  # that are tried to find one
_MOST_ADDED = 8  # times that replicas are added, should the whole not do what its parts did
_MOST_SHORTER = 0.95  # a step takes some time, however wide its band is
_GROWTH = (1.25, 1.5, 2.0)  # of the load, to see what gives way

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Verified:
    """The whole deployment at the peak without its spare replicas: as computed, and with step times
    shorter and longer by the error band."""

    expected: Trial
    fast: Trial
    slow: Trial


@dataclass(frozen=True, slots=True)
class Breaking:
    """What gives way first as the load grows, with every replica there: at ``factor`` times the
    peak; None: nothing up to twice. ``trial`` is that simulation."""

    factor: float | None
    metric: Metric | None
    why: str
    trial: Trial


@dataclass(frozen=True, slots=True)
class Sizing:
    """All that was found. ``entries``: every option, the best first. ``winner`` is the first one,
    None where no option meets the SLO; the entries then say what is in the way. ``front``: by
    ``measure`` and speed. ``simulated``: how many simulations that took. ``currency``: of prices,
    "" where nobody says."""

    goal: Goal
    measure: Measure
    mix: Mix
    winner: Entry | None
    entries: tuple[Entry, ...]
    front: tuple[Point, ...]
    verified: Verified | None
    breaking: Breaking | None
    simulated: int
    currency: str

    @property
    def unit(self) -> str:
        """Of what is compared."""
        return unit_of(self.measure, self.currency)


@dataclass(frozen=True, slots=True)
class _Case:
    """An option that may do, with limits that fit the SLO. What it does at best: the ``load`` of a
    replica, what it then takes in all, and tokens a second of who is alone."""

    option: Option
    load: float
    total: float
    speed: float


def size(
    options: Sequence[Option], goal: Goal, mix: Mix, trials: Trials, say: Say = lambda text: None,
    *, thorough: bool = True,
) -> Sizing:  # fmt: skip
    """The cheapest of ``options`` that meets the goal. ``say`` is told what is being done. If not
    ``thorough``: how many replicas alone, from what one of them carries. Raises ValueError for
    prices in several currencies."""
    currency = currency_of(option.spec for option in options if option.spec is not None)
    return _Search(goal, mix, trials, measure_of(options), currency, say, thorough).run(options)


def measure_of(options: Sequence[Option]) -> Measure:
    """By price where any is known, else by watts if all are."""
    fitting = [option for option in options if option.spec is not None]
    if any(option.price("cost") is not None for option in fitting):
        return "cost"
    if fitting and all(option.watts is not None for option in fitting):
        return "watts"
    return "devices"


class _Search:
    def __init__(
        self, goal: Goal, mix: Mix, trials: Trials, measure: Measure, currency: str, say: Say,
        thorough: bool,
    ) -> None:  # fmt: skip
        self._goal = goal
        self._mix = mix
        self._measure: Measure = measure
        self._currency = currency
        self._say = say
        self._thorough = thorough
        self._most_dearer = MOST_DEARER if thorough else 0
        self._points: list[Point] = []
        self._simulated = 0
        self._trials = trials

    def run(self, options: Sequence[Option]) -> Sizing:
        entries: list[Entry] = []
        cases: list[_Case] = []
        for option in options:
            judged = self._judge(option)
            if isinstance(judged, Entry):
                entries.append(judged)
            else:
                cases.append(judged)
        for entry in self._simulate(sorted(cases, key=lambda case: case.total)):
            entries.append(entry)
        entries.sort(key=self._order)
        winner = verified = breaking = None
        met = bool(entries) and entries[0].outcome == "meets"
        if met and not self._thorough:
            winner = entries[0]
        elif met:
            few = [entry for entry in entries[:MOST_TUNED] if entry.outcome == "meets"]
            entries[: len(few)] = [self._tuned(entry) for entry in few]
            entries.sort(key=self._order)
            winner, verified = self._verified(entries[0])
            entries[0] = winner
            breaking = self._breaking(winner)
        return Sizing(
            self._goal, self._measure, self._mix, winner, tuple(entries),
            tuple(front(self._points)), verified, breaking, self._simulated, self._currency,
        )  # fmt: skip

    def _order(self, entry: Entry) -> tuple[bool, float, int, float]:
        """The best first; of equals the one with fewer devices, then the faster one."""
        total = entry.total(self._measure)
        speed = entry.trial.speed if entry.trial else 0.0
        out = entry.outcome != "meets" or total is None
        return out, total or 0.0, entry.devices, -speed

    # ---- without simulation

    def _judge(self, option: Option) -> Entry | _Case:
        """Why an option is out, or what it could do at best."""
        price = option.price(self._measure)
        if option.spec is None:
            return Entry(option, "memory", option.problem)
        if price is None:
            return Entry(option, "no price", "not compared: it has no price")
        slo, mix = self._goal.slo, self._mix
        if option.spec.max_context < mix.context:
            taken = option.spec.max_context
            return Entry(
                option, "memory", f"takes sequences of {taken} tokens; some have {mix.context}"
            )
        step_time, front = option.spec.step_time, option.spec.front
        spec = fitted(_slow(option.spec), mix, slo.tpot, option.limits)
        option = dataclasses.replace(
            option, spec=dataclasses.replace(spec, step_time=step_time, front=front)
        )
        first, each = first_token(spec, mix), next_token(spec, mix)
        whole = first + (mix.output - 1) * each
        floors: tuple[tuple[Outcome, float | None, float, str], ...] = (
            ("ttft", slo.ttft, first, f"computing {mix.longest} tokens of a prompt, alone, takes"),
            ("tpot", slo.tpot, each, "a step of one sequence, alone, takes"),
            ("e2e", slo.e2e, whole, "an answer of mean length, alone, takes"),
        )
        for outcome, limit, floor, words in floors:
            if limit is not None and floor > limit:
                return Entry(option, outcome, f"{words} {floor:.3g} s; limit {limit:g} s")
        best = ceiling(spec, mix, slo.tpot)
        load = self._goal.load
        most = best.rate if load.kind == "rate" else float(best.sequences)
        replicas = replicas_for(load.amount, most, self._goal.spare)
        return _Case(option, most, price * replicas, 1 / each)

    # ---- with it

    def _simulate(self, cases: Sequence[_Case]) -> Iterator[Entry]:
        """Those that may take least, and those that may be on the front."""
        least: float | None = None
        fastest = 0.0
        dearer = 0
        for case in cases:  # by what they take at best
            if least is not None and case.total >= least:
                if case.speed <= fastest or dearer >= self._most_dearer:
                    words = f"{shown(case.total)} {unit_of(self._measure, self._currency)}"
                    yield Entry(case.option, "outdone", f"takes {words} even at its best")
                    continue
                dearer += 1
            fastest = max(fastest, case.speed)
            self._say(f"simulating {case.option.words}")
            entry = self._entry(case)
            total = entry.total(self._measure)
            if total is not None:
                least = total if least is None else min(least, total)
            yield entry

    def _entry(self, case: _Case) -> Entry:
        """The highest rate that one replica carries, and how many it takes then."""
        carried, failed = self._highest(case.option, case.load)
        if carried is not None:
            return Entry(case.option, "meets", "", self._replicas(carried), carried)
        missed = misses(failed, self._goal.slo)
        metric = missed[0].metric if missed else None
        words = str(missed[0]) if missed else "requests pile up"
        return Entry(
            case.option, metric or "ttft", f"{words}, nearly alone: {cause(failed, metric)}",
            trial=failed,
        )  # fmt: skip

    def _replicas(self, carried: Trial) -> int:
        return replicas_for(self._goal.load.amount, carried.load, self._goal.spare)

    def _highest(self, option: Option, start: float) -> tuple[Trial | None, Trial]:
        """The simulation of the highest load that one replica carries, None if it carries none; and
        that of the lowest that it does not, or of the highest that was tried."""
        assert option.spec is not None
        spec = _slow(option.spec)
        at_once = self._goal.load.kind == "in flight"
        least = 1.0 if at_once else start * _ALONE
        load, factor = start * _FIRST, 1.25
        low: Trial | None = None
        high: Trial | None = None
        for _ in range(_MOST_LOADS):
            trial = self._trial(spec, max(least, load))
            if meets(trial, self._goal.slo):
                low = trial
                self._keep(option, trial)
            else:
                high = trial
            if low is not None and high is not None:
                if high.load / low.load <= PRECISION or (at_once and high.load - low.load <= 1):
                    break
                load = (low.load * high.load) ** 0.5
            elif low is not None:
                load = low.load * factor + at_once
            elif trial.load > least:
                load = trial.load / factor
                factor *= factor
            else:
                break
        last = high if high is not None else low
        assert last is not None
        return low, last

    def _trial(self, spec: ReplicaSpec, load: float, replicas: int = 1) -> Trial:
        self._simulated += 1
        if self._goal.load.kind == "in flight":
            load = float(max(1, round(load)))
        return self._trials(spec, load, replicas)

    def _keep(self, option: Option, trial: Trial) -> None:
        """It may be on the front."""
        replicas = self._replicas(trial)
        price = option.price(self._measure)
        assert price is not None
        ttft = trial.latency["ttft"].p99
        self._points.append(Point(option, replicas, price * replicas, trial.speed, ttft))

    # ---- the best ones

    def _tuned(self, entry: Entry) -> Entry:
        """With the limits of its batches varied, one after the other, as long as that helps."""
        self._say(f"varying the batches of {entry.option.words}")
        for name in entry.option.limits:
            for factor in (2, 0.5):
                while (better := self._varied(entry, name, factor)) is not None:
                    entry = better
        return entry

    def _varied(self, entry: Entry, name: str, factor: float) -> Entry | None:
        """With one limit changed; None if that is not better by more than chance is."""
        spec, carried = entry.option.spec, entry.trial
        assert spec is not None
        assert carried is not None
        value = round(getattr(spec, name) * factor)
        if not 1 <= value <= spec.max_batch_tokens:
            return None
        spec = dataclasses.replace(spec, **{name: value})
        if not meets(self._trial(_slow(spec), carried.load * PRECISION), self._goal.slo):
            return None
        option = dataclasses.replace(entry.option, spec=spec)
        found, _ = self._highest(option, carried.load * PRECISION / _FIRST)
        if found is None or found.load < carried.load * PRECISION:
            return None
        return Entry(option, "meets", "", self._replicas(found), found)

    def _verified(self, entry: Entry) -> tuple[Entry, Verified]:
        """All its replicas but the spare ones, together, at the peak; as many more as it takes."""
        self._say(f"simulating all replicas of {entry.option.words}")
        spec = entry.option.spec
        assert spec is not None
        needed = entry.replicas - self._goal.spare
        for attempt in range(_MOST_ADDED):
            slow = self._together(_slow(spec), entry, needed)
            if meets(slow, self._goal.slo) or attempt == _MOST_ADDED - 1:
                break
            needed += -(-needed // 20)
        verified = Verified(
            expected=self._together(spec, entry, needed),
            fast=self._together(_fast(spec), entry, needed),
            slow=slow,
        )
        return dataclasses.replace(entry, replicas=needed + self._goal.spare), verified

    def _together(self, spec: ReplicaSpec, entry: Entry, replicas: int, factor: float = 1) -> Trial:
        """``replicas`` at ``factor`` times the peak; of many, a slice with its share of it."""
        each = factor * self._goal.load.amount / replicas
        simulated = min(replicas, _SLICE, max(1, int(MAX_CONCURRENCY / each)))
        return self._trial(spec, each * simulated, simulated)

    def _breaking(self, entry: Entry) -> Breaking:
        self._say("doubling the load")
        spec = entry.option.spec
        assert spec is not None
        for factor in _GROWTH:
            trial = self._together(spec, entry, entry.replicas, factor)
            if not meets(trial, self._goal.slo):
                missed = misses(trial, self._goal.slo)
                metric = missed[0].metric if missed else None
                return Breaking(factor, metric, cause(trial, metric), trial)
        return Breaking(None, None, "", trial)


def _slow(spec: ReplicaSpec) -> ReplicaSpec:
    """With all that takes time taking as much longer as its error band says."""
    return spec.scaled(1 + spec.step_time.band)


def _fast(spec: ReplicaSpec) -> ReplicaSpec:
    """As much shorter."""
    return spec.scaled(1 - min(spec.step_time.band, _MOST_SHORTER))
