"""The report in its forms."""

from __future__ import annotations

import json
from html import escape
from typing import Any

import pytest

from support.advice import TODAY, Store, measured
from tidemill.advise import flips, report
from tidemill.advise.advice import Advice, advise
from tidemill.advise.answers import from_values
from tidemill.advise.evidence import Evidence
from tidemill.advise.facts import load_engines
from tidemill.advise.questions import QUESTIONS
from tidemill.advise.scores import WEIGHTS
from tidemill.presentation.document import (
    Bars,
    Command,
    Heading,
    Table,
    as_html,
    as_markdown,
    as_text,
)

ENGINES = load_engines()
HYBRID = {
    "hardware.servers": ["nvidia"], "hardware.gpus": 2, "hardware.edge": ["cpu-arm"],
    "load.peak_concurrency": 64, "load.bottleneck": "attention", "case.current": "ollama",
}  # fmt: skip

TOO_LARGE = {"hardware.memory_gb": 1, "model.parameters_b": 999}


def made(values: dict[str, Any], **options: Any) -> tuple[Advice, flips.Flips]:
    answers = from_values(values)
    evidence = options.get("evidence", Evidence())
    advice = advise(answers, ENGINES, today=TODAY, evidence=evidence)
    return advice, flips.find(answers, ENGINES, evidence, WEIGHTS)


def text_of(values: dict[str, Any], **options: Any) -> str:
    return as_text(report.blocks(*made(values, **options)), 100)


def test_every_part_of_the_advice_is_there() -> None:
    text = text_of(HYBRID)
    for heading in (
        "A hybrid:", "Configuration", "Optimisation component", "Scores (weights: performance 0.4",
        "The others, and why not", "Risks", "What to measure next", "Not there, and so not used",
        "What would change the decision", "Numbers, and where they come from", "The answers",
        "Sources",
    ):  # fmt: skip
        assert heading in text
    for engine in ENGINES.values():
        assert engine.name in text
    for question in QUESTIONS:
        assert question.key in text
    assert "(looked up 2026-11-30)" in text
    assert "(assumed)" in text


@pytest.mark.parametrize("width", [80, 100])
def test_lines_keep_to_the_width_but_for_urls(width: int) -> None:
    for line in as_text(report.blocks(*made(HYBRID)), width).splitlines():
        assert len(line) <= width or "https://" in line or " # or " in line, line


def test_measured_numbers_are_marked() -> None:
    evidence = Evidence(measured=Store(**{"llama.cpp": measured("llama.cpp", 321)}))
    text = text_of({}, evidence=evidence)
    assert "321 tokens/s" in text
    assert "measured" in text
    assert "run-of-llama.cpp" in text


def test_old_facts_are_flagged() -> None:
    answers = from_values({})
    later = TODAY.replace(year=2028)
    advice = advise(answers, ENGINES, today=later)
    text = " ".join(as_text(report.blocks(advice, flips.Flips((), 0, ()))).split())
    assert "Old facts, to be looked up again: of llama.cpp (licence, release" in text
    assert f"of {len(ENGINES) - 1} other engines" in text


def test_markdown_has_the_same_and_keeps_its_tables() -> None:
    text = as_markdown(report.blocks(*made(HYBRID)))
    assert text.startswith("# Which inference engine, for this case\n")
    assert "## What would change the decision" in text
    assert "```sh\n" in text
    tables = [block for block in text.split("\n\n") if block.startswith("| ")]
    assert len(tables) >= 6
    for table in tables:
        columns = {line.replace("\\|", "").count("|") for line in table.splitlines()}
        assert len(columns) == 1, table


def test_html_has_the_same() -> None:
    blocks = report.blocks(*made(HYBRID))
    html = as_html(blocks)
    for block in blocks:
        if isinstance(block, Heading):
            assert f"<h{block.level}>{escape(block.text)}</h{block.level}>" in html
    assert html.count("<table>") == sum(isinstance(block, (Table, Bars)) for block in blocks)
    assert html.count("<pre") == sum(isinstance(block, Command) for block in blocks)


@pytest.mark.parametrize(
    "values", [{}, HYBRID, {"hardware.memory_gb": 1, "model.parameters_b": 999}]
)
def test_data_is_json_and_complete(values: dict[str, Any]) -> None:
    advice, found = made(values)
    data = json.loads(json.dumps(report.as_data(advice, found)))
    assert len(data["parts"]) == len(advice.choices)
    for part, choice in zip(data["parts"], advice.choices, strict=True):
        assert part["engine"] == (choice.chosen.engine.id if choice.chosen else None)
        assert {c["status"] for c in part["candidates"]} <= {"qualified", "unproven", "rejected"}
        for candidate in part["candidates"]:
            assert (candidate["status"] == "qualified") == (candidate["why"] == [])
        for number in part["numbers"].values():
            assert number["origin"] in ("answered", "computed")
    assert data["flips"]["tried"] == found.tried
    assert data["answers"]["load.peak_concurrency"] == advice.answers.peak_concurrency


def test_nothing_is_recommended_in_words_too() -> None:
    text = text_of(TOO_LARGE)
    assert "Recommended: no engine that is known on the servers" in text
    assert "Every engine known fails a rule" in text
    assert "needs 499.5 GB for the weights alone; main memory is 1 GB" in text
