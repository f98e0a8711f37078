"""Of each figure how much it changed, and whether that is better, worse, or not to be told."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemill.bench.compare.answers import answers, told
from tidemill.bench.compare.base import CompareError, Comparison, Figure, Side, Unit, Verdict
from tidemill.bench.compare.fairness import alarms, check_repeats, differences, notes, warnings
from tidemill.bench.compare.samples import Sample, Samples
from tidemill.bench.measures import LATENCIES, SHARES
from tidemill.bench.statistics import Estimate, Floats, cliffs_delta, difference, interval

_TAIL = 5
"""Requests that must lie beyond a percentile for its interval to mean anything."""


class Kind(NamedTuple):
    unit: Unit
    lower_is_better: bool | None


KINDS = {
    **{f"{name} {share}": Kind("seconds", True) for name in LATENCIES for share in SHARES},
    "output rate": Kind("per second", False),
    "output per core": Kind("per second", False),
    "output per core used": Kind("per second", False),
    "request rate": Kind("per second", False),
    "goodput": Kind("per second", False),
    "SLO attained": Kind("share", False),
    "errors": Kind("share", True),
    "right answers": Kind("share", False),
    "answer length": Kind("tokens", None),
    "memory": Kind("bytes", True),
    "energy per token": Kind("joules", True),
    "cost per 10^6 tokens": Kind("money", True),
    **{
        f"{kind} {phase}": Kind("seconds", True)
        for kind in ("cold", "warm")
        for phase in ("listening", "ready", "first token")
    },
}


def compare(a: Side, b: Side, *, force: bool = False) -> Comparison:
    """B against A. Raises CompareError where they were not asked the same, unless ``force``."""
    for side in (a, b):
        check_repeats(side)
    differ = differences(a.first, b.first)
    if differ and not force:
        raise CompareError(
            f"A and B were not asked the same: {'; '.join(differ)} (--force compares them anyway)"
        )
    slo = a.first.slo if a.first.slo == b.first.slo else None
    paired = _same_requests(a, b)
    same = answers(a, b)
    figures = list(_figures(Samples(a, slo, 1), Samples(b, slo, 1 if paired else 2)))
    return Comparison(
        scenario=a.first.scenario.name, a=a, b=b, figures=figures,
        alarms=[*(f"not asked the same: {what}" for what in differ), *alarms(a, b, figures, same)],
        warnings=list(warnings(a, b)), answers=[] if same is None else list(told(same)),
        notes=list(notes(a, b, paired=paired)),
    )  # fmt: skip


def _same_requests(a: Side, b: Side) -> bool:
    """Whether one run each was asked the same one by one, as in an open loop with one seed."""
    asked = [
        [(record.index, record.turn) for record in recording.due]
        for side in (a, b)
        for recording in side.recordings
        if recording is not None
    ]
    return len(asked) == 2 and asked[0] == asked[1] and a.first.seed == b.first.seed


def _figures(a: Samples, b: Samples) -> Iterator[Figure]:
    for name, kind in KINDS.items():
        if name in a.figures and name in b.figures:
            yield _figure(name, kind, a, b)


def _figure(name: str, kind: Kind, a: Samples, b: Samples) -> Figure:
    one, other = a.figures[name], b.figures[name]
    latency, _, share = name.partition(" ")
    is_ratio = kind.unit != "share" and _positive(one) and _positive(other)
    middle = _geometric_mean if is_ratio else _mean
    value_a, value_b = middle(one.values), middle(other.values)
    value = value_b / value_a if is_ratio else value_b - value_a
    change: Estimate | float = value
    why = ""
    if len(one.values) + len(other.values) > 2:
        change = _by_runs(one.values, other.values, is_ratio)
    elif share in SHARES and min(a.good, b.good) < (needed := _TAIL / (1 - SHARES[share])):
        why = f"{min(a.good, b.good)} of {needed:.0f} requests"
    elif one.draws is None or other.draws is None:
        why = "one value each"
    else:
        change = _by_draws(one.draws, other.draws, value, is_ratio)
    verdict, effect = None, None
    if isinstance(change, Estimate):
        verdict = _verdict(change, 1.0 if is_ratio else 0.0, kind.lower_is_better)
        if share == "p50" and latency in a.requests and latency in b.requests:
            effect = cliffs_delta(a.requests[latency], b.requests[latency])
    return Figure(
        name=name, unit=kind.unit, a=value_a, b=value_b, is_ratio=is_ratio, change=change,
        verdict=verdict, why=why, effect=effect,
    )  # fmt: skip


def _positive(sample: Sample) -> bool:
    """Whether it can be divided by, whatever it might have been."""
    return min(sample.values) > 0 and (sample.draws is None or bool((sample.draws > 0).all()))


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(_mean([math.log(value) for value in values]))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _by_runs(a: Sequence[float], b: Sequence[float], is_ratio: bool) -> Estimate:
    if not is_ratio:
        return difference(a, b)
    found = difference([math.log(value) for value in a], [math.log(value) for value in b])
    return Estimate(*(math.exp(part) for part in (found.value, found.low, found.high)))


def _by_draws(a: Floats, b: Floats, value: float, is_ratio: bool) -> Estimate:
    count = min(len(a), len(b))
    low, high = interval(b[:count] / a[:count] if is_ratio else b[:count] - a[:count])
    return Estimate(value, min(float(low), value), max(float(high), value))


def _verdict(change: Estimate, same: float, lower_is_better: bool | None) -> Verdict:
    if change.low <= same <= change.high:
        return "not distinguishable"
    if lower_is_better is None:
        return "different"
    return "better" if (change.value < same) == lower_is_better else "worse"
