"""Calls as Llama 3.1, 3.2 and 3.3 write them: {"name": ..., "parameters": {...}}

Sources: the chat templates of meta-llama/Llama-3.1-8B-Instruct and Llama-3.3-70B-Instruct, which
ask for 'Respond in the format {"name": function name, "parameters": dictionary of argument name
and its value}' and write <|python_tag|> before calls of built-in tools. Several calls are
separated by ";" (vllm-project/vllm, llama_tool_parser; ai-dynamo/dynamo pull request 9536), which
models vary: spaces and line breaks are allowed around it, or instead.

The object is a call at the start of the message, or anywhere after <|python_tag|>. Nothing closes
it, so it is one as soon as it is complete. Python code after the tag is content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.server.tools.json_call import read_call
from tidemill.server.tools.scanner import Calls
from tidemill.server.tools.steps import SPACE, NotACall, Steps, skip_space

_MAX_SPACES = 64
_TAG = "<|python_tag|>"


class Llama3:
    markers: Sequence[str] = (_TAG, "{")
    anchors: Mapping[str, str] = {"{": "message"}

    def read(self, calls: Calls, marker: str) -> Steps[None]:
        if marker == _TAG:
            char = yield from skip_space()
            if char != "{":
                raise NotACall(char)
        while True:
            call = yield from read_call(calls)
            call.report(calls)
            spaces = ""
            while (char := (yield)) != "{":
                spaces += char
                if char == ";":
                    calls.on_commit()
                    spaces = ""
                elif char not in SPACE or len(spaces) > _MAX_SPACES:
                    raise NotACall(spaces)  # not another one, but content or a tag
