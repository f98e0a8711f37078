"""Runs that nobody measured: recordings drawn by a seed, as of engines of chosen speed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator

import msgspec

from tidemill.bench.arrivals import Closed, Gamma
from tidemill.bench.measures import summarise
from tidemill.bench.records import Record, Recording, Window
from tidemill.bench.resources import Density, Resources
from tidemill.bench.result import Machine, Measured, Measurement, Result
from tidemill.bench.scenario import Scenario, Starts, load
from tidemill.bench.starts import Start
from tidemill.bench.workload import Lengths

MACHINE = Machine("Some CPU @ 2.00GHz", "x86_64", 2, 8 << 30, "Linux 6.1", "3.11.2")


def measurement(
    scenario: str | Scenario = "short-chat", *, engine: str | None = "tidemill", speed: float = 1.0,
    seconds: float = 20.0, failing: float = 0.0, seed: int = 0, **fields: object,
) -> Measurement:  # fmt: skip
    """As ``result.measure`` gives them. ``speed``: 1 computes a prompt token in 1 ms, and one of
    an answer in 20 ms with nothing beside it. ``failing``: share of the requests that fail.
    ``fields`` are those of the result."""
    asked = load(scenario) if isinstance(scenario, str) else scenario
    asked = msgspec.structs.replace(asked, seconds=seconds)
    target = Measured(
        url="http://127.0.0.1:8000/v1", model="smollm2", engine=engine, version="1.2.3" if engine
        else None, command=[engine, "serve", "--port", "8000"] if engine else [],
        threads=2 if engine else None, extra={"temperature": 0},
    )  # fmt: skip
    result = Result(
        id=f"{asked.name}-{engine or 'url'}-{seed}", when=f"2026-01-02T03:04:{seed % 60:02}+00:00",
        scenario=asked, seed=seed, slo=asked.slo, target=target, machine=MACHINE,
    )  # fmt: skip
    rng = random.Random(f"{asked.name} {engine} {seed}")
    recording = None
    if isinstance(asked.load, Starts):
        result.starts = list(_starts(rng, asked.load.repeats, speed))
    else:
        recording = draw(asked, speed, failing, rng)
        summarised(result, recording)
    return Measurement(msgspec.structs.replace(result, **fields), recording)


def summarised(result: Result, recording: Recording) -> None:
    """The result's figures, made of the recording."""
    result.summary = summarise(recording, result.slo)
    if len(result.scenario.shapes) > 1:
        result.by_shape = {
            shape.name: summarise(recording, result.slo, shape.name)
            for shape in result.scenario.shapes
        }
    if result.target.threads:
        rate = result.summary.output_rate / result.target.threads
        result.resources = Resources(density=Density(per_core_given=rate))


def draw(scenario: Scenario, speed: float, failing: float, rng: random.Random) -> Recording:
    """Requests one after the other into eight slots, or as many as there are streams."""
    streams = scenario.load.concurrency if isinstance(scenario.load, Closed) else 8
    free = [0.0] * streams
    records = []
    for index, due in enumerate(_arrivals(scenario, free, rng)):
        begun = max(due, heapq.heappop(free))
        shape = rng.choice(scenario.shapes)
        prompt, output = _tokens(shape.input, rng) + shape.prefix, _tokens(shape.output, rng)
        busy = sum(end > begun for end in free)
        each = 0.02 * (1 + 0.25 * busy) / speed * rng.lognormvariate(0, 0.1)
        first = begun + prompt * 0.001 * (1 + 0.1 * busy) / speed * rng.lognormvariate(0, 0.2)
        times = [first + i * each for i in range(min(output, 400))]
        record = Record(
            index=index, shape=shape.name, due=due, sent=due + rng.expovariate(2000),
            ended=times[-1], times=times, prompt_tokens=prompt, output_tokens=len(times),
            asked=output, warmup=due < scenario.warmup,
            verdict="right" if shape.task is not None else None,
        )  # fmt: skip
        if rng.random() < failing:
            record.error, record.detail, record.times = "http_503", "busy, come again", []
        records.append(record)
        heapq.heappush(free, record.ended)
    window = Window(scenario.warmup, scenario.warmup + scenario.seconds)
    return Recording(records, window, client_cpu=0.01 * scenario.seconds)


def _arrivals(scenario: Scenario, free: list[float], rng: random.Random) -> Iterator[float]:
    until = scenario.warmup + scenario.seconds
    if isinstance(scenario.load, Gamma):
        for due in scenario.load.due(rng):
            if due > until:
                return
            yield due
    while (due := max(0.0, free[0])) < until:
        yield due


def _tokens(lengths: Lengths | None, rng: random.Random) -> int:
    return 60 if lengths is None else lengths.draw(rng)


def _starts(rng: random.Random, repeats: int, speed: float) -> Iterator[Start]:
    for _ in range(repeats):
        for cold in (True, False):
            listening = rng.uniform(0.2, 0.3) / speed
            ready = listening + (1.5 if cold else 0.4) / speed * rng.uniform(0.9, 1.1)
            first = ready + 0.2 / speed * rng.uniform(0.9, 1.1)
            yield Start(cold, 0.0 if cold else 1.0, listening, ready, first, 0.05 / speed)


def at_rates(rates: list[float], *, engine: str, speed: float, series: str) -> list[Measurement]:
    """The points of a curve: short chat at those rates."""
    asked = load("short-chat")
    return [
        measurement(
            msgspec.structs.replace(asked, load=Gamma(rate)), engine=engine, speed=speed,
            series=series, id=f"{series}-{rate:g}",
        )
        for rate in rates
    ]  # fmt: skip
