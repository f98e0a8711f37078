"""Recorded texts of every format: what they say, cut anywhere, cut off anywhere."""

from __future__ import annotations

import json

import pytest

from support.model_texts import RECORDED, Recorded, calls_of, parse, stream, tool
from tidemill.server.tools import (
    CallArguments,
    CallBegin,
    Content,
    Message,
    Reasoning,
    assemble,
    parser_for,
)
from tidemill.server.tools.qwen3_coder import to_json

each = pytest.mark.parametrize(
    "recorded", RECORDED, ids=[f"{i}-{r.format}" for i, r in enumerate(RECORDED)]
)


@each
def test_recorded_text(recorded: Recorded) -> None:
    message = parse(recorded.format, recorded.text, **recorded.options)
    assert calls_of(message) == recorded.calls
    assert message.content == recorded.content
    assert message.reasoning == recorded.reasoning


@each
def test_every_cut_gives_the_same(recorded: Recorded) -> None:
    text = recorded.text
    whole = parse(recorded.format, text, **recorded.options)
    for place in range(len(text) + 1):
        chunks = [text[:place], text[place:]]
        assert assemble(stream(recorded.format, chunks, **recorded.options)) == whole
    for size in (1, 2, 3, 5, 7, 11):
        chunks = [text[i : i + size] for i in range(0, len(text), size)]
        assert assemble(stream(recorded.format, chunks, **recorded.options)) == whole


@each
def test_every_call_begins_before_its_arguments_which_are_an_object(recorded: Recorded) -> None:
    begun: list[CallBegin] = []
    arguments: dict[int, str] = {}
    for piece in stream(recorded.format, recorded.text, **recorded.options):
        if isinstance(piece, CallBegin):
            assert piece.index == len(begun)
            begun.append(piece)
        elif isinstance(piece, CallArguments):
            assert piece.index == len(begun) - 1
            arguments[piece.index] = arguments.get(piece.index, "") + piece.text
    assert len({call.id for call in begun}) == len(begun)
    assert all(isinstance(json.loads(arguments[call.index]), dict) for call in begun)


@each
def test_a_text_that_is_cut_off_loses_nothing(recorded: Recorded) -> None:
    """Of every beginning of the text: calls that were complete are calls, the rest is text."""
    if recorded.text.endswith("never mind"):
        return  # it is a call if it ends before that
    for end in range(len(recorded.text)):
        text = recorded.text[:end]
        message = parse(recorded.format, text, **recorded.options)
        calls = calls_of(message)
        assert calls == recorded.calls[: len(calls)]
        if not calls and not recorded.options and recorded.format != "harmony":
            assert message.content == text


@pytest.mark.parametrize("format", ["hermes", "llama3", "mistral", "pythonic", "deepseek"])
def test_without_tools_all_is_content(format: str) -> None:
    for recorded in RECORDED:
        if recorded.format == format and not recorded.options:
            assert parse(format, recorded.text, []).content == recorded.text
            assert parse(None, recorded.text).content == recorded.text


def test_a_call_of_what_is_no_tool_is_content() -> None:
    text = '<tool_call>{"name": "rm", "arguments": {}}</tool_call>'
    assert calls_of(parse("hermes", text, [tool("rm")])) == [("rm", {})]
    assert parse("hermes", text).content == text


def test_ids_of_the_text_are_kept_unless_they_repeat() -> None:
    text = (
        '[TOOL_CALLS] [{"name": "get_time", "arguments": {}, "id": "123456789"},'
        ' {"name": "get_time", "arguments": {}, "id": "123456789"}]'
    )
    assert [call.id for call in parse("mistral", text).calls] == ["123456789", "id0"]


def test_ids_are_made_as_the_api_and_mistral_want_them() -> None:
    made = {
        format: [
            piece.id
            for piece in parser_for(format, [tool("f")]).push(text)
            if isinstance(piece, CallBegin)
        ]
        for format, text in (
            ("mistral", "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]f[ARGS]{}"),
            ("llama3", '{"name": "f", "parameters": {}};{"name": "f", "parameters": {}};'),
        )
    }
    assert [len(id) for id in made["mistral"]] == [9, 9]
    assert all(id.isalnum() and id.isascii() for id in made["mistral"])
    assert all(id.startswith("call_") for id in made["llama3"])
    assert len({*made["mistral"], *made["llama3"]}) == 4


@pytest.mark.parametrize(
    "arguments",
    [
        "[1]", "1", '"text"', '"[1]"', '{"a": NaN}', '{"a": 01}', '{"a": 1,}', "{'a': 1}",
        '{"a" 1}', '{"a": "\n"}', '{"a": "\\x"}', '"{\\"a\\": \\"\\ud800\\"}"', "{" * 70,
    ],
)  # fmt: skip
def test_arguments_that_are_no_object_make_no_call(arguments: str) -> None:
    text = f'<tool_call>{{"name": "get_time", "arguments": {arguments}}}</tool_call>'
    assert parse("hermes", text) == Message(text, "", ())


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("7", {"type": "integer"}, 7),
        (" 7.5e3 ", {"type": "number"}, 7500.0),
        ("7", {"type": "string"}, "7"),
        ("7", None, "7"),
        ("seven", {"type": "integer"}, "seven"),
        ("1e999x", {"type": "number"}, "1e999x"),
        ("false", {"type": ["boolean", "null"]}, False),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"type": "string"}, "null"),
        ('{"a": [1]}', {"type": "object"}, {"a": [1]}),
        ("{'a': 1}", {"type": "object"}, "{'a': 1}"),
        ("[1, 2]", {"oneOf": [{"type": "string"}, {"type": "array"}]}, [1, 2]),
        ('a "b"\n\\', {"type": "string"}, 'a "b"\n\\'),
    ],
)
def test_values_of_tags_are_what_the_schema_says(text: str, schema: object, value: object) -> None:
    assert json.loads(to_json(text, schema)) == value


def test_a_call_that_is_too_long_is_content() -> None:
    text = '<tool_call>{"name": "get_time", "arguments": {"zone": "' + "x" * 500 + '"}}</tool_call>'
    assert calls_of(parse("hermes", text, max_call_chars=1000))
    assert parse("hermes", text, max_call_chars=300).content == text


def test_pieces_are_given_out_in_the_order_of_the_text() -> None:
    text = '<think>a</think>b\n<tool_call>{"name": "get_time", "arguments": {}}</tool_call>\nc'
    kinds = [type(piece) for piece in stream("hermes", [text], reasoning="think")]
    assert kinds == [Reasoning, Content, CallBegin, CallArguments, Content]


@pytest.mark.parametrize(
    ("format", "options", "message"),
    [
        ("xml", {}, "no tool call format 'xml'"),
        ("hermes", {"reasoning": "deep"}, "no reasoning format 'deep'"),
        ("hermes", {"tools": [{"type": "function"}]}, r"tools\[0\]"),
    ],
)
def test_unknown_names_are_refused(format: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parser_for(format, **options)  # type: ignore[arg-type]


def test_calls_are_counted() -> None:
    parser = parser_for("mistral", [tool("f")])
    parser.push("[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]f[ARGS]{")
    assert parser.call_count == 1
