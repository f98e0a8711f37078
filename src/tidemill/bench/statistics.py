"""Percentiles with bootstrap confidence intervals.

Values of one request are not independent of each other (a slow request has many long gaps), so what
is resampled are requests, each with all of its values.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

RESAMPLES = 500
LEVEL = 0.95
_SEED = 20240229  # the same records give the same intervals

Floats = npt.NDArray[np.float64]


class Estimate(msgspec.Struct, frozen=True):
    """A value, and the interval in which it lies with a confidence of ``LEVEL``."""

    value: float
    low: float
    high: float


def percentiles(groups: Sequence[Sequence[float]], shares: Sequence[float]) -> list[Estimate]:
    """The percentiles (``shares`` from 0 to 1) of all values together, without interpolation: the
    least value that has at least that share of the values at or below it. ``groups`` are the values
    of each request. Raises ValueError if there is no value."""
    values = np.concatenate([np.asarray(group, dtype=np.float64) for group in groups])
    if not len(values):
        raise ValueError("there are no values")
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    order = np.argsort(values, kind="stable")
    values, owner = values[order], owner[order]
    wanted = np.asarray(shares, dtype=np.float64)
    whole = _weighted(values, np.ones(len(values)), wanted)
    rng = np.random.default_rng(_SEED)
    found = np.empty((RESAMPLES, len(wanted)))
    kept = 0
    even = np.full(len(groups), 1 / len(groups))
    for _ in range(RESAMPLES):
        # Drawing requests with replacement is giving each a number of times that it counts.
        times = rng.multinomial(len(groups), even)[owner].astype(np.float64)
        if times.any():
            found[kept] = _weighted(values, times, wanted)
            kept += 1
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(found[:kept], [tail, 1 - tail], axis=0)
    return [
        Estimate(float(v), float(min(a, v)), float(max(b, v)))
        for v, a, b in zip(whole, low, high, strict=True)
    ]


def _weighted(values: Floats, weights: Floats, shares: Floats) -> Floats:
    """Percentiles of ascending ``values`` of which each counts ``weights`` times."""
    below = np.cumsum(weights)
    at = np.searchsorted(below, shares * below[-1] * (1 - 1e-12))
    found: Floats = values[np.minimum(at, len(values) - 1)]
    return found
