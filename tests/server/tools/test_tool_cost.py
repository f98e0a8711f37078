"""Time and memory are bounded, whatever the text: counted, not timed."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from support.model_texts import TOOLS
from tidemill.server.tools import FORMATS, Parser, parser_for
from tidemill.server.tools.parser import GRAMMARS
from tidemill.server.tools.scanner import CallScanner

# What is repeated, and what is put before it.
HOSTILE = {
    "hermes": [
        ("<tool_call>", ""),
        ('<tool_call>{"name": "get_time", "arguments": {"zone": "', ""),
        ('<tool_call>{"name": "get_time", "arguments": {}}</tool_', ""),
        ("[", '<tool_call>{"name": "get_time", "arguments": {"zone": '),
        (" \n", ""),
        (" ", "<tool_call>"),
    ],
    "qwen3_coder": [
        ("<function=get_time>", ""),
        ("<function=get_time><parameter=zone>", ""),
        ("</parameter", "<function=get_time><parameter=zone>"),
        (">", "<function=get_time><parameter=zone>"),
    ],
    "llama3": [("{", ""), ('<|python_tag|>{"name": ', ""), ("; ", '{"name": "get_time"}')],
    "mistral": [
        ("[TOOL_CALLS]", ""),
        ("[TOOL_CALLS] [ ", ""),
        ("[TOOL_CALLS]get_time[CALL_ID]", ""),
    ],
    "pythonic": [
        ("\n[", ""),
        ("\n[get_time(zone='", ""),
        ("get_time(),", "["),
        ("a=[(", "[get_time("),
        ("```tool_code\n", ""),
        ("\\u00e", "[get_time(zone='"),
    ],
    "deepseek": [
        ("<｜tool▁calls▁begin｜>", ""),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n", ""),
    ],
    "harmony": [
        ("<|channel|>", ""),
        ("<|channel|>analysis<|message|>", ""),
        ("<|start|>assistant to=functions.get_time<|message|>{", ""),
        ("<|en", ""),
    ],
}  # fmt: skip
CASES = [(format, *case) for format in FORMATS for case in HOSTILE[format]]
REASONING = [("think", "<think", ""), ("think", "\n", "<think>"), ("think", "</thin", "<think>")]


def feed(parser: Parser, text: str, size: int) -> int:
    shown = 0
    for start in range(0, len(text), size):
        for piece in parser.push(text[start : start + size]):
            shown += len(getattr(piece, "text", ""))
    for piece in parser.finish():
        shown += len(getattr(piece, "text", ""))
    return shown


def events(parser: Parser, text: str, size: int) -> int:
    """How many lines of Python are run for ``text``."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        feed(parser, text, size)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("size", [3, 1 << 20])
@pytest.mark.parametrize(("format", "repeated", "start"), CASES)
def test_work_grows_with_the_text_only(format: str, repeated: str, start: str, size: int) -> None:
    def work(length: int) -> int:
        text = (start + repeated * (length // len(repeated) + 1))[:length]
        return events(parser_for(format, TOOLS, max_call_chars=1 << 30), text, size)

    small, large = work(1000), work(2000)
    assert large <= 2.2 * small + 1000
    assert large <= 100 * 2000


@pytest.mark.parametrize(("reasoning", "repeated", "start"), REASONING)
def test_work_for_reasoning_grows_with_the_text_only(
    reasoning: str, repeated: str, start: str
) -> None:
    def work(length: int) -> int:
        text = (start + repeated * (length // len(repeated) + 1))[:length]
        return events(parser_for(None, reasoning=reasoning), text, 3)

    assert work(2000) <= 2.2 * work(1000) + 1000


def scanner_of(parser: Parser) -> CallScanner:
    scanner = parser._scanner
    assert isinstance(scanner, CallScanner)
    return scanner


@pytest.mark.parametrize("format", GRAMMARS)
def test_a_long_text_is_looked_at_once(format: str) -> None:
    repeated, start = HOSTILE[format][1]
    text = (start + repeated * (100_000 // len(repeated) + 1))[:100_000]
    parser = parser_for(format, TOOLS, max_call_chars=1 << 30)
    assert feed(parser, text, 4096) == len(text)
    # The last few characters of what breaks off are looked at once more.
    assert scanner_of(parser).steps <= 1.5 * len(text)


@pytest.mark.parametrize(("format", "repeated", "start"), CASES)
def test_no_more_is_held_than_a_call_may_be_long(format: str, repeated: str, start: str) -> None:
    text = (start + repeated * (30_000 // len(repeated) + 1))[:30_000]
    limit = 1000
    parser = parser_for(format, TOOLS, max_call_chars=limit)
    out = 0
    for place in range(0, len(text), 100):
        pieces = parser.push(text[place : place + 100])
        out += sum(len(getattr(piece, "text", "")) for piece in pieces)
        # Harmony drops what is only a header, and what separates calls is no text either.
        if format != "harmony" and repeated != "; ":
            assert out >= place + 100 - limit - 100


def test_a_megabyte_in_one_piece() -> None:
    text = '<tool_call>{"name": "get_time", "arguments": {}}</tool_' * 20_000 + "."
    parser = parser_for("hermes", TOOLS)
    scanner = scanner_of(parser)
    taken: list[int] = []
    run = scanner._run
    scanner._run = lambda part: (taken.append(len(part)), run(part))[1]  # type: ignore[method-assign]
    assert feed(parser, text, len(text)) == len(text)
    assert scanner.steps <= 1.5 * len(text)
    # What is copied at each place where a call breaks off is no more than a block.
    assert max(taken) <= 1024


def test_nesting_is_bounded() -> None:
    deep = '{"a":' * 60 + "1" + "}" * 60
    deeper = '{"a":' * 65 + "1" + "}" * 65
    call = '<tool_call>{"name": "get_time", "arguments": %s}</tool_call>'
    parser = parser_for("hermes", TOOLS)
    parser.push(call % deep)
    assert parser.call_count == 1
    parser.push(call % deeper)
    assert parser.call_count == 1
