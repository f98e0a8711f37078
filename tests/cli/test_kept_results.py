"""Kept results of ``bench`` as the advisor's evidence: which are used, and as what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tidemill.advise.answers import Answers, from_values
from tidemill.advise.evidence import Evidence
from tidemill.advise.facts import load_engines
from tidemill.advise.flow import Part
from tidemill.advise.questions import kind_of_processor
from tidemill.bench import scenario as known
from tidemill.bench.arrivals import Closed, Gamma
from tidemill.bench.measures import Slo, Summary
from tidemill.bench.result import Machine, Measured, Result
from tidemill.bench.statistics import Estimate
from tidemill.cli.kept_results import KeptResults, called

X86 = Machine("A CPU", "x86_64", 2, 8 << 30, "Linux 6.1", "3.11.9")
PART = Part("local", "servers", False, "")
ENGINES = load_engines()


def estimate(value: float) -> Estimate:
    return Estimate(value, value, value)


def result(**changes: Any) -> Result:
    """200 good answers of short-chat at 4 in flight, from llama.cpp."""
    summary = Summary(
        seconds=60.0, requests=200, good=200, errors={}, examples={}, unfinished=0,
        latency={
            "ttft": {"p50": estimate(0.1), "p90": estimate(0.2), "p99": estimate(0.4)},
            "tpot": {"p50": estimate(0.02), "p90": estimate(0.03), "p99": estimate(0.05)},
            "e2e": {"p50": estimate(2.5), "p90": estimate(3.0), "p99": estimate(4.0)},
        },
        delay_p99=0.001, output_rate=123.0, prompt_rate=100.0, request_rate=3.4,
        mean_prompt_tokens=80.0, mean_output_tokens=90.0, cached_share=None, goodput=3.0,
        attained=0.9, counted=True, client_share=0.1, watched={}, invalid=None,
    )  # fmt: skip
    summary = msgspec.structs.replace(summary, **changes.pop("summary", {}))
    scenario = msgspec.structs.replace(known.load("short-chat"), load=Closed(4))
    scenario = msgspec.structs.replace(scenario, **changes.pop("scenario", {}))
    fields: dict[str, Any] = {
        "id": "run-1", "when": "2026-11-30T12:00:00+00:00", "scenario": scenario, "seed": 0,
        "slo": Slo(ttft=1.0), "machine": X86, "summary": summary,
        "target": Measured(url="http://x", model="smollm2", engine="llama.cpp", threads=2),
    }  # fmt: skip
    return Result(**{**fields, **changes})


def found(*results: Result, model: str = "smollm2", engine: str = "llama.cpp") -> list[str]:
    kept = KeptResults(results)
    return [m.source.split(" of ")[0] for m in kept.results(engine, model, "short-chat")]


def test_a_result_as_the_advisor_sees_it() -> None:
    (seen,) = KeptResults([result()]).results("llama.cpp", "smollm2", "short-chat")
    assert seen.engine == "llama.cpp"
    assert seen.workload == "short-chat"
    assert seen.hardware == "cpu-x86"
    assert seen.peak_concurrency == 4
    assert seen.output_tokens_per_second == 123.0
    assert (seen.ttft_ms, seen.tpot_ms) == (400.0, 50.0)
    assert seen.source == "bench result run-1 of 2026-11-30, 200 answers, A CPU, 2 threads"


@pytest.mark.parametrize(
    "changes",
    [
        {"summary": {"invalid": "the load generator did not keep up"}},
        {"summary": {"good": 0, "errors": {"timeout": 200}, "examples": {"timeout": ""}}},
        {"summary": {"good": 190, "errors": {"http_500": 10}, "examples": {"http_500": ""}}},
        {"summary": {"short": 20}},
        {"scenario": {"shapes": known.load("short-chat").scaled(2).shapes}},
        {"scenario": {"shapes": known.load("rag").shapes}},
        {"scenario": {"name": "of-my-own"}},
        {"summary_": None},
        {"target": Measured(url="http://x", model="smollm2")},
        {"target": Measured(url="http://x", model="gemma3", engine="llama.cpp")},
        {"target": Measured(url="http://x", model="smollm2", engine="tidemill")},
    ],
)
def test_what_is_not_used(changes: dict[str, Any]) -> None:
    if "summary_" in changes:  # a cold start
        other = result()
        other.summary = None
    else:
        other = result(**changes)
    assert found(other) == []
    assert found(other, result(id="good")) == ["bench result good"]


def test_few_failures_are_chance() -> None:
    assert found(
        result(summary={"good": 199, "errors": {"timeout": 1}, "examples": {"timeout": ""}})
    )


def test_the_load_may_be_another() -> None:
    kept = KeptResults([result(scenario={"load": Gamma(3.0)})])
    (seen,) = kept.results("llama.cpp", "smollm2", "short-chat")
    assert seen.peak_concurrency == 8  # 3.4 a second, 2.5 s each


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("smollm2", "smollm2"), ("./models/SmolLM2.gguf", "smollm2"),
        ("org/Model-8B", "model-8b"), ("hf://org/model/file.gguf", "file"),
    ],
)  # fmt: skip
def test_models_are_what_they_are_called(model: str, name: str) -> None:
    assert called(model) == name


@pytest.mark.parametrize(
    ("architecture", "system", "kind"),
    [
        ("x86_64", "Linux 6.1", "cpu-x86"), ("AMD64", "Windows 11", "cpu-x86"),
        ("aarch64", "Linux 6.1", "cpu-arm"), ("arm64", "Darwin 24", "apple"),
    ],
)  # fmt: skip
def test_kinds_of_hardware(architecture: str, system: str, kind: str) -> None:
    assert kind_of_processor(architecture, system) == kind


@pytest.fixture
def chosen() -> Callable[..., str]:
    def choose(results: list[Result], **values: Any) -> str:
        """The result that evidence is taken from in a case, if any."""
        answers: Answers = from_values(
            {"model.name": "smollm2", **{k.replace("__", "."): v for k, v in values.items()}}
        )
        evidence = Evidence(measured=KeptResults(results))
        seen = evidence.measurement(ENGINES["llama.cpp"], PART, answers)
        return "" if seen is None else seen.source.split()[2]

    return choose


def test_the_newest_under_enough_load_counts(chosen: Callable[..., str]) -> None:
    more = {"scenario": {"load": Closed(16)}}
    results = [result(id="new"), result(id="loaded", **more), result(id="old", **more)]
    assert chosen(results) == "new"
    assert chosen(results, load__peak_concurrency=16) == "loaded"
    assert chosen(results, load__peak_concurrency=17) == ""


def test_only_on_hardware_that_the_case_has(chosen: Callable[..., str]) -> None:
    assert chosen([result()], hardware__servers=["cpu-arm"]) == ""
    arm = Machine("B", "aarch64", 4, None, "Linux", "")
    assert chosen([result(), result(id="arm", machine=arm)], hardware__servers=["cpu-arm"]) == "arm"
