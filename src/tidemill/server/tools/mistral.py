"""Calls as Mistral's models write them, after [TOOL_CALLS].

Sources: the chat template of mistralai/Mistral-Small-3.1-24B-Instruct-2503 for the list,

    [TOOL_CALLS] [{"name": ..., "arguments": {...}, "id": "9 characters"}, ...]

and mistralai/mistral-common (its tokenizer versions 11 and 13, as the chat templates of
Magistral-Small-2509 and Devstral write them) for one call after each marker,

    [TOOL_CALLS]name[CALL_ID]id[ARGS]{...}      or      [TOOL_CALLS]name[ARGS]{...}

Without its control tokens the latter is name{...}, which is read too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.server.tools.json_call import read_arguments, read_call
from tidemill.server.tools.scanner import Calls
from tidemill.server.tools.steps import SPACE, NotACall, Steps, either, expect, skip_space

_MAX_ID = 64


class Mistral:
    markers: Sequence[str] = ("[TOOL_CALLS]",)
    anchors: Mapping[str, str] = {}

    def read(self, calls: Calls, marker: str) -> Steps[None]:
        char = yield from skip_space()
        if char == "[":
            yield from _read_list(calls)
        else:
            yield from _read_named(calls, char)


def _read_list(calls: Calls) -> Steps[None]:
    char = yield
    if char not in SPACE and char != "{":
        raise NotACall("[" + char)  # the bracket may begin the next marker
    while True:
        if char in SPACE:
            char = yield from skip_space()
        if char != "{":
            raise NotACall(char)
        call = yield from read_call(calls)
        char = yield from skip_space()
        if char not in ("", ",", "]"):
            raise NotACall(char)
        call.report(calls)
        if char != ",":
            return
        char = yield


def _read_named(calls: Calls, first: str) -> Steps[None]:
    text = yield from calls.name("[{ \n", first)
    name, char = text[:-1], text[-1]
    id = None
    if char == "[":
        if (yield from either(("[ARGS]", "[CALL_ID]"), char)) == "[CALL_ID]":
            id = ""
            while (char := (yield)) != "[":
                id += char
                if not char or not char.isalnum() or len(id) > _MAX_ID:
                    raise NotACall(char)
            yield from expect("[ARGS]", char)
        char = yield from skip_space()
    elif char != "{":
        char = yield from skip_space()
    call = yield from read_arguments(name, char, id)
    call.report(calls)
