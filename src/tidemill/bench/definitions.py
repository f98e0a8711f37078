"""The same run by the definitions of other load generators, computed from its records.

What each does, as read in November 2026:

vLLM      ``vllm bench serve``: ``calculate_metrics`` in
          https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py, times of a
          request in ``vllm/benchmarks/lib/endpoint_request_func.py`` of the same repository
AIPerf    https://docs.nvidia.com/aiperf/reference/ai-perf-metrics-reference
GuideLLM  https://github.com/vllm-project/guidellm/blob/main/docs/guides/metrics.md, and
          ``GenerativeRequestStats`` and ``GenerativeMetrics.compile`` in the same repository

They are given the requests that were due in the measured window, as a run of theirs would have
sent those alone; GuideLLM, which has a window of its own, is given that. What none of our records
has, is not in theirs: chunks without text, and which tokens came in which chunk.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from tidemill.bench import measures
from tidemill.bench.measures import SHARES, Slo
from tidemill.bench.records import Record, Recording
from tidemill.bench.report import seconds
from tidemill.bench.statistics import weighted_percentiles

TOOLS = {"ours": "Tidemill", "vllm": "vLLM", "aiperf": "AIPerf", "guidellm": "GuideLLM"}
Unit = Literal["seconds", "per second", "requests"]


class Row(msgspec.Struct, frozen=True):
    """One figure by each definition; None: that tool has none like it."""

    name: str
    ours: float | None = None
    vllm: float | None = None
    aiperf: float | None = None
    guidellm: float | None = None


class Definition(msgspec.Struct, frozen=True):
    """``called``: what each tool calls it. ``why``: how the tools differ, in a sentence or two."""

    title: str
    unit: Unit
    called: dict[str, str]
    rows: list[Row]
    why: str


def definitions(recording: Recording, slo: Slo | None = None) -> list[Definition]:
    """All figures that at least one of the others has as well."""
    due = recording.due
    good = [r for r in due if r.error is None]
    found = [*_latencies(good), *_rates(recording, due, good)]
    if slo is not None:
        found.append(_goodput(recording, due, good, slo))
    return [*found, _failed(due)]


# ---- latencies


def _latencies(good: Sequence[Record]) -> list[Definition]:
    answers = [r for r in good if r.tokens > 1]
    per_token = [(r.times[-1] - r.times[0]) / (r.tokens - 1) for r in answers]
    gaps = [gap for r in good for gap in measures.gaps(r)]
    ttft = [r.times[0] - r.sent for r in good]
    last = [r.times[-1] - r.sent for r in good]
    ours_tpot = [value for r in good if (value := measures.tpot(r)) is not None]
    by_tokens = _weighted(per_token, [r.tokens - 1 for r in answers])
    return [
        Definition(
            "first token", "seconds",
            {"ours": "TTFT", "vllm": "TTFT", "aiperf": "TTFT", "guidellm": "TTFT"},
            _rows(
                ours=_stepped([measures.ttft(r) for r in good]), vllm=_linear(ttft),
                aiperf=_linear(ttft), guidellm=_stepped(ttft),
            ),
            "Ours counts from when a request was due, theirs from when it was sent. vLLM's ends at "
            "the first chunk even if that is empty, which our records do not have.",
        ),
        Definition(
            "token after the first", "seconds",
            {"ours": "TPOT", "vllm": "TPOT", "aiperf": "ITL", "guidellm": "ITL"},
            _rows(
                ours=_stepped(ours_tpot), vllm=_linear(per_token), aiperf=_linear(per_token),
                guidellm=by_tokens,
            ),
            "All are (last - first) / (tokens - 1) of a request. GuideLLM weighs requests by their "
            "tokens, so that long answers count for more; an answer that came as a whole is 0 for "
            "all but us, who leave it out.",
        ),
        Definition(
            "token, with the first", "seconds", {"guidellm": "TPOT"},
            _rows(guidellm=_weighted(
                [(r.times[-1] - r.sent) / r.tokens for r in good if r.tokens],
                [r.tokens for r in good if r.tokens],
            )),
            "GuideLLM alone counts the wait for the first token in its TPOT: (last - sent) / "
            "tokens, weighted by tokens.",
        ),
        Definition(
            "gap between chunks", "seconds",
            {"ours": "ITL", "vllm": "ITL", "aiperf": "ICL"},
            _rows(ours=_stepped(gaps), vllm=_linear(gaps), aiperf=_linear(gaps)),
            "Gaps of all requests together; a chunk can hold several tokens. vLLM counts chunks "
            "without text, too.",
        ),
        Definition(
            "whole answer", "seconds",
            {"ours": "E2E", "vllm": "E2EL", "aiperf": "request latency",
             "guidellm": "request latency"},
            _rows(
                ours=_stepped([measures.e2e(r) for r in good]), vllm=_linear(last),
                aiperf=_linear(last), guidellm=_stepped([r.ended - r.sent for r in good]),
            ),
            "Ours counts from due to the last text; vLLM's and AIPerf's from sent to the last "
            "text; GuideLLM's from sent to the stream's end ([DONE]).",
        ),
        Definition(
            "speed for a user", "per second",
            {"ours": "tokens/s/user", "aiperf": "tokens/s per user"},
            _rows(
                _MEDIAN, ours=_stepped([1 / value for value in ours_tpot], _MEDIAN),
                aiperf=_linear([1 / value for value in per_token if value], _MEDIAN),
            ),
            "1 / time of a token after the first, of each request.",
        ),
    ]  # fmt: skip


_Percentiles = dict[str, float]
_MEDIAN = {"p50": 0.5}


def _rows(shares: dict[str, float] = SHARES, **by_tool: _Percentiles) -> list[Row]:
    return [
        Row(name, **{tool: found.get(name) for tool, found in by_tool.items()}) for name in shares
    ]


def _stepped(values: Sequence[float], shares: dict[str, float] = SHARES) -> _Percentiles:
    """The least value with at least that share at or below it, as GuideLLM and we do it."""
    return _weighted(values, [1] * len(values), shares)


def _weighted(
    values: Sequence[float], weights: Sequence[int], shares: dict[str, float] = SHARES
) -> _Percentiles:
    if not values:
        return {}
    order = np.argsort(values, kind="stable")
    found = weighted_percentiles(
        np.asarray(values)[order], np.asarray(weights, np.float64)[order], list(shares.values())
    )
    return dict(zip(shares, map(float, found), strict=True))


def _linear(values: Sequence[float], shares: dict[str, float] = SHARES) -> _Percentiles:
    """Between the two nearest values, as NumPy does it, and with it vLLM and AIPerf."""
    if not values:
        return {}
    return {name: float(np.quantile(values, share)) for name, share in shares.items()}


# ---- rates


def _rates(recording: Recording, due: Sequence[Record], good: Sequence[Record]) -> list[Definition]:
    window = recording.window
    summary = measures.summarise(recording)
    tokens = sum(r.tokens for r in good)
    vllm, aiperf = _vllm_seconds(recording, due), _aiperf_seconds(good)
    complete = [r for r in recording.records if r.error is None]
    within = sum(window.opened <= r.ended <= window.closed for r in complete)
    return [
        Definition(
            "output tokens", "per second",
            {"ours": "output rate", "vllm": "output throughput",
             "aiperf": "output throughput", "guidellm": "output tokens/s"},
            [Row(
                "rate", summary.output_rate, _rate(tokens, vllm), _rate(tokens, aiperf),
                sum(_even_tokens(r, window.opened, window.closed) for r in complete)
                / window.seconds,
            )],
            "Ours are tokens that came within the window. vLLM and AIPerf divide the tokens of "
            "good requests by the time until the last one ended, when few are running; GuideLLM "
            "has a window, and spreads a request's chunks evenly between its first and its last.",
        ),
        Definition(
            "requests", "per second",
            {"ours": "request rate", "vllm": "request throughput",
             "aiperf": "request throughput", "guidellm": "requests/s"},
            [Row(
                "rate", summary.request_rate, _rate(len(good), vllm), _rate(len(good), aiperf),
                within / window.seconds,
            )],
            "Good answers only; ours and GuideLLM's ended within the window, the others' are over "
            "the time until the last one ended.",
        ),
    ]  # fmt: skip


def _vllm_seconds(recording: Recording, due: Sequence[Record]) -> float:
    """From before the first arrival's gap to when all have ended, failed ones, too."""
    return max((r.ended for r in due), default=0.0) - recording.window.opened


