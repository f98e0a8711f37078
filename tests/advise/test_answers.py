"""Answers: what is wrong with them is said by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.advise.answers import (
    AnswerError,
    Answers,
    accept,
    defaults,
    from_values,
    read,
    understand,
    write,
)
from tidemill.advise.facts import load_engines
from tidemill.advise.questions import BY_KEY, QUESTIONS, SECTIONS

ENGINES = tuple(load_engines())
GPU = {"hardware.servers": ["nvidia"], "hardware.gpus": 2}


def test_questions_and_fields_are_the_same() -> None:
    fields = set(Answers.__annotations__) - {"assumed"}
    assert fields == {question.name for question in QUESTIONS}
    assert len(fields) == len(QUESTIONS)
    assert {question.section for question in QUESTIONS} == set(SECTIONS)


def test_the_defaults_hold_together_and_are_marked() -> None:
    assert defaults().assumed == tuple(BY_KEY)
    some = from_values({"load.peak_concurrency": 7})
    assert "load.peak_concurrency" not in some.assumed
    assert some.peak_concurrency == 7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"load.peak": 3}, "did you mean load.peak_concurrency?"),
        ({"load.peak_concurrency": 0}, "load.peak_concurrency: 0 is not between 1 and 1e+06"),
        ({"load.peak_concurrency": 2.5}, "load.peak_concurrency: 2.5 is not a whole number"),
        ({"load.peak_concurrency": True}, "load.peak_concurrency: True is not a whole number"),
        ({"load.peak_concurrency": 10**400}, "load.peak_concurrency: 1000"),
        ({"load.ttft_ms": 10**400}, "load.ttft_ms: 1000"),
        ({"load.latency": "x" * 10**6}, "… is not one of interactive"),
        ({"load.peak_concurrency": "8"}, "load.peak_concurrency: '8' is not a whole number"),
        ({"load.ttft_ms": float("nan")}, "load.ttft_ms: nan is not a finite number"),
        ({"load.ttft_ms": float("inf")}, "load.ttft_ms: inf is not a finite number"),
        ({"load.ttft_ms": -1}, "load.ttft_ms: -1 is not between"),
        ({"load.latency": "fast"}, "load.latency: 'fast' is not one of interactive"),
        ({"case.stage": "prodution"}, "did you mean production?"),
        ({"hardware.servers": "nvidia"}, "hardware.servers: 'nvidia' is not a list"),
        ({"hardware.servers": ["gpu"]}, "hardware.servers: 'gpu' is not one of nvidia"),
        ({"data.stays_local": "yes"}, "data.stays_local: 'yes' is neither true nor false"),
        ({"model.name": " "}, "model.name: ' ' is not a text"),
        ({"model.name": "a\nb"}, "model.name: control characters"),
        ({"model.name": "x" * 2000}, "longer than 1000"),
        ({"model.name": "--help"}, "model.name: '--help' begins with a dash"),
        ({"case.current": "vlm"}, "case.current: no engine 'vlm' is known; did you mean vllm?"),
        # contradictions
        ({"hardware.servers": []}, "hardware.servers and hardware.edge are both empty"),
        ({"case.stage": "edge"}, 'case.stage is "edge", but hardware.edge is empty'),
        ({"hardware.servers": ["nvidia"]}, "has nvidia, but hardware.gpus is 0"),
        ({"hardware.gpus": 1}, "hardware.gpus is 1, but hardware.servers names no GPUs"),
        ({"hardware.gpu_memory_gb": 24}, "hardware.gpu_memory_gb is given, but hardware.gpus is 0"),
        ({"load.latency": "batch", "load.ttft_ms": 5}, "load.ttft_ms is given, but load.latency"),
        ({"load.latency": "batch", "load.tpot_ms": 5}, "load.tpot_ms is given, but load.latency"),
        ({"load.workload": "edge-single-user"}, "but load.peak_concurrency is 4"),
        ({"load.workload": "offline-batch"}, 'but load.latency is "interactive"'),
        ({"load.workload": "voice-turn", "load.latency": "batch"}, 'but load.latency is "batch"'),
        ({"load.bottleneck": "communication"}, "needs at least two GPUs"),
        ({"data.audit": True}, "data.audit is true, but data.access_control is false"),
    ],
)
def test_wrong_answers_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(AnswerError) as caught:
        from_values(values, ENGINES)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[load]\npeak_concurrency = ", "case.toml: not valid TOML"),
        ("peak_concurrency = 3", "case.toml: there is no section [peak_concurrency]"),
        ("[lode]\nlatency = 'batch'", "there is no section [lode]; did you mean [load]"),
        ("load = 3", "case.toml: load is a section: [load], not a value"),
        ("[load]\npeak_concurrency = 0", "case.toml: load.peak_concurrency: 0 is not between"),
        ("[load]\nworkload = { a = 1 }", "case.toml: load.workload: {'a': 1} is not one of"),
        ("[load.latency]\na = 1", "case.toml: load.latency: {'a': 1} is not one of"),
        ("x = " + "[" * 5000, "case.toml: not valid TOML"),
        ("[load]\npeak_concurrency = " + "9" * 5000, "case.toml: not valid TOML"),
    ],
)
def test_wrong_files_are_refused(text: str, message: str) -> None:
    with pytest.raises(AnswerError) as caught:
        read(text, "case.toml")
    assert message in str(caught.value)


def test_what_is_written_can_be_read() -> None:
    values = {
        **GPU, "hardware.edge": ["apple", "cpu-arm"], "load.ttft_ms": 1234567.5,
        "model.name": 'a "b" \\ü', "data.access_control": True, "data.audit": True,
        "hardware.gpu_memory_gb": 0.1 + 0.9, "budget.per_month": 1e11,
    }  # fmt: skip
    answers = from_values(values)
    again = read(write(answers), "case.toml")
    for question in QUESTIONS:
        assert again.get(question) == answers.get(question), question.key


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.text(max_size=30), st.floats(min_value=1, max_value=1e9), st.integers(1, 1_000_000))
def test_any_text_and_number_survives_a_file(name: str, limit: float, peak: int) -> None:
    try:
        answers = from_values(
            {"model.name": name, "load.ttft_ms": limit, "load.peak_concurrency": peak}
        )
    except AnswerError:
        return
    again = read(write(answers), "case.toml")
    assert (again.name, again.ttft_ms, again.peak_concurrency) == (answers.name, limit, peak)


def test_a_number_that_is_typed_without_end() -> None:
    question = BY_KEY["load.peak_concurrency"]
    for digits in (400, 5000):
        with pytest.raises(AnswerError) as caught:
            accept(question, understand(question, "9" * digits))
        assert len(str(caught.value)) < 200


def test_a_file_with_the_mark_that_some_editors_write() -> None:
    assert read("\ufeff[load]\npeak_concurrency = 7\n", "case.toml").peak_concurrency == 7
