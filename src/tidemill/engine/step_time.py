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
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

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
_GOOD, _EVERY = 0.03, 4  # once warm, one in so many steps predicted that well is learned from
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
        self._unit = _vector(guess or StepCosts())  # the costs are multiples of these
        one = np.ones((4, 4))
        # Along (1, 1, 1, 1) the guess is loose, across it firm.
        self._information = _SHAPE_WEIGHT * (np.eye(4) - one / 4) + _SCALE_WEIGHT * one / 4
        self._fit = np.ones(4)
        self._used = self._fit
        self._deviation = 0.1
        self._tail = 0.0
        self._astray: list[float] = []  # the last outliers' ratios, all on one side
        self._use(self._unit)
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
            self._use(self._unit)
            self._unit = self._unit * (seconds / self.seconds(work))
            self._use(self._unit)
        self._note_change(seconds / max(self.seconds(work), 1e-12))
        predicted = max(self.seconds(work), 1e-12)
        excess = seconds / predicted - 1
        self._note_tail(excess)
        if abs(excess) < _GOOD and self.measured > 16 * _WARM and self.measured % _EVERY:
            return
        x = self._unit * (1.0, work.tokens, work.context, work.rows) / predicted
        error = seconds / predicted - float(x @ self._fit)
        weight = self._weigh(error)
        known = self._information @ x
        total = float(x @ known)
        # The worse the predictions, the faster what they come from is given up.
        fade = max(_FASTEST_FADE, _FADE - _FADE_PER_DEVIATION * self._deviation)
        information = self._information - (1 - fade) / total * np.outer(known, known)
        information += weight * np.outer(x, x)
        self._information = (information + information.T) / 2
        self._fit = self._fit + np.linalg.solve(self._information, x * (weight * error))
        least = float(self._fit.min())
        self._used = self._fit if least >= 0 else _not_negative(self._information, self._fit)
        self._use(self._used * self._unit)

    def _use(self, costs: npt.NDArray[np.float64]) -> None:
        self._step, self._token, self._context, self._row = map(float, costs)

    def _note_change(self, ratio: float) -> None:
        """Many outliers in a row on one side are no disturbance: the whole machine has become
        slower or faster, at least by the ``ratio`` of measured to predicted that is nearest 1."""
        if self.measured <= _WARM or abs(ratio - 1) <= _OUTLIER * self._deviation:
            self._astray.clear()
            return
        if self._astray and (self._astray[0] > 1) != (ratio > 1):
            self._astray.clear()
        self._astray.append(ratio)
        if len(self._astray) > _CHANGE:
            self._unit = self._unit * (min(self._astray) if ratio > 1 else max(self._astray))
            self._use(self._used * self._unit)
            self._astray.clear()

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


def _vector(costs: StepCosts) -> npt.NDArray[np.float64]:
    return np.array([costs.per_step, costs.per_token, costs.per_context, costs.per_row])


def _not_negative(
    information: npt.NDArray[np.float64], fit: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The x >= 0 with the least (x - fit)' information (x - fit), by coordinate descent."""
    m = information.tolist()
    target = (information @ fit).tolist()
    x = np.maximum(fit, 0.0).tolist()
    for _ in range(30):
        for i in range(4):
            rest = sum(m[i][j] * x[j] for j in range(4) if j != i)
            x[i] = max(0.0, (target[i] - rest) / m[i][i])
    return np.array(x)
