"""Calls written as Python: [get_weather(city="Paris", days=3), get_time()]

Sources: "Function calling with Gemma" (https://ai.google.dev/gemma/docs/capabilities/
function-calling) and meta-llama/llama-models, models/llama3_2/text_prompt_format.md, for the list;
the same with <|python_tag|> before it there, between <|python_start|> and <|python_end|> in Llama
4's, and between <|tool_call_start|> and <|tool_call_end|> in LiquidAI's LFM2 (its model card).
Gemma also writes calls in a code block ```tool_code, in a list or one on each line.

A list is a call at the start of a line only. Arguments are keywords with Python literals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.server.tools.scanner import Calls
from tidemill.server.tools.steps import NotACall, Steps, closing, skip_space
from tidemill.server.tools.values import ValueReader, read_value

_CLOSERS = {
    "```tool_code": "```",
    "<|python_start|>": "<|python_end|>",
    "<|tool_call_start|>": "<|tool_call_end|>",
    "<|python_tag|>": "",
}


class Pythonic:
    markers: Sequence[str] = ("[", *_CLOSERS)
    anchors: Mapping[str, str] = {"[": "line", "```tool_code": "line"}

    def read(self, calls: Calls, marker: str) -> Steps[None]:
        found: list[tuple[str, str]] = []
        if marker == "[":
            char = yield from skip_space()
            yield from _read_list(calls, char, found)
        else:
            char = yield from skip_space()
            if char == "[":
                char = yield from skip_space()
                yield from _read_list(calls, char, found)
                if closer := _CLOSERS[marker]:
                    char = yield from skip_space()
                    yield from closing(closer, char)
            elif closer := _CLOSERS[marker]:
                while char and char != closer[0]:
                    yield from _read_call(calls, char, found)
                    char = yield from skip_space()
                    if char == ";":
                        char = yield from skip_space()
                if not found:
                    raise NotACall(char)
                yield from closing(closer, char)
            else:
                raise NotACall(char)
        for name, arguments in found:
            calls.add(name, arguments)


def _read_list(calls: Calls, char: str, found: list[tuple[str, str]]) -> Steps[None]:
    """Read calls, the first of which begins with ``char``, up to the closing bracket."""
    while True:
        yield from _read_call(calls, char, found)
        char = yield from skip_space()
        if char == "]":
            return
        if char != ",":
            raise NotACall(char)
        char = yield from skip_space()


def _read_call(calls: Calls, char: str, found: list[tuple[str, str]]) -> Steps[None]:
    name = (yield from calls.name("(", char))[:-1]
    char = yield
    found.append((name, (yield from read_value(ValueReader.call_arguments(), char))))
