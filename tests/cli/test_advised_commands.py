"""What the advisor tells to type is what can be typed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from support.advice import TODAY
from support.commands import parse, tidemill_calls
from tidemill.advise.advice import advise
from tidemill.advise.answers import from_values
from tidemill.advise.evidence import Evidence
from tidemill.advise.facts import Engine, load_engines
from tidemill.advise.flow import Part
from tidemill.advise.measuring import MOST_AT_ONCE, STARTED, bench_command
from tidemill.advise.questions import WORKLOADS
from tidemill.advise.rules import Case
from tidemill.bench import scenario as known
from tidemill.bench import targets
from tidemill.bench.arrivals import MAX_CONCURRENCY
from tidemill.bench.engines import ENGINES

KNOWN = load_engines()
SERVED = [engine for engine in KNOWN.values() if "component" not in engine.classes]

CASES: list[dict[str, Any]] = [
    {},
    {"load.ttft_ms": 500, "load.tpot_ms": 33.3, "model.name": "my model.gguf"},
    {
        "hardware.servers": ["nvidia"], "hardware.gpus": 4, "load.peak_concurrency": 200,
        "team.operations": "dedicated", "model.format": "safetensors", "model.bits": 16,
        "model.name": "org/model", "case.current": "tensorrt-llm", "case.stage": "production",
    },
    {"model.name": "smollm2", "case.current": "ollama"},
    {
        "hardware.servers": ["nvidia"], "hardware.gpus": 1, "hardware.edge": ["cpu-arm"],
        "case.stage": "edge", "load.peak_concurrency": 64, "case.current": "mlx-lm",
    },
    {"hardware.servers": ["apple"], "model.format": "mlx", "load.peak_concurrency": 1},
    {"load.peak_concurrency": 1_000_000, "load.latency": "batch"},
]  # fmt: skip


def check(command: str) -> None:
    """It parses, and its target, scenario and limits are such as the bench takes."""
    (arguments,) = tidemill_calls(command)
    parse(arguments)
    for name, value in itertools.pairwise(arguments):
        if name == "--target":
            targets.parse(value)
        if name == "--scenario":
            known.load(value)


@pytest.mark.parametrize("values", CASES)
def test_every_command_that_is_advised_parses(values: dict[str, Any]) -> None:
    advice = advise(from_values(values), KNOWN, today=TODAY)
    steps = [step for choice in advice.choices for step in choice.steps]
    commands = [step.command for step in steps if step.command]
    assert len(commands) >= 2
    for command in commands:
        check(command)


@pytest.mark.parametrize("engine", SERVED, ids=lambda engine: engine.id)
def test_every_engine_can_be_measured_under_every_workload(engine: Engine) -> None:
    part = Part("local", "servers", False, "")
    for workload in WORKLOADS:
        answers = from_values(
            {"load.workload": workload, "load.latency": "relaxed", "load.peak_concurrency": 1}
        )
        command = bench_command(engine, Case(part, answers, Evidence()))
        has_address = engine.launch is not None and engine.launch.url
        assert bool(command) == bool(engine.id in STARTED or has_address)
        if command:
            check(command)


def test_a_repository_is_what_the_bench_takes_for_one() -> None:
    answers = from_values({"model.name": "org/model"})
    case = Case(Part("local", "servers", False, ""), answers, Evidence())
    assert "--target llama.cpp:hf://org/model " in bench_command(KNOWN["llama.cpp"], case)


def test_the_bench_starts_those_that_are_said_to_be_started() -> None:
    assert set(STARTED) == set(ENGINES) & {engine.id for engine in SERVED}
    assert MOST_AT_ONCE == MAX_CONCURRENCY