def _aiperf_seconds(good: Sequence[Record]) -> float:
    """From the first that was sent to the last text."""
    if not good:
        return 0.0
    return max(r.times[-1] for r in good) - min(r.sent for r in good)


def _rate(count: float, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None


def _even_tokens(record: Record, opened: float, closed: float) -> float:
    """Tokens within the window if the first came with the first chunk, and the others evenly with
    the rest of the chunks, those evenly spaced in time."""
    times, tokens = record.times, record.tokens
    if len(times) == 1 or tokens <= 1:
        return tokens * (opened <= times[-1] <= closed)
    moments = np.linspace(times[0], times[-1], len(times))
    inside = (moments >= opened) & (moments <= closed)
    return float(inside[0] + inside[1:].sum() * (tokens - 1) / (len(times) - 1))


def _goodput(
    recording: Recording, due: Sequence[Record], good: Sequence[Record], slo: Slo
) -> Definition:
    def count(met: Callable[[Record], bool]) -> int:
        return sum(map(met, good))

    def as_vllm(record: Record) -> bool:
        ttft, e2e = record.times[0] - record.sent, record.times[-1] - record.sent
        tpot = (e2e - ttft) / max(1, record.tokens - 1)
        limits = ((slo.ttft, ttft), (slo.tpot, tpot), (slo.e2e, e2e))
        return all(limit is None or value <= limit for limit, value in limits)

    def as_aiperf(record: Record) -> bool:
        return as_vllm(record) and (slo.tpot is None or record.tokens > 1)

    return Definition(
        "goodput", "per second",
        {"ours": "goodput", "vllm": "request goodput", "aiperf": "goodput"},
        [Row(
            "rate", count(slo.met_by) / recording.window.seconds,
            _rate(count(as_vllm), _vllm_seconds(recording, due)),
            _rate(count(as_aiperf), _aiperf_seconds(good)),
        )],
        "Ours meet the SLO from when they were due, theirs from when they were sent, over longer "
        "times. An answer of one token has no TPOT: it meets any limit with vLLM and us, none with "
        "AIPerf. GuideLLM leaves it out, and is not converted.",
    )  # fmt: skip


def _failed(due: Sequence[Record]) -> Definition:
    count = float(sum(r.error is not None for r in due))
    return Definition(
        "failed requests", "requests",
        {"ours": "errors", "vllm": "failed", "aiperf": "error count",
         "guidellm": "errored"},
        [Row("count", count, count, count, count)],
        "None has them among its latencies. With us they do not meet the SLO; AIPerf has a second "
        "set of percentiles (adj_) in which they last for ever; GuideLLM keeps figures of failed "
        "and of unfinished requests apart. vLLM and AIPerf do not tell how late requests were "
        "sent, but for traces; GuideLLM calls that the dispatch delay.",
    )  # fmt: skip


# ---- as text

_FIRST, _OTHERS = 24, 19  # widths of the columns


def text(found: Sequence[Definition]) -> str:
    """A table for a terminal: of each figure what it is called, its values, and why they differ."""
    lines = [_line("", TOOLS.values())]
    for definition in found:
        lines += ["", _line(definition.title, (definition.called.get(tool, "-") for tool in TOOLS))]
        for row in definition.rows:
            cells = (_cell(getattr(row, tool), definition.unit) for tool in TOOLS)
            lines.append(_line(f"  {row.name}", cells))
        lines += textwrap.wrap(definition.why, 96, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines)


def _line(first: str, others: Iterable[str]) -> str:
    return f"{first:{_FIRST}}" + "".join(f"{other:>{_OTHERS}}" for other in others)


def _cell(value: float | None, unit: Unit) -> str:
    if value is None:
        return "-"
    if unit == "seconds":
        return seconds(value)
    return f"{value:.2f}/s" if unit == "per second" else f"{value:.0f}"
