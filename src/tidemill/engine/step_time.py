"""How long a forward step takes, learned while it is served.

    seconds(step) = per_step + per_token * tokens + per_context * context + per_row * logit rows

``context`` is the sum over the step's tokens of the tokens that each attends to. The four costs
are fitted by recursive least squares on relative errors, so that short steps count like long ones:

- What is not seen is not forgotten: old information fades only in the direction of the new
  measurement (directional forgetting; Cao and Schwartz, "A directional forgetting algorithm based
  on the decomposition of the information matrix", Automatica 36(11), 2000). After an hour of
  single decodes the cost of a prompt token is still known.
- A measurement far off the others (a paused process, a busy machine) weighs as little as it is
  far off (Huber's weights), and so cannot move the fit by more than an ordinary one. Many such in
  a row, all on one side, are a change of the machine's speed, and scale all costs at once.
- No cost is negative: the nearest such fit is used, by the metric of what is known.

Before the first measurement the costs are a guess, of which the proportions stay believed until
measurements say otherwise; the overall speed is taken from the first one. No clock is read here.

Four unknowns are too few for NumPy, whose calls would take longer than the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

from tidemill.records import dataclass

_FADE = 0.98  # of old information in the direction of a new measurement
_FADE_PER_DEVIATION, _FASTEST_FADE = 0.25, 0.85
_SHAPE_WEIGHT = 0.02  # how many measurements the guessed proportions are worth
_SCALE_WEIGHT = 0.001  # the same for the guessed speed
_WARM = 8  # measurements before any is taken for an outlier
_OUTLIER = 3.0  # mean deviations beyond which a measurement loses weight
_CHANGE = 6  # outliers in a row on one side that are believed after all
_SLOW = 0.05  # of the running mean deviation
_LEAST_DEVIATION = 0.005
_MANY, _EVERY = 128, 4  # after so many measurements, one in so many ordinary ones is learned from
_MOST_TOKENS = 2**31
_LEAST_SECONDS, _MOST_SECONDS = 1e-9, 1e6
_TAIL = 0.99  # the share of steps that ``tail`` covers
_MOST_TAIL = 0.25


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step, per step, per token, per token attended to and per row of logits."""

    per_step: float = 4e-3
    per_token: float = 5e-4
    per_context: float = 5e-8
    per_row: float = 1e-4

    def __post_init__(self) -> None:
        for value in (self.per_step, self.per_token, self.per_context, self.per_row):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"a step's costs must be positive, not {self}")


@dataclass(frozen=True, slots=True)
class Work:
    """What a step has to compute."""

    tokens: int
    context: int
    rows: int


def attended(start: int, n: int) -> int:
    """The context of ``n`` tokens that follow ``start`` others: token i attends to i + 1."""
    return n * start + n * (n + 1) // 2


