"""Figures of a recording. Which definitions they follow:

TTFT    first piece of text - when the request was due
ITL     gaps between the pieces of an answer's text, those of all requests together (as vLLM)
TPOT    (E2E - TTFT) / (tokens - 1), one value for each request (as vLLM; AIPerf calls it ITL)
E2E     last piece of text - when the request was due
delay   sent - due, which is the load generator's own lateness
rates   what arrived within the window / its seconds; a token counts when its piece came
goodput requests that were due in the window and meet the SLO / its seconds

Requests that failed have no latencies; they count as requests that do not meet the SLO.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tidemill.bench.arrivals import variation
from tidemill.bench.records import Record, Recording
from tidemill.bench.statistics import Estimate, percentiles

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

MAX_DELAY = 0.01
"""Seconds of dispatch delay at p99 beyond which a run says more of the load generator than of what
it measures."""

_MOST = 1e15
"""Beyond what any figure is."""


class Slo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request must keep to, in seconds; None: anything."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            limit = getattr(self, name)
            if limit is not None and not 0 < limit < math.inf:
                raise ValueError(f"{name} must be more than 0 seconds, not {limit}")

    def __str__(self) -> str:
        limits = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return ",".join(f"{name}={limit:g}" for name, limit in limits if limit is not None)

    def met_by(self, record: Record) -> bool:
        if record.error is not None:
            return False
        limits = ((self.ttft, ttft), (self.tpot, tpot), (self.e2e, e2e))
        values = [(limit, measure(record)) for limit, measure in limits if limit is not None]
        return all(value is None or value <= limit for limit, value in values)


def ttft(record: Record) -> float:
    return record.times[0] - record.due


def e2e(record: Record) -> float:
    return record.times[-1] - record.due


def tpot(record: Record) -> float | None:
    """None for an answer of one token, or one that came as a whole, as calls of tools may."""
    if record.tokens < 2 or record.times[-1] <= record.times[0]:
        return None
    return (record.times[-1] - record.times[0]) / (record.tokens - 1)


def gaps(record: Record) -> list[float]:
    times = record.times
    return [after - before for before, after in itertools.pairwise(times)]


class Summary(msgspec.Struct, kw_only=True):
    """The figures of one run. Latencies are in seconds, by name ("ttft", "itl", "tpot", "e2e") and
    percentile ("p50", "p90", "p99"); what no request has is left out. Rates are per second.

    ``requests`` were due in the window; each is one of ``good`` and ``errors`` (by kind).
    ``unfinished`` of them were still running when it closed. ``invalid`` says why the figures are
    not to be trusted, if so. ``client_share`` is what the load generator took of one core.
    """

    seconds: float
    requests: int
    good: int
    errors: dict[str, int]
    examples: dict[str, str]
    """What an endpoint said of an error of that kind."""
    unfinished: int
    latency: dict[str, dict[str, Estimate]]
    delay_p99: float
    output_rate: float
    prompt_rate: float
    request_rate: float
    mean_prompt_tokens: float
    mean_output_tokens: float
    cached_share: float | None
    """Of the prompt tokens, how many came from a cache; None where the endpoint does not tell."""
    goodput: float | None
    attained: float | None
    """Share of the requests that met the SLO."""
    counted: bool
    """Tokens are as the endpoint's usage says; else each piece of text counts as one."""
    client_share: float
    watched: dict[int, float]
    """CPU seconds of other processes within the window."""
    invalid: str | None
    short: int = 0
    """Of the good answers, how many are known to have fewer tokens than they could have."""
    long: int = 0
    """And how many to have more."""
    variation: float | None = None
    """Coefficient of variation of the gaps between requests that were due (``arrivals.py``)."""
    verdicts: dict[str, int] = {}
    """Of the good answers that were checked, how many were "right", "wrong" and "malformed"."""

    def __post_init__(self) -> None:
        """Raises ValueError for figures that no run has: files may be damaged, or edited."""
        counts = (self.good, self.unfinished, self.short, self.long, *self.errors.values(),
                  *self.verdicts.values())  # fmt: skip
        if min(counts) < 0 or self.requests != self.good + sum(self.errors.values()):
            raise ValueError("requests must be those that are good and those with errors")
        if max(self.short + self.long, sum(self.verdicts.values())) > self.good:
            raise ValueError("more answers are short, long or checked than are good")
        figures = [self.delay_p99, self.output_rate, self.prompt_rate, self.request_rate,
                   self.mean_prompt_tokens, self.mean_output_tokens, self.cached_share or 0,
                   self.goodput or 0, self.attained or 0, self.client_share]  # fmt: skip
        for of in self.latency.values():
            for estimate in of.values():
                figures += [estimate.value, estimate.low, estimate.high]
        if not (0 < self.seconds < _MOST and all(abs(figure) < _MOST for figure in figures)):
            raise ValueError(f"figures must be numbers below {_MOST:g}")
        if not 0 <= (self.attained or 0) <= 1:
            raise ValueError("the attained share must be 0 to 1")
        if (self.attained is None) != (self.goodput is None):
            raise ValueError("there is either goodput and an attained share, or neither")
        if self.errors.keys() != self.examples.keys():
            raise ValueError("errors and examples must be of the same kinds")
        needed = {"ttft", "e2e"} if self.good else set()
        if not needed <= self.latency.keys() <= LATENCIES.keys() or any(
            of.keys() != SHARES.keys() for of in self.latency.values()
        ):
            raise ValueError(f"good answers have a TTFT and an E2E, and each latency {[*SHARES]}")


