"""Calls as Qwen3-Coder and Qwen3.5 write them, in tags of their own.

Source: the chat template of Qwen/Qwen3-Coder-30B-A3B-Instruct:

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value, which may have several lines
    </parameter>
    </function>
    </tool_call>

The template writes strings as they are and other values as JSON (or as Python's str() of them), so
what a value is comes from the tool's JSON schema; without one it is a string. The outer tags are
often left out by the models, and need not be there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.server.tools.json_text import is_json, is_number
from tidemill.server.tools.scanner import Calls
from tidemill.server.tools.steps import NotACall, Steps, either, expect, read_until, skip_space

_MAX_KEY = 128


class Qwen3Coder:
    markers: Sequence[str] = ("<tool_call>", "<function=")
    anchors: Mapping[str, str] = {}

    def read(self, calls: Calls, marker: str) -> Steps[None]:
        wrapped = marker == "<tool_call>"
        if wrapped:
            char = yield from skip_space()
            yield from expect("<function=", char)
        while True:
            name = (yield from calls.name(">"))[:-1]
            arguments = yield from _read_parameters(calls.tools.properties(name))
            if not wrapped:
                calls.add(name, arguments)
                return
            char = yield from skip_space()
            tags = ("</tool_call>", "<tool_call>", "<function=")
            tag = yield from either(tags, char, or_end=True)
            calls.add(name, arguments)
            if tag in ("", "</tool_call>"):
                return
            if tag == "<tool_call>":
                char = yield from skip_space()
                yield from expect("<function=", char)


def _read_parameters(properties: Mapping[str, Any]) -> Steps[str]:
    """The arguments' JSON text, read up to </function>."""
    parts: dict[str, str] = {}
    while True:
        char = yield from skip_space()
        if (yield from either(("</function>", "<parameter="), char)) == "</function>":
            break
        key = ""
        while (char := (yield)) != ">":
            key += char
            if not char or char in "<\n" or len(key) > _MAX_KEY:
                raise NotACall(char)
        if not key or key in parts:
            raise NotACall
        text = yield from read_until("</parameter>")
        parts[key] = to_json(text.removeprefix("\n").removesuffix("\n"), properties.get(key))
    pairs = (f"{json.dumps(k, ensure_ascii=False)}: {v}" for k, v in parts.items())
    return "{" + ", ".join(pairs) + "}"


def to_json(text: str, schema: Any) -> str:
    """The JSON text of a value that was written as ``text``, as its schema wants it.

    A text that is not of the type which the schema has stays a string: what is wrong with it is for
    the tool to tell the model.
    """
    types = _types(schema, 4)
    bare = text.strip()
    if "null" in types and bare.lower() in ("null", "none"):
        return "null"
    if "boolean" in types and bare.lower() in ("true", "false"):
        return bare.lower()
    if types & {"number", "integer"} and is_number(bare):
        return bare
    if ("object" in types and is_json(bare, "{")) or ("array" in types and is_json(bare, "[")):
        return bare
    return json.dumps(text, ensure_ascii=False)


def _types(schema: Any, depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or depth == 0:
        return set()
    types: set[str] = set()
    given = schema.get("type")
    for entry in given if isinstance(given, list) else [given]:
        if isinstance(entry, str):
            types.add(entry)
    for word in ("anyOf", "oneOf"):
        choices = schema.get(word)
        for choice in choices if isinstance(choices, list) else ():
            types |= _types(choice, depth - 1)
    return types
