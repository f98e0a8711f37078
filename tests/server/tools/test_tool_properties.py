"""What holds for every text and every way to cut it into chunks."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.model_texts import RECORDED, TOOLS, WRITERS, calls_of, cut, parse, stream, tool
from tidemill.server.tools import (
    FORMATS,
    CallArguments,
    CallBegin,
    Content,
    Piece,
    assemble,
    parser_for,
)
from tidemill.server.tools.parser import GRAMMARS

MARKS = [
    "<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>",
    "<|python_tag|>", "<|python_start|>", "<|python_end|>", "```tool_code", "```", "```json",
    "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<think>", "</think>",
    "[THINK]", "[/THINK]", "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>",
    "<|constrain|>", "<|return|>",
]  # fmt: skip
SCRAPS = [
    *"<>[](){}|:;,=/\"'\\ \n\tax17",
    '"name"', '"arguments"', '"parameters"', "get_time", "get_weather", "rm", "analysis", "final",
    "commentary", " to=functions.get_time", '{"name": "get_time", "arguments": {}}',
    '{"name": "get_time", "parameters": {"zone": "UTC"}}', "get_time(zone='UTC')", "function",
    '{"zone": "é<tool_call>"}', "\n\n", "    ",
]  # fmt: skip

pieces_of_text = st.one_of(
    st.sampled_from(MARKS),
    st.tuples(st.sampled_from(MARKS), st.integers(1, 20)).map(lambda pair: pair[0][: pair[1]]),
    st.sampled_from(SCRAPS),
    st.sampled_from([recorded.text for recorded in RECORDED]),
    st.text(max_size=4),
)
texts = st.lists(pieces_of_text, max_size=8).map("".join)
cuts = st.lists(st.integers(0, 10_000), max_size=12)
formats = st.sampled_from(FORMATS)
options = st.fixed_dictionaries(
    {
        "reasoning": st.sampled_from([None, "think", "magistral"]),
        "in_reasoning": st.booleans(),
    }
)


def check_calls(pieces: list[Piece]) -> None:
    arguments: list[str] = []
    ids: set[str] = set()
    for piece in pieces:
        match piece:
            case CallBegin(index, id):
                assert index == len(arguments)
                assert id not in ids
                ids.add(id)
                arguments.append("")
            case CallArguments(index, text):
                assert index == len(arguments) - 1
                assert text
                arguments[index] += text
            case Content(text):
                assert text
    for text in arguments:
        assert isinstance(json.loads(text, parse_constant=pytest.fail), dict)
        text.encode()


@settings(derandomize=True, max_examples=250, deadline=None)
@given(formats, texts, cuts, options)
def test_every_chunking_gives_the_same(
    format: str, text: str, places: list[int], options: dict[str, Any]
) -> None:
    whole = stream(format, [text], **options)
    pieces = stream(format, cut(text, places), **options)
    assert assemble(pieces) == assemble(whole)
    check_calls(whole)
    check_calls(pieces)
    assert assemble(stream(format, text, **options)) == assemble(whole)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.sampled_from(sorted(GRAMMARS)), texts, cuts)
def test_text_without_calls_is_unchanged(format: str, text: str, places: list[int]) -> None:
    """No call can be in it, as no tool of that name is ever called: so all of it is content."""
    message = assemble(stream(format, cut(text, places), [tool("never_called")]))
    assert message.content == text
    assert not message.calls


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.sampled_from(sorted(GRAMMARS)), texts)
def test_nothing_is_lost_around_calls(format: str, text: str) -> None:
    """Content is the text without some parts of it; and with calls only."""
    message = parse(format, text)
    position = 0
    for char in message.content:
        position = text.index(char, position) + 1
    if not message.calls:
        assert message.content == text


strings = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ["</tool_call", '"}}]', "[TOOL_CALLS]", "<｜tool▁call▁end｜>", "```", "\\u00e9", "\r\n'"]
)
names = st.text("abz_", min_size=1, max_size=5)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=8,
)
call_lists = st.lists(
    st.tuples(st.sampled_from(["get_time", "f"]), st.dictionaries(names, json_values, max_size=3)),
    min_size=1,
    max_size=3,
)
openings = st.text("abc.,! \nü", max_size=20)
ANY_ARGUMENTS = [tool("get_time"), tool("f")]


@pytest.mark.parametrize("writer", sorted(WRITERS))
@settings(derandomize=True, max_examples=30, deadline=None)
@given(data=st.data())
def test_calls_that_are_written_are_read(writer: str, data: st.DataObject) -> None:
    format, write = WRITERS[writer]
    calls = data.draw(call_lists)
    if writer == "qwen3_coder":
        # Without a schema all values are strings; the closing tag cannot be in one.
        calls = [
            (name, {k: str(v).replace("</parameter>", "") for k, v in arguments.items()})
            for name, arguments in calls
        ]
    opening = data.draw(openings)
    text = opening + write(calls)
    pieces = stream(format, cut(text, data.draw(cuts)), ANY_ARGUMENTS)
    message = assemble(pieces)
    assert calls_of(message) == calls
    # White space before a call is part of its envelope.
    assert message.content == opening.rstrip(" \n")
    check_calls(pieces)


@settings(derandomize=True, max_examples=15, deadline=None)
@given(call_lists, st.integers(0, 3))
def test_typed_values_of_tags_are_read_by_the_schema(calls: list[Any], seed: int) -> None:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    for name, arguments in calls:
        schema = {
            key: {"type": kinds.get(type(value), "array" if isinstance(value, list) else "object")}
            for key, value in arguments.items()
        }
        if any(isinstance(v, str) and "</parameter>" in v for v in arguments.values()):
            continue
        text = WRITERS["qwen3_coder"][1]([(name, arguments)])
        [(got_name, got)] = calls_of(parse("qwen3_coder", text, [tool(name, **schema)]))
        assert got_name == name
        assert got.keys() == arguments.keys()
        for key, value in arguments.items():
            assert got[key] == value or math.isclose(got[key], value)


@pytest.mark.parametrize("writer", sorted(WRITERS))
def test_a_call_after_one_that_broke_off_is_read(writer: str) -> None:
    """Wherever it did, but for the inside of a string, to which what follows belongs."""
    format, write = WRITERS[writer]
    text = write([("get_time", {})])
    for end in range(len(text)):
        if text[:end].count('"') % 2 == 0:
            message = parse(format, text[:end] + text)
            assert calls_of(message)[-1:] == [("get_time", {})], text[:end]
            if len(message.calls) == 1:
                assert text[:end].strip().startswith(message.content.strip())


# ---- holding back


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.sampled_from(sorted(GRAMMARS)), st.text("ab.é \n", max_size=40))
def test_plain_text_comes_out_at_once(format: str, text: str) -> None:
    """All but the white space at its end, which may be part of a call that follows."""
    parser = parser_for(format, TOOLS)
    shown = ""
    for end, char in enumerate(text, 1):
        shown += assemble(parser.push(char)).content
        assert shown == text[:end].rstrip(" \n")
    assert shown + assemble(parser.finish()).content == text


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.sampled_from(sorted(GRAMMARS)), texts)
def test_what_is_held_back_may_still_be_a_call(format: str, text: str) -> None:
    """After each character: what is not out yet begins with a marker's beginning, or is space."""
    parser = parser_for(format, [tool("never_called")])
    markers = GRAMMARS[format].markers
    shown = ""
    for end, char in enumerate(text, 1):
        shown += assemble(parser.push(char)).content
        held = text[len(shown) : end].lstrip(" \t\r\n")
        assert text[:end].startswith(shown)
        assert not held or any(held.startswith(m) or m.startswith(held) for m in markers)


