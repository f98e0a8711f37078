"""Calls as DeepSeek's models write them, between <｜tool▁calls▁begin｜> and <｜tool▁calls▁end｜>.

Sources: the chat templates of deepseek-ai/DeepSeek-R1 (and its distilled models, and V3),

    <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
    ```json
    {...}
    ```<｜tool▁call▁end｜>

and of deepseek-ai/DeepSeek-V3.1: <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>.
Both are read by either model's parser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.server.tools.json_call import read_arguments
from tidemill.server.tools.scanner import Calls
from tidemill.server.tools.steps import SPACE, NotACall, Steps, closing, either, expect, skip_space

_CALL = "<｜tool▁call▁begin｜>"


class DeepSeek:
    markers: Sequence[str] = ("<｜tool▁calls▁begin｜>",)
    anchors: Mapping[str, str] = {}

    def read(self, calls: Calls, marker: str) -> Steps[None]:
        char = yield from skip_space()
        yield from expect(_CALL, char)
        while True:
            yield from _read_call(calls)
            # The next call, or the end of all.
            char = yield from skip_space()
            if (yield from either((_CALL, "<｜tool▁calls▁end｜>"), char, or_end=True)) != _CALL:
                return


def _read_call(calls: Calls) -> Steps[None]:
    name = (yield from calls.name("<", also=("function",)))[:-1]
    yield from expect("<｜tool▁sep｜>", "<")
    char = yield
    if char in SPACE or char == "{":
        if char != "{":
            char = yield from skip_space()
        if name not in calls.tools:
            raise NotACall(char)
        call = yield from read_arguments(name, char)
        char = yield from skip_space()
    else:
        if name != "function":
            raise NotACall(char)
        name = (yield from calls.name("\n", char))[:-1]
        char = yield from skip_space()
        yield from expect("```json", char)
        char = yield from skip_space()
        call = yield from read_arguments(name, char)
        char = yield from skip_space()
        char = (yield from skip_space()) if (yield from closing("```", char)) else ""
    yield from closing("<｜tool▁call▁end｜>", char)
    call.report(calls)
