from __future__ import annotations

import pytest

from tidemill.bench import report
from tidemill.bench.measures import Slo, summarise
from tidemill.bench.records import Record, Recording, Window
from tidemill.bench.resources import Cost, Density, Energy, Gpu, Memory, Resources
from tidemill.bench.result import Machine, Measured, Result
from tidemill.bench.scenario import load, names
from tidemill.bench.starts import Start
from tidemill.bench.statistics import Estimate


def result(name: str = "short-chat", **fields: object) -> Result:
    return Result(
        when="2026-01-02T03:04:05+00:00", scenario=load(name), seed=0, slo=None,
        target=Measured(url="http://host/v1", model="m"),
        machine=Machine("Some CPU", "x86_64", 4, 1 << 30, "Linux 6", "3.11"), **fields,
    )  # type: ignore[arg-type]  # fmt: skip


def record(index: int, **fields: object) -> Record:
    due = 1.0 + index
    given = {
        "index": index, "shape": "chat", "due": due, "sent": due + 0.002, "ended": due + 1.5,
        "times": [due + 0.2, due + 0.3, due + 1.5], "prompt_tokens": 20, "cached_tokens": 5,
        "output_tokens": 3, "asked": 3,
    } | fields  # fmt: skip
    return Record(**given)  # type: ignore[arg-type]


def test_a_run_as_text() -> None:
    records = [
        record(0, verdict="right"),
        record(1, verdict="malformed", output_tokens=2),
        record(2, error="http_429", detail="full", times=[]),
    ]
    slo = Slo(ttft=0.5, e2e=1.0)
    summary = summarise(Recording(records, Window(0.0, 10.0), 0.1), slo)
    found = result(summary=summary, notes=["something"], by_shape={"chat": summary})
    found.slo = slo
    said = report.text(found)
    assert said.startswith("short-chat · http://host/v1 · m · asked from 4 cores of Some CPU\n")
    assert "TTFT" in said
    assert "200 ms  " in said
    assert "1.50 s  " in said
    assert "SLO ttft=0.5,e2e=1: met by 0.0% of 3 requests" in said
    assert "2 good answers, errors: 1 http_429 (full)" in said
    assert "answers checked: 2: 1 right, 0 wrong, 1 malformed" in said
    assert "25% of prompts from a cache" in said
    assert "chat: 3 requests, 1 failed" in said
    assert "2.0 ms late at p99" in said
    assert "; valid" in said
    assert said.endswith("note: something")
    assert summary.short == 1


def test_an_invalid_run_says_so() -> None:
    late = summarise(Recording([record(0, sent=1.5)], Window(0.0, 10.0), 0.1))
    assert "INVALID: 1 % of the requests" in report.text(result(summary=late))
    nothing = summarise(Recording([], Window(0.0, 10.0), 0.1))
    said = report.text(result(summary=nothing))
    assert "INVALID: no request was due" in said
    assert "TTFT" not in said


def test_resources_as_text() -> None:
    found = Resources(
        cores=4, cpu_seconds=30.0, cpu_share=0.75, memory=Memory("PSS", 3 << 30, 700 << 20),
        gpus=[Gpu("H100", 40 << 30, 80 << 30, 0.9, 500.0), Gpu("Orin", 1 << 30, 8 << 30)],
        energy=Energy("estimate", "--watts", 650.0, 65.0),
        density=Density(per_core_given=15.0, per_watt=0.4615),
        cost=Cost(hour=1.06, includes="machine + power", output=9.8148, input=None),
        unknown={"cpu_share": "it is not told", "cores": "it is not told"},
    )  # fmt: skip
    assert list(report.resource_lines(found)) == [
        "CPU: 30.0 s, 75% of 4 cores",
        "memory: 3.00 GiB at most, 700 MiB on average (PSS)",
        "GPU H100: 40.00 GiB of 80.00 GiB, busy 90% of the time, 500 W",
        "GPU Orin: 1.00 GiB of 8.00 GiB",
        "energy: 650 J, 65.0 W on average (estimate: --watts)",
        "output tokens/s: 15.00 per core given, 0.46 per watt",
        "cost of a million tokens: 9.815 by output (1.06 an hour: machine + power)",
        "not known: cpu share, cores: it is not told",
    ]
    summary = summarise(Recording([record(0)], Window(0.0, 10.0), 0.1))
    assert "  CPU: 30.0 s, 75%" in report.text(result(summary=summary, resources=found))


def test_phases_that_an_engine_does_not_have_are_left_out() -> None:
    starts = [Start(False, 1.0, 0.1, 0.2, 0.3, 0.05, mapped) for mapped in (0.15, None)]
    assert "model mapped" not in report.text(result("cold-start", starts=starts))
    said = report.text(result("cold-start", starts=starts[:1]))
    assert "model mapped                       150 ms" in said


def test_starts_as_text() -> None:
    starts = [
        Start(True, 0.01, 0.1, 0.5 + i, 0.9 + i, 0.05) for i in range(3)
    ] + [Start(False, 1.0, 0.1, 0.2, 0.3, 0.05)]  # fmt: skip
    said = report.text(result("cold-start", starts=starts))
    assert "cold: median of 3 starts, 1% of the files in the page cache" in said
    assert "warm: median of 1 starts\n" in said
    assert "1.90 s   (900 ms to 2.90 s)" in said


@pytest.mark.parametrize("name", names())
def test_scenarios_are_described(name: str) -> None:
    scenario = load(name)
    said = report.describe(scenario)
    for words in (scenario.summary, scenario.source, *(shape.name for shape in scenario.shapes)):
        assert words in said


@pytest.mark.parametrize(
    ("share", "digits", "said"),
    [
        (1, 1, "100.0%"), (0.9999, 1, "99.9%"), (0.99951, 1, "99.9%"), (0.5, 1, "50.0%"),
        (0, 1, "0.0%"), (1e-9, 1, "0.1%"), (0.996, 0, "99%"), (0.004, 0, "1%"), (1, 0, "100%"),
    ],
)  # fmt: skip
def test_all_and_none_are_not_said_of_nearly_so(share: float, digits: int, said: str) -> None:
    assert report.percent(share, digits) == said


def test_one_value_has_no_interval() -> None:
    assert report.estimate(Estimate(0.25, 0.25, 0.25)) == "250 ms"
    assert report.estimate(Estimate(0.25, 0.2, 0.3)) == "250 ms (200–300)"
