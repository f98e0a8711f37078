"""Predictions as text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.bench.measures import LATENCIES, SHARES, Slo
from tidemill.bench.report import errors_line, percent, seconds, shape_line
from tidemill.simulate.base import per_hour
from tidemill.simulate.predict import Interval, Prediction


def text(prediction: Prediction, slo: Slo | None = None) -> str:
    """All of it; several lines. ``slo``: what ``attained`` is about."""
    return "\n".join(f"  {line}" for line in _lines(prediction, slo))


def _lines(prediction: Prediction, slo: Slo | None) -> Iterator[str]:
    yield from _origin(prediction)
    if prediction.summary.invalid:
        yield f"INVALID: {prediction.summary.invalid}"
    if prediction.saturated is not None:
        yield (
            f"NEAR SATURATION: {prediction.saturated}. What then waits depends on too little to be "
            "known: these are bounds."
        )
    yield from _latencies(prediction)
    summary = prediction.summary
    cached = summary.cached_share
    yield (
        f"output {_rate(prediction, 'output_rate')} tokens/s, "
        f"{_rate(prediction, 'request_rate')} requests/s; on average "
        f"{summary.mean_prompt_tokens:.0f} -> {summary.mean_output_tokens:.0f} tokens"
        + ("" if cached is None else f", {cached:.0%} of prompts from the cache")
    )
    if (attained := prediction.figures.get("attained")) is not None:
        share = (
            f"at most {percent(attained.high)}" if prediction.saturated
            else f"{percent(attained.value)} ({percent(attained.low)}–{percent(attained.high)})"
        )  # fmt: skip
        limits = "" if slo is None else f" {slo}"
        yield f"SLO{limits}: met by {share} of {summary.requests} requests"
    yield errors_line(summary)
    for name, part in prediction.by_shape.items():
        yield f"{name}: {shape_line(part)}"
    yield from _deployment(prediction)


def _origin(prediction: Prediction) -> Iterator[str]:
    if prediction.origin == "measured":
        yield f"simulated, over measured step times: {prediction.source}"
    else:
        yield f"simulated, over step times computed from: {prediction.source}"
    yield f"before its first step a request takes {prediction.front}"
    band = f"step times ± {100 * prediction.band:.2g} %"
    proof = prediction.proof
    if proof is None:
        yield f"{band}, from which the intervals follow; not compared with measured runs"
    else:
        shown = ", ".join(
            f"{_name(figure)} ± {100 * error:.2g} %"
            for figure, error in proof.errors.items()
            if figure in prediction.figures
        )
        yield (
            f"{band}; compared with measured runs of {', '.join(proof.scenarios)} on "
            f"{proof.made}: {shown}"
        )


def _latencies(prediction: Prediction) -> Iterator[str]:
    if not prediction.summary.latency:
        return
    yield "      " + "".join(f"{share:>26}" for share in SHARES)
    for name in LATENCIES:
        if name in prediction.summary.latency:
            cells = [
                _latency(prediction.figures[f"{name}.{share}"], prediction) for share in SHARES
            ]
            yield f"{name.upper():6}" + "".join(f"{cell:>26}" for cell in cells)


def _latency(found: Interval, prediction: Prediction) -> str:
    if prediction.saturated is not None:
        return f"more than {seconds(found.low)}"
    low, high = seconds(found.low), seconds(found.high)
    if low.split()[1] == high.split()[1]:
        low = low.split()[0]
    return f"{seconds(found.value)} ({low}–{high})"


def _rate(prediction: Prediction, name: str) -> str:
    found = prediction.figures[name]
    if prediction.saturated is not None:
        return f"at most {_number(found.high)}"
    return f"{_number(found.value)} ({_number(found.low)}–{_number(found.high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _name(figure: str) -> str:
    """As it is called in the table."""
    latency, _, share = figure.partition(".")
    return f"{latency.upper()} {share}" if share else figure.replace("_", " ")


def _deployment(prediction: Prediction) -> Iterator[str]:
    limit = prediction.limit
    yield (
        f"limited by {limit.words}. Replicas compute {limit.busy:.0%} of the time, "
        f"{limit.prompts:.0%} of that prompts too; {limit.places:.0%} of the places and "
        f"{limit.memory:.0%} of the KV memory are in use"
    )
    replicas = f"{prediction.replicas} replica{'s' * (prediction.replicas != 1)}"
    if prediction.added or prediction.removed:
        replicas += (
            f" at first, {prediction.added} added, {prediction.removed} removed, "
            f"{prediction.most_replicas} at most"
        )
    happened = [replicas, f"{prediction.replica_hours:.2f} replica hours"]
    if prediction.price is not None:
        happened.append(f"{prediction.price:.2f} {per_hour(prediction.currency)}")
    if prediction.failures:
        happened.append(f"{prediction.failures} failures, {prediction.retries} requests repeated")
    if prediction.preemptions:
        happened.append(f"{prediction.preemptions} preemptions")
    yield ", ".join(happened)