def summarise(recording: Recording, slo: Slo | None = None, shape: str | None = None) -> Summary:
    """Figures of a run; latencies and errors of the requests of one shape only, if one is named."""
    window = recording.window
    due = [record for record in recording.due if shape in (None, record.shape)]
    good = [r for r in due if r.error is None]
    errors = dict(Counter(r.error for r in due if r.error is not None))
    counts = [r.cached_tokens for r in good if r.cached_tokens is not None]
    prompt = sum(r.prompt_tokens or 0 for r in good)
    met = None if slo is None else sum(map(slo.met_by, due))
    delay = _of(due, lambda r: [r.sent - r.due])
    delay_p99 = delay["p99"].value if delay else 0.0
    return Summary(
        seconds=window.seconds,
        requests=len(due),
        good=len(good),
        errors=errors,
        examples={r.error: r.detail for r in due if r.error is not None},
        unfinished=sum(r.ended > window.closed for r in due),
        latency={name: found for name, of in LATENCIES.items() if (found := _of(good, of))},
        delay_p99=delay_p99,
        output_rate=_output_tokens(recording) / window.seconds,
        prompt_rate=_prompt_tokens(recording) / window.seconds,
        request_rate=request_rate(recording),
        mean_prompt_tokens=prompt / max(1, len(good)),
        mean_output_tokens=sum(r.tokens for r in good) / max(1, len(good)),
        cached_share=sum(counts) / max(1, prompt) if counts else None,
        goodput=None if met is None else met / window.seconds,
        attained=None if met is None else met / max(1, len(due)),
        counted=all(r.output_tokens is not None for r in good),
        client_share=recording.client_cpu / window.seconds,
        watched=recording.watched,
        invalid=_invalid(len(due), delay_p99, errors),
        short=sum(r.output_tokens is not None and r.output_tokens < r.asked for r in good),
        long=sum(r.output_tokens is not None and r.output_tokens > r.asked for r in good),
        variation=variation([r.due for r in due if not r.turn]),
        verdicts=dict(Counter(r.verdict for r in good if r.verdict is not None)),
    )


def _invalid(requests: int, delay_p99: float, errors: Mapping[str, int]) -> str | None:
    if not requests:
        return "no request was due in the window"
    if "exhausted" in errors:
        return "the load generator ran out of connections"
    if errors and requests == sum(errors.values()):
        return "no request was answered"
    if delay_p99 > MAX_DELAY:
        return (
            f"1 % of the requests were sent {1000 * delay_p99:.1f} ms late or more: the load "
            "generator did not keep up"
        )
    return None


# In the order in which they are shown, by the names that they have in capitals there.
LATENCIES: dict[str, Callable[[Record], Sequence[float]]] = {
    "ttft": lambda r: [ttft(r)],
    "tpot": lambda r: [] if (value := tpot(r)) is None else [value],
    "itl": gaps,
    "e2e": lambda r: [e2e(r)],
}


def _of(
    records: Sequence[Record], values: Callable[[Record], Sequence[float]]
) -> dict[str, Estimate]:
    groups = [values(record) for record in records]
    if not any(groups):
        return {}
    return dict(zip(SHARES, percentiles(groups, list(SHARES.values())), strict=True))


def _output_tokens(recording: Recording) -> float:
    """Tokens that arrived within the window. An answer's tokens are spread evenly over its pieces:
    a piece can hold several, and none where a token is half a character."""
    window = recording.window
    total = 0.0
    for record in recording.records:
        if record.times:
            inside = sum(window.opened <= t < window.closed for t in record.times)
            total += record.tokens * inside / len(record.times)
    return total


def _prompt_tokens(recording: Recording) -> int:
    """Tokens of the prompts whose answers began within the window."""
    window = recording.window
    return sum(
        record.prompt_tokens or 0
        for record in recording.records
        if record.times and window.opened <= record.times[0] < window.closed
    )


def request_rate(recording: Recording) -> float:
    """Good answers a second that came to their end within the window."""
    window = recording.window
    ended = sum(
        record.error is None and window.opened <= record.ended < window.closed
        for record in recording.records
    )
    return ended / window.seconds
