"""A sizing as a report: the winner, why not the others, what more would buy, what breaks first."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from typing import Any

from tidemill.advise.launch import pulled
from tidemill.presentation.document import (
    Block,
    Bullets,
    Command,
    Heading,
    Paragraph,
    Picture,
    Table,
)
from tidemill.simulate.base import per_hour
from tidemill.simulate.shapes import shape_names
from tidemill.simulate.sizing.option import Entry, Measure, Option, Point, shown
from tidemill.simulate.sizing.search import Breaking, Sizing, Verified
from tidemill.simulate.sizing.trial import METRICS, Trial, misses
from tidemill.store import load_catalogue

_OUT = {
    "memory": "does not fit",
    "ttft": "TTFT",
    "tpot": "TPOT",
    "e2e": "E2E",
    "outdone": "takes more",
    "no price": "no price",
    "meets": "takes more",
}

# Of a row of options that lost for one reason: so many are shown one by one.
_MOST_LOST = 12

# The share of the places or of the KV memory in use from which nothing fine can be said.
SATURATED = 0.9

_WIDTH, _HEIGHT = 56, 12  # characters of the picture


def blocks(sizing: Sizing, model: str, workload: str) -> list[Block]:
    """The whole report."""
    return [
        Heading(f"What it takes: {model}, {workload}", 1),
        Paragraph(_goal(sizing)),
        *(_winner(sizing, model) if sizing.winner is not None else _nothing(sizing)),
        *_others(sizing),
        *_front(sizing),
        *_doubled(sizing),
        *_origins(sizing),
    ]


def _goal(sizing: Sizing) -> str:
    goal, mix = sizing.goal, sizing.mix
    limits = ", ".join(
        f"{metric.upper()} {limit:g} s"
        for metric in METRICS
        if (limit := getattr(goal.slo, metric)) is not None
    )
    kept = (
        f"{limits}, kept by 99 of 100 requests" if limits else "no limits: only throughput counts"
    )
    lengths = (
        f"A request has, in the mean, {mix.prompt:.0f} tokens of prompt to compute (1 in 100 more "
        f"than {mix.longest:,}), {mix.cached:.0f} cached ones before them, and {mix.output:.0f} of "
        "answer"
    )
    spare = {0: "no spare replica", 1: "1 spare replica (N + 1)"}.get(
        goal.spare, f"{goal.spare} spare replicas"
    )
    return f"{_sentence(goal.load.words)}; {kept}; {spare}. {lengths}."


def _winner(sizing: Sizing, model: str) -> Iterator[Block]:
    entry = sizing.winner
    verified = sizing.verified
    assert entry is not None
    assert verified is not None
    spec = entry.option.spec
    assert spec is not None
    devices = "device" if entry.devices == 1 else "devices"
    yield Heading(f"{entry.replicas} x {entry.option.words}")
    yield Paragraph(
        f"{entry.devices} {devices}{_prices(entry, sizing.currency)}: "
        f"{entry.replicas - sizing.goal.spare} of the {entry.replicas} replicas carry the peak. "
        f"{_by(sizing.measure)}"
    )
    yield Command(command(entry.option, model))
    if _is_shape(model):
        yield Paragraph("MODEL is the model itself: to size it, its shape was enough.")
    yield Table(
        ("without the spare ones", "expected", "step times -", "step times +", "limit"),
        tuple(_figures(sizing, verified)),
    )
    band = spec.step_time.band
    yield Paragraph(
        f"Step times may be off by {band:.0%} ({spec.step_time.source}). It was chosen such that "
        "it keeps to the limits even if they are as much longer."
    )
    if verified.slow.filled >= SATURATED or verified.slow.growing:
        yield Paragraph(
            f"With slow steps {verified.slow.filled:.0%} of the places or of the KV memory are in "
            "use: so near to saturation a small error makes a large difference, and nothing finer "
            "can be said. Take a replica more."
        )


def _figures(sizing: Sizing, verified: Verified) -> Iterator[tuple[str, ...]]:
    trials = (verified.expected, verified.fast, verified.slow)
    for metric in METRICS:
        if all(metric in trial.latency for trial in trials):
            limit = getattr(sizing.goal.slo, metric)
            yield (
                f"{metric.upper()} p99, s",
                *(_seconds(trial, metric) for trial in trials),
                "-" if limit is None else f"{limit:g}",
            )
    yield ("tokens/s for a user (p50)", *(f"{trial.speed:.3g}" for trial in trials), "-")
    yield ("places or memory in use", *(f"{trial.filled:.0%}" for trial in trials), "-")
    n = verified.expected.replicas
    simulated = "in flight" if n == 1 else f"in flight on {n} replicas together"
    yield (simulated, *(f"{trial.in_flight:.3g}" for trial in trials), "-")


def _seconds(trial: Trial, metric: Any) -> str:
    return "grows" if trial.growing else f"{trial.latency[metric].p99:.3g}"


def _prices(entry: Entry, currency: str) -> str:
    parts = []
    if (cost := entry.total("cost")) is not None:
        parts.append(f"{shown(cost)} {per_hour(currency)}")
    if (watts := entry.total("watts")) is not None:
        parts.append(f"{shown(watts)} W by the data sheet")
    return f", {', '.join(parts)}" if parts else ""


def _by(measure: Measure) -> str:
    return {
        "cost": "The cheapest that was found, by the prices given.",
        "watts": "No prices were given (--price NAME=X/h): it is the one that takes the least "
        "power, by data sheets.",
        "devices": "No prices were given (--price NAME=X/h), and not every data sheet states "
        "power: it is the one with the fewest devices, whatever they are.",
    }[measure]


def command(option: Option, model: str) -> str:
    """What starts a replica. Of GPUs it is vLLM's, whose scheduler works alike."""
    spec = option.spec
    assert spec is not None
    name = "MODEL" if _is_shape(model) else shlex.quote(model)
    if option.kind == "cpu":
        return (
            f"tidemill serve {name} --max-sequences {spec.max_sequences} "
            f"--context {spec.max_context}"
        )
    parts = [f"vllm serve {pulled(model, load_catalogue()) or name}"]
    if option.tensor > 1:
        parts.append(f"--tensor-parallel-size {option.tensor}")
    if option.pipeline > 1:
        parts.append(f"--pipeline-parallel-size {option.pipeline}")
    if option.weights == "fp8":
        parts.append("--quantization fp8")
    parts += [
        f"--max-model-len {spec.max_context}",
        f"--max-num-seqs {spec.max_sequences}",
        f"--max-num-batched-tokens {max(spec.max_prefill_tokens, spec.max_sequences)}",
    ]
    return " ".join(parts)


