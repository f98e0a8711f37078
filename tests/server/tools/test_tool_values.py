"""The reader of values against the standard library's: it takes what they take, and no more."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.server.tools.json_text import is_json
from tidemill.server.tools.steps import NotACall
from tidemill.server.tools.values import MAX_DEPTH, ValueReader


def read(text: str, reader: ValueReader) -> str | None:
    """The JSON text of the value that ``text`` is, None if it is none."""
    try:
        for place, char in enumerate(text):
            if reader.feed(char):
                return reader.text() if place == len(text) - 1 else None
    except NotACall:
        pass
    return None


scraps = st.lists(
    st.sampled_from(
        [*'{}[](),:"\'\\ \n-+.0123eEtruefalsnNoTF_', "true", "null", "None", '"a"', "1.5e3",
         "\\u12aF", '{"a": ', "[1, ", "'x'", "\\n", "\x00", "é"]
    ),
    max_size=10,
).map("".join)  # fmt: skip
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def strict(text: str) -> bool:
    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.sampled_from(['{"a": ', "[", '["', '{"']), scraps, st.sampled_from(["", "}", "]", '"]']))
def test_json_is_what_the_library_takes(start: str, middle: str, end: str) -> None:
    text = start + middle + end
    got = read(text, ValueReader())
    assert (got == text) == (strict(text) and text == text.rstrip(" \n"))
    assert is_json(text, "{[") == strict(text)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(values, max_size=3), st.sampled_from([None, 1]), st.booleans())
def test_all_json_is_read(value: list[Any], indent: int | None, ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii)
    assert read(text, ValueReader()) == text


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.dictionaries(st.text("abc_é", min_size=1, max_size=4), values, max_size=3))
def test_python_literals_become_json(arguments: dict[str, Any]) -> None:
    text = ", ".join(f"{name} = {value!r}" for name, value in arguments.items()) + ")"
    got = read(text, ValueReader.call_arguments())
    assert got is not None
    assert json.loads(got) == arguments


@settings(derandomize=True, max_examples=200, deadline=None)
@given(scraps)
def test_python_that_is_none_is_refused(middle: str) -> None:
    """What is taken is what Python reads from it."""
    got = read(f"[{middle}]", ValueReader(python=True))
    if got is None:
        return
    value = json.loads(got)
    source = f"[{middle}]".replace("\n", "\\n") if "\n" in middle else f"[{middle}]"
    if any(word in middle for word in ("true", "false", "null", "\n", "\x00", "\\")):
        return  # more than Python takes, on purpose
    assert value == json.loads(json.dumps(ast.literal_eval(source)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            r"""x='it\'s "so"\n\t\\ \d\x41\u00e9\U0001F600')""",
            "it's \"so\"\n\t\\ \\dA\u00e9\U0001f600",
        ),
        ("x=(1, 2))", [1, 2]),
        ("x=(1,))", [1]),
        ("x=())", []),
        ("x=[1, 2, ],)", [1, 2]),
        ("x={'a': {'b': None,},})", {"a": {"b": None}}),
        ('x="two\nlines")', "two\nlines"),
        ('x="\\ud83d\\ude00")', "\U0001f600"),
        ("x=true)", True),
        ("x=-0.5e-3)", -0.0005),
    ],
)  # fmt: skip
def test_python_arguments(text: str, value: object) -> None:
    got = read(text, ValueReader.call_arguments())
    assert got is not None
    assert json.loads(got) == {"x": value}


@pytest.mark.parametrize(
    "text",
    [
        "x)", "1)", "x=)", "x=1, x=2)", "x=1 2)", "x=(1))", "x=f())", "x=1+1)", "x={1: 2})",
        "x={1, 2})", "x=,)", ",)", "x=[,])", "x=1]", "x=b'a')", "x=f'a')", "x='\\xg')",
        "x='\\U00110000')", "x=Nope)", "x=01)", "x=1_000)", "x=inf)", "x='\\N{DASH}')",
        "x=[1,,2])",
    ],
)  # fmt: skip
def test_no_python_arguments(text: str) -> None:
    assert read(text, ValueReader.call_arguments()) is None


def test_depth_is_bounded() -> None:
    assert read("[" * MAX_DEPTH + "]" * MAX_DEPTH, ValueReader()) is not None
    assert read("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), ValueReader()) is None
