"""What models write when they call tools, in each format, and how to write more of it.

The texts follow the model cards and chat templates that the formats' files name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tidemill.server.tools import Message, Piece, assemble, parser_for

Call = tuple[str, dict[str, Any]]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool(
        "get_weather",
        city={"type": "string"},
        days={"type": "integer"},
        exact={"type": "boolean"},
        near={"type": "array"},
        options={"anyOf": [{"type": "object"}, {"type": "null"}]},
    ),
    tool("get_time", zone={"type": "string"}),
    tool("write_file", path={"type": "string"}, text={"type": "string"}),
]


class Recorded(NamedTuple):
    format: str
    text: str
    calls: list[Call]
    content: str = ""
    reasoning: str = ""
    options: Mapping[str, Any] = {}


PARIS = ("get_weather", {"city": "Paris", "days": 3})
ZONE = ("get_time", {"zone": "UTC"})
NOW = ("get_time", {})

RECORDED = [
    Recorded(
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n'
        "</tool_call>",
        [PARIS],
    ),
    Recorded(
        "hermes",
        "I will look.\n<tool_call>\n"
        '{"arguments": {"zone": "UTC"}, "name": "get_time"}\n</tool_call>'
        '\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>\n',
        [ZONE, NOW],
        "I will look.",
    ),
    Recorded(
        "hermes",
        '<tool_call>{"name": "write_file", "arguments": {"path": "a", "text": '
        '"</tool_call> {\\"name\\": \\"get_time\\"} <tool_call>"}}</tool_call> Done.',
        [("write_file", {"path": "a", "text": '</tool_call> {"name": "get_time"} <tool_call>'})],
        " Done.",
    ),
    # The closing tag is not there: at the end of the text, before the next call, at neither.
    Recorded(
        "hermes",
        '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n<tool_call>\n'
        '{"name": "get_time", "arguments": {}}\n',
        [ZONE, NOW],
    ),
    Recorded(
        "hermes",
        '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n'
        '{"name": "get_time", "arguments": null}\n</tool_call>',
        [ZONE, NOW],
    ),
    Recorded(
        "hermes",
        '<tool_call>{"name": "get_time", "arguments": {}} never mind',
        [],
        '<tool_call>{"name": "get_time", "arguments": {}} never mind',
    ),
    # Arguments as the text of an object, and an unknown tool.
    Recorded(
        "hermes",
        '<tool_call>{"name": "get_time", "arguments": "{\\"zone\\": \\"UTC\\"}"}</tool_call>\n'
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        [ZONE],
        '\n<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
    ),
    Recorded(
        "hermes",
        "<think>\nThe user wants\n<tool_call>...\n</think>\n\n<tool_call>\n"
        '{"name": "get_time", "arguments": {}}\n</tool_call>',
        [NOW],
        "",
        "The user wants\n<tool_call>...",
        {"reasoning": "think"},
    ),
    Recorded(
        "qwen3_coder",
        "Let me see.\n\n<tool_call>\n<function=get_weather>\n"
        "<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n"
        '<parameter=near>\n["a", {"b": 1}]\n</parameter>\n<parameter=options>\nNone\n</parameter>\n'
        "</function>\n</tool_call>",
        [
            (
                "get_weather",
                {
                    "city": "Paris",
                    "days": 3,
                    "exact": True,
                    "near": ["a", {"b": 1}],
                    "options": None,
                },
            )
        ],
        "Let me see.",
    ),
    Recorded(
        "qwen3_coder",
        "<tool_call>\n<function=write_file>\n<parameter=path>\n/tmp/a.html\n</parameter>\n"
        '<parameter=text>\n<p class="x">\n  1 < 2\n</p>\n\n</parameter>\n</function>\n'
        "</tool_call>\n"
        "<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
        [("write_file", {"path": "/tmp/a.html", "text": '<p class="x">\n  1 < 2\n</p>\n'}), NOW],
    ),
    Recorded(
        "qwen3_coder",
        "<function=get_time>\n<parameter=zone>UTC</parameter>\n</function>",
        [ZONE],
    ),
    Recorded(
        "llama3",
        '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}',
        [PARIS],
    ),
    Recorded(
        "llama3",
        '<|python_tag|>{"type": "function", "name": "get_time", "parameters": {"zone": "UTC"}}; '
        '{"name": "get_time", "parameters": {}};',
        [ZONE, NOW],
    ),
    Recorded(
        "llama3",
        '{"name": "get_time", "parameters": {"zone": "UTC"}};<|python_tag|>'
        '{"name": "get_time", "parameters": {}} That is all.',
        [ZONE, NOW],
        " That is all.",
    ),
    Recorded("llama3", '{"city": "Paris"}', [], '{"city": "Paris"}'),
    Recorded("llama3", "<|python_tag|>print(1)", [], "<|python_tag|>print(1)"),
    Recorded(
        "mistral",
        'Sure.[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}, '
        '"id": "a1b2c3d4e"}, {"name": "get_time", "arguments": {}}]',
        [PARIS, NOW],
        "Sure.",
    ),
    Recorded(
        "mistral",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 3}[TOOL_CALLS]get_time[ARGS]{}',
        [PARIS, NOW],
    ),
    Recorded(
        "mistral",
        '[THINK]Hm.[/THINK][TOOL_CALLS]get_time[CALL_ID]a1b2c3d4e[ARGS]{"zone": "UTC"}',
        [ZONE],
        "",
        "Hm.",
        {"reasoning": "magistral"},
    ),
    Recorded("mistral", '[TOOL_CALLS]get_time{"zone": "UTC"}', [ZONE]),
    Recorded("pythonic", "[get_weather(city='Paris', days=3), get_time()]", [PARIS, NOW]),
    Recorded(
        "pythonic",
        'Well.\n```tool_code\nget_time(zone="UTC")\nget_time()\n```\nSo.',
        [ZONE, NOW],
        "Well.\nSo.",
    ),
    Recorded(
        "pythonic",
        '<|python_start|>[get_weather(city="Paris", days=3)]<|python_end|>',
        [PARIS],
    ),
    Recorded(
        "pythonic",
        '<|tool_call_start|>[get_time(zone="UTC")]<|tool_call_end|>Looking.',
        [ZONE],
        "Looking.",
    ),
    Recorded("pythonic", '<|python_tag|>[get_time(zone="UTC")]', [ZONE]),
    Recorded("pythonic", "[1] and [get_time()]", [], "[1] and [get_time()]"),
    Recorded("pythonic", "[get_time(), rm()]", [], "[get_time(), rm()]"),
    Recorded(
        "deepseek",
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
        'get_weather\n```json\n{"city": "Paris", "days": 3}\n```<｜tool▁call▁end｜>\n'
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [PARIS, NOW],
        "I look.",
    ),
    Recorded(
        "deepseek",
        "Hm.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>"
        '{"zone": "UTC"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [ZONE, NOW],
        "",
        "Hm.",
        {"reasoning": "think", "in_reasoning": True},
    ),
    Recorded(
        "harmony",
        "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>"
        "commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Paris", "days": 3}<|call|>',
        [PARIS],
        "",
        "Need the weather.",
    ),
    Recorded(
        "harmony",
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>"
        "2 + 2 = 4.\n<|return|>",
        [],
        "2 + 2 = 4.\n",
        "Easy.",
    ),
    Recorded(
        "harmony",
        ' to=functions.get_time<|channel|>commentary json<|message|>{"zone": "UTC"}',
        [ZONE],
    ),
    Recorded("harmony", "Hello <|world|>", [], "Hello <|world|>"),
    Recorded("harmony", "<|channel|>final<|message|>a<|end|>\nb c", [], "ab c"),
    Recorded(
        "qwen3_coder",
        "<tool_call><function=get_time></function><tool_call><function=get_time></function>",
        [NOW, NOW],
    ),
]


def cut(text: str, places: Iterable[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def stream(
    format: str | None, chunks: Iterable[str], tools: Sequence[Any] = TOOLS, **options: Any
) -> list[Piece]:
    """All pieces of a text that comes in ``chunks``; ids count from id0."""
    ids = map("id{}".format, itertools.count())
    parser = parser_for(format, tools, new_id=lambda: next(ids), **options)
    pieces = [piece for chunk in chunks for piece in parser.push(chunk)]
    return pieces + parser.finish()


def parse(format: str | None, text: str, tools: Sequence[Any] = TOOLS, **options: Any) -> Message:
    return assemble(stream(format, [text], tools, **options))


def calls_of(message: Message) -> list[Call]:
    return [(call.name, json.loads(call.arguments)) for call in message.calls]


# ---- writing calls, as the templates do


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _qwen3_coder(calls: Sequence[Call]) -> str:
    text = []
    for name, arguments in calls:
        text.append(f"<tool_call>\n<function={name}>\n")
        for key, value in arguments.items():
            written = value if isinstance(value, str) else _dumps(value)
            text.append(f"<parameter={key}>\n{written}\n</parameter>\n")
        text.append("</function>\n</tool_call>\n")
    return "".join(text)


def _pythonic(calls: Sequence[Call]) -> str:
    each = (f"{n}({', '.join(f'{k}={v!r}' for k, v in a.items())})" for n, a in calls)
    return f"[{', '.join(each)}]"


def _deepseek(calls: Sequence[Call]) -> str:
    each = (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{_dumps(a)}\n```<｜tool▁call▁end｜>"
        for n, a in calls
    )
    return "<｜tool▁calls▁begin｜>" + "\n".join(each) + "<｜tool▁calls▁end｜>"


def _deepseek_v31(calls: Sequence[Call]) -> str:
    each = (
        f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{_dumps(a)}<｜tool▁call▁end｜>" for n, a in calls
    )
    return "<｜tool▁calls▁begin｜>" + "".join(each) + "<｜tool▁calls▁end｜>"


def _harmony(calls: Sequence[Call]) -> str:
    return "".join(
        f"<|start|>assistant<|channel|>commentary to=functions.{n} <|constrain|>json"
        f"<|message|>{_dumps(a)}<|call|>"
        for n, a in calls
    )


WRITERS: dict[str, tuple[str, Callable[[Sequence[Call]], str]]] = {
    "hermes": (
        "hermes",
        lambda calls: "\n".join(
            f"<tool_call>\n{_dumps({'name': n, 'arguments': a})}\n</tool_call>" for n, a in calls
        ),
    ),
    "qwen3_coder": ("qwen3_coder", _qwen3_coder),
    "llama3": (
        "llama3",
        lambda calls: (
            "<|python_tag|>" + "; ".join(_dumps({"name": n, "parameters": a}) for n, a in calls)
        ),
    ),
    "mistral": (
        "mistral",
        lambda calls: "[TOOL_CALLS] " + _dumps([{"name": n, "arguments": a} for n, a in calls]),
    ),
    "mistral v13": (
        "mistral",
        lambda calls: "".join(f"[TOOL_CALLS]{n}[ARGS]{_dumps(a)}" for n, a in calls),
    ),
    "pythonic": ("pythonic", lambda calls: "\n" + _pythonic(calls)),
    "lfm2": (
        "pythonic",
        lambda calls: f"<|tool_call_start|>{_pythonic(calls)}<|tool_call_end|>",
    ),
    "deepseek": ("deepseek", _deepseek),
    "deepseek v3.1": ("deepseek", _deepseek_v31),
}