def _is_shape(model: str) -> bool:
    """Whether it names what no engine can serve."""
    return model in shape_names() or model.endswith(".json")


def _nothing(sizing: Sizing) -> Iterator[Block]:
    yield Heading("Nothing that was tried meets this")
    yield Paragraph(
        "Below is what stands in the way of each. What helps: more time, a smaller model or fewer "
        "bits of its weights, shorter prompts and answers, faster hardware."
    )
    best: dict[str, tuple[float, Entry, float]] = {}
    for entry in sizing.entries:
        for miss in [] if entry.trial is None else misses(entry.trial, sizing.goal.slo):
            if miss.metric not in best or miss.value < best[miss.metric][0]:
                best[miss.metric] = (miss.value, entry, miss.limit)
    if best:
        yield Bullets(
            tuple(
                f"{metric.upper()}: {value:.3g} s at best ({entry.option.words}), limit {limit:g} s"
                for metric, (value, entry, limit) in best.items()
            )
        )


def _others(sizing: Sizing) -> Iterator[Block]:
    """One row for each option, or for all of a kind of hardware that lost for the same reason."""
    others = [entry for entry in sizing.entries if entry is not sizing.winner]
    if not others:
        return
    yield Heading("Why not the others" if sizing.winner else "What stands in the way")
    rows = []
    for entry in others[:_MOST_LOST]:
        total = entry.total(sizing.measure)
        why = entry.why
        if total is not None:
            why = f"{entry.replicas} replicas take {shown(total)} {sizing.unit}"
        rows.append((entry.option.words, _OUT[entry.outcome], why))
    yield Table(("option", "lost by", "because"), tuple(rows))
    left = others[_MOST_LOST:]
    if left:
        counts: dict[str, int] = {}
        for entry in left:
            counts[_OUT[entry.outcome]] = counts.get(_OUT[entry.outcome], 0) + 1
        told = ", ".join(f"{n} by {words!r}" for words, n in counts.items())
        yield Paragraph(f"And {len(left)} more: {told}. --json has all.")