class StepTimeModel:
    """Predicts the seconds of a step from the seconds of those before."""

    def __init__(self, guess: StepCosts | None = None) -> None:
        guess = guess or StepCosts()
        # The costs are multiples of these.
        self._unit = [guess.per_step, guess.per_token, guess.per_context, guess.per_row]
        # Along (1, 1, 1, 1) the guess is loose, across it firm.
        rest = (_SCALE_WEIGHT - _SHAPE_WEIGHT) / 4
        self._information = [
            [rest + _SHAPE_WEIGHT if i == j else rest for j in range(4)] for i in range(4)
        ]
        self._fit = [1.0] * 4
        self._used = self._fit
        self._deviation = 0.1
        self._tail = 0.0
        self._astray: list[float] = []  # the last outliers' ratios, all on one side
        self._use()
        self.measured = 0
        """Measurements taken so far."""

    @property
    def costs(self) -> tuple[float, float, float, float]:
        """Seconds per step, token, token attended to and logit row, as they are used now."""
        return self._step, self._token, self._context, self._row

    @property
    def tail(self) -> float:
        """How far, as a share of the prediction, about one step in a hundred goes beyond it; at
        most a quarter, since more than that is no matter of what a step computes."""
        return self._tail

    def seconds(self, work: Work) -> float:
        return (
            self._step
            + self._token * work.tokens
            + self._context * work.context
            + self._row * work.rows
        )

    def next_token(self, context: int) -> float:
        """Seconds that one more token with a row of logits adds, after ``context`` others."""
        return self._token + self._context * (context + 1) + self._row

    def chunk(self, start: int, n: int, rows: int) -> float:
        """Seconds that ``n`` prompt tokens after ``start`` others add, ``rows`` of them with
        logits."""
        return self._token * n + self._context * attended(start, n) + self._row * rows

    def most_tokens(self, start: int, seconds: float, *, all_rows: bool = False) -> int:
        """The longest such chunk that takes at most ``seconds``, with logits for its last token,
        or for all."""
        each = self._token + self._context * (start + 0.5)
        if all_rows:
            each += self._row
        else:
            seconds -= self._row
        if seconds <= 0:
            return 0
        if seconds == math.inf:
            return _MOST_TOKENS
        # The larger root of context / 2 * n^2 + each * n = seconds, in the form that does not
        # cancel where the square's share is small.
        root = each + math.sqrt(each * each + 2 * self._context * seconds)
        return int(min(2 * seconds / root, _MOST_TOKENS)) if root > 0 else _MOST_TOKENS

    def observe(self, work: Work, seconds: float) -> None:
        """Learn from a step that took ``seconds``. Times that cannot be are passed over."""
        if not _LEAST_SECONDS < seconds < _MOST_SECONDS:
            return
        self.measured += 1
        if self.measured == 1:
            self._scale(seconds / self.seconds(work))
        predicted = max(self.seconds(work), 1e-12)
        if change := self._change(seconds / predicted):
            self._scale(change)
            predicted = max(self.seconds(work), 1e-12)
        excess = seconds / predicted - 1
        self._note_tail(excess)
        ordinary = abs(excess) <= _OUTLIER * self._deviation
        if ordinary and self.measured > _MANY and self.measured % _EVERY:
            return
        units = (1.0, work.tokens, work.context, work.rows)
        x = [cost * n / predicted for cost, n in zip(self._unit, units, strict=True)]
        error = seconds / predicted - _dot(x, self._fit)
        weight = self._weigh(error)
        known = [_dot(row, x) for row in self._information]
        # The worse the predictions, the faster what they come from is given up.
        fade = max(_FASTEST_FADE, _FADE - _FADE_PER_DEVIATION * self._deviation)
        lost = (1 - fade) / _dot(x, known)
        for row, xi, ki in zip(self._information, x, known, strict=True):
            for j in range(4):
                row[j] += weight * (xi * x[j]) - lost * (ki * known[j])
        gain = weight * error
        step = _solve(self._information, [gain * xi for xi in x])
        self._fit = [a + b for a, b in zip(self._fit, step, strict=True)]
        self._used = self._fit
        if min(self._fit) < 0:
            self._used = _not_negative(self._information, self._fit)
        self._use()

    def _use(self) -> None:
        costs = [x * unit for x, unit in zip(self._used, self._unit, strict=True)]
        self._step, self._token, self._context, self._row = costs

    def _scale(self, factor: float) -> None:
        self._unit = [cost * factor for cost in self._unit]
        self._use()

    def _change(self, ratio: float) -> float | None:
        """Many outliers in a row on one side are no disturbance: the whole machine has become
        slower or faster, at least by the ``ratio`` of measured to predicted that is nearest 1,
        which is then given."""
        if self.measured <= _WARM or abs(ratio - 1) <= _OUTLIER * self._deviation:
            self._astray.clear()
            return None
        if self._astray and (self._astray[0] > 1) != (ratio > 1):
            self._astray.clear()
        self._astray.append(ratio)
        if len(self._astray) <= _CHANGE:
            return None
        change = min(self._astray) if ratio > 1 else max(self._astray)
        self._astray.clear()
        return change

    def _weigh(self, error: float) -> float:
        size = abs(error)
        if self.measured <= _WARM:
            self._deviation += (min(size, 1.0) - self._deviation) / (self.measured + 1)
            return 1.0
        bound = _OUTLIER * self._deviation
        self._deviation += _SLOW * (min(size, bound) - self._deviation)
        self._deviation = max(self._deviation, _LEAST_DEVIATION)
        return 1.0 if size <= bound else bound / size

    def _note_tail(self, excess: float) -> None:
        """A quantile, followed by steps in proportion to the usual deviation."""
        if self.measured > _WARM:
            share = _TAIL if excess > self._tail else _TAIL - 1
            self._tail = min(max(self._tail + share * self._deviation, 0.0), _MOST_TAIL)


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    result: float = sum(map(mul, a, b))
    return result


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """The x with matrix @ x = right, by elimination; ``matrix`` is symmetric and positive
    definite, so that no pivots need be looked for."""
    n = len(right)
    rows = [[*row, b] for row, b in zip(matrix, right, strict=True)]
    for i, pivot in enumerate(rows):
        for row in rows[i + 1 :]:
            factor = row[i] / pivot[i]
            for j in range(i + 1, n + 1):
                row[j] -= factor * pivot[j]
    x = [0.0] * n
    for i in reversed(range(n)):
        row = rows[i]
        x[i] = (row[n] - _dot(row[i + 1 : n], x[i + 1 :])) / row[i]
    return x


def _not_negative(information: Sequence[Sequence[float]], fit: Sequence[float]) -> list[float]:
    """The x >= 0 with the least (x - fit)' information (x - fit), by principal pivoting (Murty,
    "Note on a Bard-type scheme for solving the complementarity problem", Opsearch 11, 1974): the
    first place that is negative is set to 0, or the first 0 that should be more is let go, until
    there is none."""
    target = [_dot(row, fit) for row in information]
    x = list(fit)
    free = [True] * 4
    for _ in range(16):
        for i in range(4):
            if x[i] < 0 if free[i] else _dot(information[i], x) < target[i]:
                free[i] = not free[i]
                break
        else:
            break
        at = [i for i in range(4) if free[i]]
        part = _solve([[information[i][j] for j in at] for i in at], [target[i] for i in at])
        x = [0.0] * 4
        for i, value in zip(at, part, strict=True):
            x[i] = value
    return [max(0.0, value) for value in x]
