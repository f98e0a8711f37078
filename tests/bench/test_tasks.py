from __future__ import annotations

import random
from typing import Any

import pytest

from tidemill.bench.tasks import Task, Tool, Verdict

VALUES = {"city": ("Lyon", "Oslo"), "count": (3, 7)}
SCHEMA = {"type": "object"}
TOOLS = (Tool("find", "Finds.", {"type": "object"}), Tool("lose", "Loses.", {"type": "object"}))
EXTRACT = Task("In $city: $count for $$5.", VALUES, ("city", "count"), schema=SCHEMA)
CALL = Task("Find $count in $city.", VALUES, ("city",), tools=TOOLS, call="find", choice="required")
DRAWN = {"city": "Lyon", "count": 3}


def test_blanks_are_filled() -> None:
    drawn = [EXTRACT.draw(random.Random(i)) for i in range(30)]
    assert {d["city"] for d in drawn} == {"Lyon", "Oslo"}
    assert {d["count"] for d in drawn} == {3, 7}
    assert EXTRACT.text(DRAWN) == "In Lyon: 3 for $5."


def test_what_is_asked_for_is_in_the_body() -> None:
    form = EXTRACT.fields()["response_format"]
    assert form["type"] == "json_schema"
    assert form["json_schema"]["schema"] == SCHEMA
    fields = CALL.fields()
    assert fields["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in fields["tools"]] == ["find", "lose"]


@pytest.mark.parametrize(
    ("content", "verdict"),
    [
        ('{"city": "Lyon", "count": 3}', "right"),
        ('{"city": " lyon ", "count": 3.0, "more": null}', "right"),
        ('{"city": "Oslo", "count": 3}', "wrong"),
        ('{"city": "Lyon", "count": "3"}', "wrong"),
        ('{"city": "Lyon", "count": true}', "wrong"),
        ('{"city": ["Lyon"], "count": 3}', "wrong"),
        ('{"city": "Lyon"}', "malformed"),
        ('{"city": "Lyon", "count": 3', "malformed"),
        ('```json\n{"city": "Lyon", "count": 3}\n```', "malformed"),
        ('["city", "count"]', "malformed"),
        ("", "malformed"),
        ("[" * 100_000, "malformed"),
    ],
)
def test_an_object_is_judged(content: str, verdict: Verdict) -> None:
    assert EXTRACT.judge(DRAWN, content, []) == verdict


@pytest.mark.parametrize(
    ("calls", "verdict"),
    [
        ([("find", '{"city": "Lyon"}')], "right"),
        ([("find", '{"city": "Oslo"}')], "wrong"),
        ([("lose", '{"city": "Lyon"}')], "malformed"),
        ([("find", '{"city": "Lyon"}')] * 2, "malformed"),
        ([("find", "Lyon")], "malformed"),
        ([], "malformed"),
    ],
)
def test_a_call_is_judged(calls: list[tuple[str, str]], verdict: Verdict) -> None:
    assert CALL.judge(DRAWN, '{"city": "Lyon"}', calls) == verdict


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"template": "In $city: $ 5"}, "written"),
        ({"template": "In $city"}, "count"),
        ({"template": "$city $count $year"}, "year"),
        ({"values": {"city": ("Lyon",), "count": ()}}, "values.count is empty"),
        ({"answer": ("town",)}, "answer"),
        ({"answer": ()}, "answer"),
        ({"schema": None}, "either"),
        ({"tools": TOOLS, "call": "find"}, "either"),
        ({"schema": None, "tools": TOOLS, "call": "fnd"}, "fnd"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused(change: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {
        "template": EXTRACT.template, "values": VALUES, "answer": ("city", "count"),
        "schema": SCHEMA,
    }  # fmt: skip
    with pytest.raises(ValueError, match=said):
        Task(**(given | change))
