"""Calls as Hermes and Qwen 2.5/3 write them: <tool_call>{"name": ..., "arguments": ...}</tool_call>

Sources: the model card of NousResearch/Hermes-2-Pro-Llama-3-8B ("Prompt Format for Function
Calling") and the chat template of Qwen/Qwen3-8B, which write each call as

    <tool_call>
    {"name": <function-name>, "arguments": <args-json-object>}
    </tool_call>

Some models put several objects into one pair of tags, or open the next call without closing the
last; both are read. A call is complete without the closing tag only at the end of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.server.tools.json_call import read_call
from tidemill.server.tools.scanner import Calls
from tidemill.server.tools.steps import NotACall, Steps, either, skip_space


class Hermes:
    markers: Sequence[str] = ("<tool_call>",)
    anchors: Mapping[str, str] = {}

    def read(self, calls: Calls, marker: str) -> Steps[None]:
        char = yield from skip_space()
        while True:
            if char != "{":
                raise NotACall(char)
            call = yield from read_call(calls)
            char = yield from skip_space()
            if char == "{":
                call.report(calls)
                continue
            tag = yield from either(("</tool_call>", "<tool_call>"), char, or_end=True)
            call.report(calls)
            if tag != "<tool_call>":
                return
            char = yield from skip_space()
