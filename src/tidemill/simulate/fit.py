"""From measured steps to a step table: a monotone, piecewise linear fit, and its honest error.

Every step is a sum of what its tokens cost together, what its rows of logits cost together, and
attention (see step_table.py). Both curves are lines between knots; as sums of ramps with slopes
that are not negative they never fall, and all unknowns together are found by least squares
without negative solutions (Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23),
on relative errors, so that short steps count like long ones.

A part of the measured steps is not fitted. How far they are off is the error that is stated.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from tidemill.records import dataclass
from tidemill.simulate.base import StepWork

_ITERATIONS = 1000
_TOLERANCE = 1e-12
_SMOOTH = 0.5  # how much a bend of the size of a step counts, against a step that is off by that
HELD_OUT = 0.25
MOST_TOKENS = 1 << 20  # of a step

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


@dataclass(frozen=True, slots=True)
class Observation:
    """A kind of step and the seconds that it takes: the median of several."""

    work: StepWork
    seconds: float


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Knots [n, seconds] of both curves, from 0 on, and seconds for each token attended to and for
    each of the mean context of a prompt's tokens (``StepTable`` says why)."""

    tokens: Annotated[list[tuple[Count, Seconds]], msgspec.Meta(min_length=2, max_length=1000)]
    rows: Annotated[list[tuple[Count, Seconds]], msgspec.Meta(min_length=2, max_length=1000)]
    per_prompt_context: Seconds
    per_decode_context: Seconds
    per_prompt_read: Seconds

    def __post_init__(self) -> None:
        for curve in (self.tokens, self.rows):
            places = [n for n, _ in curve]
            if places[0] != 0 or any(a >= b for a, b in itertools.pairwise(places)):
                raise ValueError("knots begin at 0 and rise")
            if places[-1] > MOST_TOKENS:
                raise ValueError(f"knots end at {MOST_TOKENS} at the latest")
            if any(a > b for (_, a), (_, b) in itertools.pairwise(curve)):
                raise ValueError("more tokens or rows never take less time")

    def seconds(self, work: StepWork) -> float:
        return (
            _at(self.tokens, _tokens(work))
            + _at(self.rows, work.rows)
            + self.per_prompt_context * work.prompt_context
            + self.per_decode_context * work.decode_context
            + self.per_prompt_read * work.prompt_context / max(1, work.prompt_tokens)
        )