# ---- the front ---------------------------------------------------------------------------------


def _front(sizing: Sizing) -> Iterator[Block]:
    points = sizing.front
    if len(points) < 2:
        return
    unit = sizing.unit
    yield Heading("What more would buy")
    yield Paragraph(
        "Ways to meet the limits that none outdoes in both: what it takes, and how fast a user "
        "sees tokens come (with step times at the slow end of their band)."
    )
    yield Picture(picture(points, unit))
    yield Table(
        (unit, "tokens/s a user", "TTFT p99, s", "replicas", "option"),
        tuple(
            (
                shown(point.total), f"{point.speed:.3g}", f"{point.ttft:.3g}",
                str(point.replicas), point.option.words,
            )
            for point in _spread(points)
        ),
    )  # fmt: skip


def _spread(points: tuple[Point, ...], most: int = 8) -> list[Point]:
    """Some of them, both ends included."""
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def picture(points: tuple[Point, ...], unit: str) -> str:
    """Speed over what it takes, both on a logarithmic scale, in characters; a letter for each
    option."""
    letters: dict[str, str] = {}
    for point in points:
        letters.setdefault(point.option.words, chr(ord("A") + len(letters) % 26))
    across = _scale([point.total for point in points], _WIDTH)
    up = _scale([point.speed for point in points], _HEIGHT)
    cells = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for point in points:
        row, column = _HEIGHT - 1 - up(point.speed), across(point.total)
        cells[row][column] = letters[point.option.words]
    speeds = [point.speed for point in points]
    labels = {0: f"{max(speeds):.3g}", _HEIGHT - 1: f"{min(speeds):.3g}"}
    lines = ["tokens/s a user"]
    lines += [f"{labels.get(i, ''):>8} |{''.join(row)}".rstrip() for i, row in enumerate(cells)]
    low, high = shown(points[0].total), f"{shown(points[-1].total)} {unit}"
    lines.append(f"{'':8} +{'-' * _WIDTH}")
    lines.append(f"{'':10}{low}{high:>{_WIDTH - len(low)}}")
    lines += [f"{letter} {words}" for words, letter in letters.items()]
    return "\n".join(lines)


def _scale(values: list[float], cells: int) -> Any:
    low, high = math.log(min(values)), math.log(max(values))
    width = (high - low) or 1.0
    return lambda value: round((math.log(value) - low) / width * (cells - 1))


# ---- twice the load ----------------------------------------------------------------------------


def _doubled(sizing: Sizing) -> Iterator[Block]:
    if sizing.breaking is not None:
        yield Heading("When the load doubles")
        yield Paragraph(breaks(sizing.breaking))


def breaks(found: Breaking) -> str:
    """What gives way first, in words."""
    if found.factor is None:
        return (
            f"Nothing breaks: at twice the peak the limits are still kept, with every replica "
            f"there and step times as computed ({found.trial.filled:.0%} of the places or of the "
            "KV memory in use)."
        )
    what = "requests pile up" if found.metric is None else found.metric.upper()
    finer = ""
    if found.trial.growing:
        finer = " More comes than is done, so that no figure can be given for it."
    return f"{_sentence(what)} first, at {found.factor:g} times the peak: {found.why}.{finer}"


