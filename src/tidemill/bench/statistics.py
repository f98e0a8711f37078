"""Percentiles with bootstrap confidence intervals, and what tells two samples apart.

Values of one request are not independent of each other (a slow request has many long gaps), so what
is resampled are requests, each with all of its values. Where requests depend on those before them,
as they do in a queue, blocks of them are resampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

RESAMPLES = 500
LEVEL = 0.95
_SEED = 20240229  # the same records give the same intervals
_AT_ONCE = 1_000_000  # values that are drawn together, for speed
_NEARLY = 1 - 1e-12  # of a share: rounding must not make it more than it is

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.float64] | npt.NDArray[np.int64]


class Estimate(msgspec.Struct, frozen=True):
    """A value, and the interval in which it lies with a confidence of ``LEVEL``."""

    value: float
    low: float
    high: float


def percentiles(groups: Sequence[Sequence[float]], shares: Sequence[float]) -> list[Estimate]:
    """The percentiles (``shares`` from 0 to 1) of all values together, without interpolation: the
    least value that has at least that share of the values at or below it. ``groups`` are the values
    of each request. Raises ValueError if there is no value."""
    count = len(groups)
    if not any(map(len, groups)):
        raise ValueError("there are no values")
    rng = np.random.default_rng(_SEED)
    even = np.full(count, 1 / count)
    # Drawing requests with replacement is giving each a number of times that it counts.
    weights = (rng.multinomial(count, even) for _ in range(RESAMPLES))
    whole, *found = resampled_percentiles(groups, shares, [np.ones(count), *weights])
    low, high = interval(np.asarray(found))
    return [
        Estimate(float(v), float(min(a, v)), float(max(b, v)))
        for v, a, b in zip(whole, low, high, strict=True)
    ]


def resampled_percentiles(
    groups: Sequence[Sequence[float]], shares: Sequence[float], weights: Iterable[Numbers]
) -> Floats:
    """The percentiles of resamples, in each of which group i counts ``weights[i]`` times. Of shape
    (resamples, shares), without those that have no value."""
    values = np.concatenate([np.asarray(group, dtype=np.float64) for group in groups])
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    order = np.argsort(values, kind="stable")
    values, owner = values[order], owner[order]
    wanted = np.asarray(shares)
    found = [
        weighted_percentiles(values, times, wanted)
        for row in weights
        if (times := row[owner]).any()
    ]
    return np.asarray(found).reshape(len(found), len(shares))


def weighted_percentiles(values: Floats, weights: Numbers, shares: npt.ArrayLike) -> Floats:
    """Percentiles of ascending ``values`` of which each counts ``weights`` times, some of them more
    than 0."""
    below = weights.cumsum()
    at = below.searchsorted(np.asarray(shares) * (below[-1] * _NEARLY))
    found: Floats = values[at]
    return found


def rank(count: int, share: float) -> int:
    """Which of ``count`` ascending values, from 0 on, is that percentile: as ``percentiles``."""
    return max(0, math.ceil(share * count * _NEARLY) - 1)


def interval(draws: Floats) -> Floats:
    """The lower and the upper end of what most of the draws (axis 0) lie in."""
    tail = (1 - LEVEL) / 2
    found: Floats = np.quantile(draws, [tail, 1 - tail], axis=0)
    return found


def block_weights(count: int, rng: np.random.Generator) -> Iterator[Numbers]:
    """``RESAMPLES`` of ``count`` values in a row: how often each value is in them. Drawn are blocks
    of neighbours, of the length count^(1/3), which may go on at the beginning.

    The circular block bootstrap of Politis and Romano, "A circular block-resampling procedure for
    stationary data" (1992).
    """
    length = math.ceil(count ** (1 / 3))
    blocks = -(-count // length)
    rows = max(1, _AT_ONCE // count)
    for done in range(0, RESAMPLES, rows):
        rows = min(rows, RESAMPLES - done)
        starts = rng.integers(0, count, (rows, blocks, 1))
        drawn = ((starts + np.arange(length)) % count).reshape(rows, -1)[:, :count]
        drawn = drawn + count * np.arange(rows)[:, None]
        yield from np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)


# 97.5 % points of Student's t distribution with 1, 2, ... 30 degrees of freedom.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def difference(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """Mean of ``b`` less mean of ``a``, with Student's interval for samples of one variance. They
    need three values together; one of them may have but one."""
    freedom = len(a) + len(b) - 2
    if freedom < 1:
        raise ValueError("three values are needed to know their spread")
    value = float(np.mean(b) - np.mean(a))
    squares = len(a) * float(np.var(a)) + len(b) * float(np.var(b))
    error = math.sqrt(squares / freedom * (1 / len(a) + 1 / len(b)))
    width = error * _T[min(freedom, len(_T)) - 1]
    return Estimate(value, value - width, value + width)


def cliffs_delta(a: Sequence[float], b: Sequence[float]) -> float:
    """How often a value of ``b`` is above one of ``a``, less how often it is below: from -1 (all
    are below) over 0 (neither is) to 1 (all are above).

    Norman Cliff, "Dominance statistics: ordinal analyses to answer ordinal questions" (1993).
    """
    ordered = np.sort(np.asarray(a, dtype=np.float64))
    above = np.searchsorted(ordered, b, side="left").sum()
    below = len(ordered) * len(b) - np.searchsorted(ordered, b, side="right").sum()
    return float(above - below) / (len(ordered) * len(b))


def fisher_exact(a: int, of_a: int, b: int, of_b: int) -> float:
    """The probability that ``a`` of ``of_a`` and ``b`` of ``of_b`` are as far apart as they are, or
    farther, if both have the same share in truth (two-sided).

    R. A. Fisher, "On the interpretation of chi-square from contingency tables, and the calculation
    of P" (1922).
    """
    both = a + b

    def log_ways(of: int, count: int) -> float:
        return math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1)

    whole = log_ways(of_a + of_b, both)
    chances = {
        x: math.exp(log_ways(of_a, x) + log_ways(of_b, both - x) - whole)
        for x in range(max(0, both - of_b), min(of_a, both) + 1)
    }
    limit = chances[a] * (1 + 1e-7)
    return min(1.0, sum(chance for chance in chances.values() if chance <= limit))
