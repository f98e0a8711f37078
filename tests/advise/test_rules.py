"""Each rule: what passes, what is rejected with which number, and what it does not know."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from support.advice import Prices, Store, engine, measured
from tidemill.advise.answers import from_values
from tidemill.advise.evidence import Evidence
from tidemill.advise.facts import Engine
from tidemill.advise.flow import Part
from tidemill.advise.rules import RULES, Case, judge

SERVERS = Part("local", "servers", False, "")
SERVING = Part("serving", "servers", False, "")
EDGE = Part("local", "edge", False, "")
GPU = {"hardware.servers": ["nvidia"], "hardware.gpus": 2, "hardware.gpu_memory_gb": 24}


def case(part: Part = SERVERS, evidence: Evidence | None = None, **values: Any) -> Case:
    answers = from_values({key.replace("__", "."): value for key, value in values.items()})
    return Case(part, answers, evidence or Evidence())


def verdict(rule: str, candidate: Engine, of: Case) -> tuple[str, str]:
    return RULES[rule](candidate, of)


def test_the_made_engine_passes_every_rule() -> None:
    assert {v.outcome for v in judge(engine(), case())} == {"pass"}


@pytest.mark.parametrize(
    ("rule", "facts", "values", "outcome", "words"),
    [
        ("hardware", {}, {}, "pass", ""),
        ("hardware", {"hardware": (["nvidia"], True)}, {}, "fail", "NVIDIA GPUs, not on x86"),
        ("hardware", {"hardware": ["nvidia"]}, {}, "unknown", "whether it runs on x86"),
        ("hardware", {"hardware": None}, {}, "unknown", "no source"),
        ("format", {}, {"model__format": "safetensors"}, "fail", "reads GGUF; the model"),
        ("format", {"formats": ["gguf"]}, {"model__format": "onnx"}, "unknown", "reads ONNX"),
        (
            "format", {"converts_from": ["safetensors"]}, {"model__format": "safetensors"},
            "pass", "",
        ),
        ("architecture", {}, {"model__architecture": "gemma"}, "fail", "architecture gemma"),
        (
            "architecture", {"architectures": ["llama"]}, {"model__architecture": "gemma"},
            "unknown", "no source says that it has the architecture gemma",
        ),
        ("architecture", {}, {"model__architecture": "other"}, "unknown", "has to be tried"),
        ("own operators", {}, {"model__custom_operators": True}, "unknown", "no source"),
        (
            "own operators", {"custom_models": False}, {"model__custom_operators": True}, "fail",
            "without changing its source",
        ),
        (
            "own operators", {"custom_models": True}, {"model__custom_operators": True}, "pass", "",
        ),
        ("concurrency", {"batching": "parallel"}, {"load__peak_concurrency": 31}, "pass", ""),
        (
            "concurrency", {"batching": "parallel"}, {"load__peak_concurrency": 32}, "fail",
            "32 requests come at once",
        ),
        (
            "concurrency", {"batching": None}, {"load__peak_concurrency": 32}, "unknown",
            "how it takes 32 requests",
        ),
        ("server", {"server": False}, {}, "fail", "library without an HTTP server"),
        ("server", {"server": None}, {}, "unknown", "no source says that it has a server"),
        ("operations", {"install": "container"}, {"team__operations": "none"}, "pass", ""),
        (
            "operations", {"install": "container", "converts_from": ["safetensors"]},
            {"team__operations": "none", "model__format": "safetensors"}, "fail",
            "takes 2 points of operations (a container to keep, each version of the model "
            'converted, fixed); team.operations "none" has 1',
        ),
        (
            "operations", {"install": "package", "converts_from": ["safetensors"]},
            {"model__format": "safetensors", "model__changes": "weekly"}, "fail", "takes 3 points",
        ),
        (
            "operations", {}, {"case__stage": "production", "team__operations": "none"}, "pass", "",
        ),
        ("operations", {"install": None}, {}, "unknown", "how it is installed"),
        ("production", {"production": False}, {}, "pass", ""),
        (
            "production", {"production": False}, {"case__stage": "production"}, "fail",
            "not for production by its own documentation",
        ),
        (
            "project health", {"maintenance_since": datetime.date(2025, 12, 11)},
            {"case__stage": "production"}, "fail", "in maintenance mode since 2025-12-11",
        ),
        ("project health", {"maintenance_since": datetime.date(2025, 12, 11)}, {}, "pass", ""),
        (
            "project health", {"last_commit": datetime.date(2025, 2, 24)},
            {"case__stage": "production"}, "fail",
            "no commit after 2025-02-24 was found on 2026-11-30",
        ),
        (
            "project health", {"last_commit": datetime.date(2026, 8, 1)},
            {"case__stage": "production"}, "pass", "",
        ),
        ("access control", {}, {"data__access_control": True}, "unknown", "asks for keys"),
        (
            "access control", {"authentication": False}, {"data__access_control": True}, "fail",
            "asks nobody for a key",
        ),
        (
            "access control", {"authentication": False},
            {"data__access_control": True, "team__operations": "dedicated"}, "pass", "",
        ),
        ("memory", {}, {"model__parameters_b": 8}, "pass", ""),
        (
            "memory", {}, {"model__parameters_b": 8, "model__bits": 4, "hardware__memory_gb": 4},
            "pass", "",
        ),
        (
            "memory", {}, {"model__parameters_b": 8.1, "model__bits": 4, "hardware__memory_gb": 4},
            "fail", "needs 4.05 GB for the weights alone; main memory is 4 GB",
        ),
    ],
)  # fmt: skip
def test_rule(
    rule: str, facts: dict[str, Any], values: dict[str, Any], outcome: str, words: str
) -> None:
    found, reason = verdict(rule, engine(**facts), case(**values))
    assert found == outcome
    assert words in reason
    assert bool(reason) == (outcome != "pass")


@pytest.mark.parametrize(
    ("facts", "parameters", "outcome", "words"),
    [
        ({"parallelism": ["tensor"]}, 24, "pass", ""),
        (
            {"parallelism": ["tensor"]},
            25,
            "fail",
            "needs 50 GB for the weights alone; the memory of 2",
        ),
        ({"parallelism": ([], True)}, 13, "fail", "the memory of a GPU is 24 GB"),
        ({}, 13, "unknown", "no source says that it splits a model over several GPUs"),
        ({}, 12, "pass", ""),
        ({"host_offload": True, "parallelism": (["layer-split"], True)}, 60, "pass", ""),
    ],
)
def test_memory_of_gpus(facts: dict[str, Any], parameters: float, outcome: str, words: str) -> None:
    candidate = engine(**{"hardware": (["nvidia"], True), **facts})
    values = {**{k.replace(".", "__"): v for k, v in GPU.items()}}
    found, reason = verdict(
        "memory", candidate, case(**values, model__parameters_b=parameters, model__bits=16)
    )
    assert found == outcome
    assert words in reason


def test_offloading_needs_the_main_memory_too() -> None:
    candidate = engine(hardware=(["nvidia"], True), parallelism=["layer-split"], host_offload=True)
    values = {k.replace(".", "__"): v for k, v in GPU.items()}
    small = case(**values, model__parameters_b=60, model__bits=16, hardware__memory_gb=64)
    found, reason = verdict("memory", candidate, small)
    assert found == "fail"
    assert "2 GPUs and main memory is 112 GB" in reason


def test_a_serving_engine_pages_its_cache_on_the_hardware_there() -> None:
    on_gpu = {"paged_kv": (["nvidia"], True), "hardware": (["nvidia", "cpu-x86"], True)}
    found, reason = verdict("paged KV", engine(**on_gpu), case(SERVING))
    assert found == "fail"
    assert reason == "pages its KV cache on NVIDIA GPUs only, not on x86-64 CPUs"
    assert verdict("paged KV", engine(**on_gpu), case(SERVERS))[0] == "pass"
    assert verdict("paged KV", engine(paged_kv=None), case(SERVING))[0] == "unknown"
    values = {k.replace(".", "__"): v for k, v in GPU.items()}
    assert verdict("paged KV", engine(**on_gpu), case(SERVING, **values))[0] == "pass"


def test_the_edge_has_its_own_hardware() -> None:
    at_edge = case(EDGE, hardware__edge=["cpu-arm"])
    assert verdict("hardware", engine(), at_edge)[0] == "fail"
    assert verdict("hardware", engine(hardware=["cpu-arm"]), at_edge)[0] == "pass"


def test_another_class_is_asked_nothing_more() -> None:
    (only,) = judge(engine(classes='["serving"]', hardware=(["tpu"], True)), case())
    assert (only.rule, only.outcome) == ("class", "fail")
    assert (
        only.reason == "is of the class high-throughput serving; the case needs lightweight local"
    )


def test_what_was_measured_must_keep_to_the_limits() -> None:
    evidence = Evidence(measured=Store(made=measured("made", 100, ttft_ms=600.0)))
    found, reason = verdict("measured limits", engine(), case(evidence=evidence, load__ttft_ms=500))
    assert found == "fail"
    assert reason == ("took 600 ms of TTFT at p99 (measured: run-of-made); the limit is 500 ms")
    assert (
        verdict("measured limits", engine(), case(evidence=evidence, load__ttft_ms=600))[0]
        == "pass"
    )
    assert (
        verdict("measured limits", engine("x"), case(evidence=evidence, load__ttft_ms=1))[0]
        == "pass"
    )


@pytest.mark.parametrize(
    "changes",
    [{"hardware": "nvidia"}, {"peak_concurrency": 3}],
    ids=["other hardware", "less load"],
)
def test_measurements_of_another_case_do_not_count(changes: dict[str, Any]) -> None:
    evidence = Evidence(measured=Store(made=measured("made", 100, ttft_ms=600.0, **changes)))
    assert (
        verdict("measured limits", engine(), case(evidence=evidence, load__ttft_ms=1))[0] == "pass"
    )


def test_the_budget_needs_a_sizing() -> None:
    evidence = Evidence(sizing=Prices(made=900.0))
    found, reason = verdict("budget", engine(), case(evidence=evidence, budget__per_month=800))
    assert found == "fail"
    assert "900 per month (simulated: sizing-1)" in reason
    assert "the budget is 800" in reason
    assert verdict("budget", engine("x"), case(evidence=evidence, budget__per_month=1))[0] == "pass"
    assert verdict("budget", engine(), case(budget__per_month=1))[0] == "pass"