def _origins(sizing: Sizing) -> Iterator[Block]:
    yield Heading("Where the figures come from")
    chosen = sizing.winner or next((e for e in sizing.entries if e.option.spec), None)
    if chosen is None or chosen.option.spec is None:
        yield Paragraph("Nothing was simulated: no option fits.")
        return
    spec = chosen.option.spec
    step_time = spec.step_time
    yield Bullets(
        (
            f"latencies, speeds, replicas: {sizing.simulated} simulations, with Tidemill's own "
            "scheduler and KV blocks in virtual time",
            f"step times: {step_time.origin}: {step_time.source}; band {step_time.band:.0%}",
            f"before a request's first step: {spec.front}",
            "power and memory of devices: data sheets" if chosen.option.watts else
            "memory: as measured",
            "prices: as given, or the profile's" if sizing.measure == "cost" else "prices: none",
        )
    )  # fmt: skip


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


# ---- as data -----------------------------------------------------------------------------------


def as_data(sizing: Sizing, model: str, workload: str) -> dict[str, Any]:
    """The same for programs, in plain types; seconds throughout."""
    goal = sizing.goal
    return {
        "model": model,
        "workload": workload,
        "slo": {metric: getattr(goal.slo, metric) for metric in METRICS},
        "load": {"kind": goal.load.kind, "amount": goal.load.amount, "words": goal.load.words},
        "spare": goal.spare,
        "by": sizing.measure,
        "currency": sizing.currency or None,
        "winner": None if sizing.winner is None else _entry(sizing.winner, model),
        "options": [_entry(entry, model) for entry in sizing.entries],
        "front": [
            {
                "option": point.option.words, "replicas": point.replicas, "total": point.total,
                "tokens_per_second_a_user": point.speed, "ttft_p99": point.ttft,
            }
            for point in sizing.front
        ],
        "at_peak": None
        if sizing.verified is None
        else {
            name: _trial(getattr(sizing.verified, name)) for name in ("expected", "fast", "slow")
        },
        "breaks": None
        if sizing.breaking is None
        else {
            "factor": sizing.breaking.factor, "metric": sizing.breaking.metric,
            "why": sizing.breaking.why, "trial": _trial(sizing.breaking.trial),
        },
        "simulations": sizing.simulated,
    }  # fmt: skip


def _entry(entry: Entry, model: str) -> dict[str, Any]:
    option, spec = entry.option, entry.option.spec
    return {
        "hardware": option.hardware,
        "weights": option.weights,
        "tensor_parallel": option.tensor,
        "pipeline_parallel": option.pipeline,
        "outcome": entry.outcome,
        "why": entry.why or None,
        "replicas": entry.replicas or None,
        "devices": entry.devices or None,
        "watts": entry.total("watts"),
        "per_hour": entry.total("cost"),
        "command": None if spec is None or entry.outcome != "meets" else command(option, model),
        "one_replica": None if entry.trial is None else _trial(entry.trial),
        "step_times": None
        if spec is None
        else {
            "origin": spec.step_time.origin, "source": spec.step_time.source,
            "band": spec.step_time.band,
        },
        "front_end": None
        if spec is None
        else {
            "request": spec.front.request, "prompt_token": spec.front.prompt_token,
            "source": spec.front.source,
        },
    }  # fmt: skip


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "load": trial.load,
        "requests_per_second": trial.rate,
        "replicas": trial.replicas,
        "requests": trial.requests,
        "growing": trial.growing,
        "latency": {
            metric: {"p50": found.p50, "p99": found.p99} for metric, found in trial.latency.items()
        },
        "in_flight": trial.in_flight,
        "output_tokens_per_second": trial.output_rate,
        "computing": trial.busy,
        "places_or_memory_in_use": trial.filled,
    }
