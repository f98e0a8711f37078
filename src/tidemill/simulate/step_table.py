"""How long steps take, looked up in tables: the one form of step time, measured or computed.

    seconds = tokens[prompt tokens + decodes] + rows[logit rows]
              + per_prompt_context * prompt context + per_decode_context * decode context
              + per_prompt_read * prompt context / prompt tokens

The products of a forward step see rows of tokens and do not know which are of prompts and which
are decodes, so a mixed step costs what its tokens cost together. Only attention tells the two
apart: a decode reads the KV cache for itself alone, a prompt's tokens share what is read of it (the
last term: the same for few tokens as for many). Weights are read once for all, so ``tokens`` begins
nearly flat and then rises: no straight line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.simulate.base import Origin, StepWork


class StepTable:
    """A ``StepTime``: quick, since a simulation asks for every step.

    ``tokens[n]`` and ``rows[n]`` are seconds, from n = 0; beyond the ends they go on as they do
    between the last two. ``stages``: of a pipeline, which work on parts of a step at the same time
    (as many as the step has tokens, at most); their attention then overlaps. ``tokens`` and
    ``rows`` have that in them already.
    """

    def __init__(
        self,
        tokens: Sequence[float],
        rows: Sequence[float],
        per_prompt_context: float,
        per_decode_context: float,
        per_prompt_read: float = 0.0,
        *,
        origin: Origin,
        source: str,
        band: float,
        stages: int = 1,
    ) -> None:
        if len(tokens) < 2 or len(rows) < 2:
            raise ValueError("a step table needs seconds for at least one token and one row")
        self._tokens = list(tokens)
        self._rows = list(rows)
        self._prompt = per_prompt_context
        self._decode = per_decode_context
        self._read = per_prompt_read
        self._stages = stages
        self.origin: Origin = origin
        self.source = source
        self.band = band

    def seconds(self, work: StepWork) -> float:
        n = work.prompt_tokens + work.decodes
        attention = self._decode * work.decode_context
        if prompt := work.prompt_tokens:
            attention += (self._prompt + self._read / prompt) * work.prompt_context
        if self._stages > 1:
            attention /= min(self._stages, max(1, n))
        try:
            return self._tokens[n] + self._rows[work.rows] + attention
        except IndexError:
            return _beyond(self._tokens, n) + _beyond(self._rows, work.rows) + attention


def _beyond(values: list[float], n: int) -> float:
    last = len(values) - 1
    if n <= last:
        return values[n]
    return values[last] + (n - last) * (values[last] - values[last - 1])


def interpolate(knots: Mapping[int, float], upto: int) -> list[float]:
    """Values at 0, 1 ... ``upto`` on the lines between knots, and on the last line beyond them.

    Raises ValueError without a knot at 0 and another one.
    """
    places = sorted(knots)
    if len(places) < 2 or places[0] != 0:
        raise ValueError("a table needs a knot at 0 and another one")
    values = []
    segment = 0
    for n in range(upto + 1):
        while segment < len(places) - 2 and n > places[segment + 1]:
            segment += 1
        low, high = places[segment], places[segment + 1]
        slope = (knots[high] - knots[low]) / (high - low)
        values.append(knots[low] + slope * (n - low))
    return values