@pytest.mark.parametrize(
    ("format", "text"),
    # Each is given out whole with its last character, and not before.
    [
        ("hermes", "<x"),
        ("hermes", "<tool_ca<"),
        ("hermes", "<tool_call>x"),
        ("hermes", "<tool_call>\n["),
        ("hermes", '<tool_call>{"x'),
        ("hermes", '<tool_call>{"name": "get_q'),
        ("hermes", '<tool_call>{"name": "get_time";'),
        ("hermes", '<tool_call>{"name": "get_time", "arguments": ['),
        ("hermes", '<tool_call>{"name": "get_time", "arguments": {"a": tx'),
        ("hermes", '<tool_call>{"name": "get_time", "arguments": {}}</tool_x'),
        ("qwen3_coder", "<function=get_q"),
        ("qwen3_coder", "<tool_call>{"),
        ("qwen3_coder", "<function=get_time>\nx"),
        ("llama3", "{1"),
        ("llama3", '{"answer"'[:4]),
        ("llama3", '{"name": "Bob'[:11]),
        ("llama3", "<|python_tag|>p"),
        ("mistral", "[1"),
        ("mistral", "[TOOL_CALLS] [ ]"),
        ("mistral", "[TOOL_CALLS]rm"[:13]),
        ("pythonic", "[x"),
        ("pythonic", "[get_time(1"),
        ("pythonic", "[get_time(a=b"),
        ("pythonic", "```p"),
        ("pythonic", "```tool_code\nx"),
        ("deepseek", "<｜U"),
        ("deepseek", "<｜tool▁calls▁begin｜>x"),
        ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>x"),
    ],
)
def test_what_is_no_call_any_more_comes_out_at_once(format: str, text: str) -> None:
    parser = parser_for(format, TOOLS)
    assert parser.push(text[:-1]) == []
    shown = assemble(parser.push(text[-1])).content
    # The last character may begin something itself.
    assert shown in (text, text[:-1], text.rstrip())
    assert shown + assemble(parser.finish()).content == text


def test_json_and_code_in_an_answer_are_unchanged() -> None:
    answer = (
        'Here:\n\n```json\n{"name": "get_time", "arguments": {"zone": [1, 2]}}\n```\n'
        "and `a < b[0]`, [a link](https://example.org), x = f(y)\n[1, 2, 3]\n- [ ] to do\n"
    )
    for format in FORMATS:
        assert parse(format, answer).content == answer
        assert not parse(format, answer).calls