Off = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class Error(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of ``steps`` kinds of steps, as shares of what was measured."""

    steps: int
    median: Off
    p95: Off
    worst: Off


def split(
    observations: Sequence[Observation], seed: int
) -> tuple[list[Observation], list[Observation]]:
    """Those to fit, and those held out: a quarter by chance, but none at the ends of what was
    measured, since a fit says nothing of what lies beyond."""
    inner = [o for o in observations if not _is_extreme(o, observations)]
    held = random.Random(seed).sample(inner, min(len(inner), round(HELD_OUT * len(observations))))
    return [o for o in observations if o not in held], held


def _is_extreme(one: Observation, among: Sequence[Observation]) -> bool:
    """Whether no other has as many, or as few, of something."""
    for what in (_tokens, _rows, _prompt_context, _decode_context):
        values = [what(o.work) for o in among]
        mine = what(one.work)
        if values.count(mine) == 1 and mine in (min(values), max(values)):
            return True
    return False


def fit(observations: Sequence[Observation]) -> Costs:
    """Raises ValueError if there are too few, or times that cannot be."""
    if not all(math.isfinite(o.seconds) and o.seconds > 0 for o in observations):
        raise ValueError("steps take a positive, finite time")
    if len({_tokens(o.work) for o in observations}) < 2 or not any(
        o.work.rows for o in observations
    ):
        raise ValueError(f"{len(observations)} kinds of steps are too few to fit")
    # Where steps have as many rows as tokens, nothing tells what is of which: the curve of tokens
    # bends only where it is seen by itself.
    few_rows = [o for o in observations if o.work.rows <= 1] or observations
    token_knots = _knots([_tokens(o.work) for o in few_rows])
    row_knots = [0, *_knots([_rows(o.work) for o in observations if o.work.rows])]
    columns = len(token_knots) + len(row_knots) + 2
    matrix = np.zeros((len(observations), columns))
    for i, o in enumerate(observations):
        n, rows = _tokens(o.work), _rows(o.work)
        mean = o.work.prompt_context / max(1, o.work.prompt_tokens)
        contexts = [o.work.prompt_context, o.work.decode_context, mean]
        matrix[i] = [1.0, *_ramps(token_knots, n), *_ramps(row_knots, rows), *contexts]
        matrix[i] /= o.seconds
    target = np.ones(len(observations))
    bends = [
        *_bends(token_knots, 1, columns, observations, _tokens),
        *_bends(row_knots, len(token_knots), columns, observations, _rows),
    ]
    if bends:
        matrix = np.vstack([matrix, *bends])
        target = np.concatenate([target, np.zeros(len(bends))])
    # Columns of one size: contexts are thousands of times larger than rows.
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    solution = nonnegative_least_squares(matrix / scale, target) / scale
    n_tokens = len(token_knots)
    per_prompt_context, per_decode_context, per_prompt_read = map(float, solution[-3:])
    return Costs(
        tokens=[(0, 0.0), *_curve(token_knots, solution[0], solution[1:n_tokens])],
        rows=_curve(row_knots, 0.0, solution[n_tokens : n_tokens + len(row_knots) - 1]),
        per_prompt_context=per_prompt_context,
        per_decode_context=per_decode_context,
        per_prompt_read=per_prompt_read,
    )


def error(costs: Costs, observations: Sequence[Observation]) -> Error:
    """How far off ``costs`` are for ``observations``, of which there is at least one."""
    off = [abs(costs.seconds(o.work) / o.seconds - 1) for o in observations]
    return Error(len(off), statistics.median(off), float(np.quantile(off, 0.95)), max(off))


def _tokens(work: StepWork) -> int:
    return work.prompt_tokens + work.decodes


def _rows(work: StepWork) -> int:
    return work.rows


def _prompt_context(work: StepWork) -> int:
    return work.prompt_context


def _decode_context(work: StepWork) -> int:
    return work.decode_context


def _knots(values: Sequence[int]) -> list[int]:
    """The values that are at least two fifths apart: between nearer ones noise would be fitted."""
    knots: list[int] = []
    for value in sorted(set(values)):
        if not knots or value >= 1.4 * knots[-1]:
            knots.append(value)
    last = max(values)
    if knots[-1] != last:
        knots[-1] = last
    return knots


def _ramps(knots: Sequence[int], n: int) -> list[float]:
    """For each segment between knots how much of it lies below ``n``; beyond them the last goes
    on, before them the first."""
    ramps = [float(min(max(n - low, 0), high - low)) for low, high in itertools.pairwise(knots)]
    if ramps and n > knots[-1]:
        ramps[-1] += n - knots[-1]
    return ramps


def _bends(
    knots: Sequence[int], first: int, columns: int, observations: Sequence[Observation],
    what: Callable[[StepWork], int],
) -> list[npt.NDArray[np.float64]]:  # fmt: skip
    """Rows that draw neighbouring slopes, from column ``first`` on, towards each other: weakly, so
    that noise makes no stairs and a knot that little is known of lies between its neighbours."""
    rows = []
    for i in range(len(knots) - 2):
        low, middle, high = knots[i : i + 3]
        nearest = min(observations, key=lambda o: abs(what(o.work) - middle))
        weight = _SMOOTH * min(middle - low, high - middle) / nearest.seconds
        row = np.zeros(columns)
        row[first + i], row[first + i + 1] = -weight, weight
        rows.append(row)
    return rows


def _curve(
    knots: Sequence[int], first: float, slopes: npt.NDArray[np.float64]
) -> list[tuple[int, float]]:
    rises = np.diff(knots) * slopes
    return list(zip(knots, np.cumsum([first, *rises]).tolist(), strict=True))


def _at(curve: Sequence[tuple[int, float]], n: int) -> float:
    """On the line between the two knots around ``n``, or the last two."""
    segments = itertools.pairwise(curve)
    (low, before), (high, after) = next(
        (segment for segment in segments if n <= segment[1][0]), (curve[-2], curve[-1])
    )
    return before + (after - before) * (n - low) / (high - low)


def nonnegative_least_squares(
    matrix: npt.NDArray[np.float64], target: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """x >= 0 that makes |matrix x - target| least."""
    n = matrix.shape[1]
    x = np.zeros(n)
    positive = np.zeros(n, bool)  # those that may be
    for _ in range(_ITERATIONS):
        gradient = matrix.T @ (target - matrix @ x)
        gradient[positive] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= _TOLERANCE:
            break
        positive[best] = True
        trial = _solve(matrix, target, positive)
        if trial[best] <= 0:  # there is nothing to gain but rounding errors
            break
        while (falling := positive & (trial <= 0)).any():
            # As far towards the trial as all stay positive; what comes to zero first stays there.
            shares = np.full(n, np.inf)
            shares[falling] = x[falling] / (x[falling] - trial[falling])
            first = int(np.argmin(shares))
            x += shares[first] * (trial - x)
            positive[first] = False
            x[~positive] = 0.0
            trial = _solve(matrix, target, positive)
        x = trial
    return x


def _solve(
    matrix: npt.NDArray[np.float64], target: npt.NDArray[np.float64], among: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Least squares with only those columns ``among`` them, zero for others."""
    x = np.zeros(matrix.shape[1])
    x[among] = np.linalg.lstsq(matrix[:, among], target, rcond=None)[0]
    return x
