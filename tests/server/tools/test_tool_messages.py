"""Messages as requests have them, in the templates that there are and in ones like those that
models bring."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.model_texts import calls_of, parse, tool
from tidemill.server.tools import TemplateTraits, detect, detect_reasoning, for_template
from tidemill.text import ChatTemplate
from tidemill.text.builtin_templates import BUILTIN_TEMPLATES

TOOLS = [tool("get_time", zone={"type": "string"})]
CALL = {
    "id": "call_0123456789abcdef",
    "type": "function",
    "function": {"name": "get_time", "arguments": '{"zone": "Zürich", "n": [1, null]}'},
}
CHAT: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief.", "name": None},
    {"role": "user", "content": [{"type": "text", "text": t} for t in ("What", "time?")]},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
    {"role": "tool", "tool_call_id": CALL["id"], "content": "12:00"},
    {"role": "assistant", "content": "Noon.", "tool_calls": None},
    {"role": "user", "content": "Thanks."},
]  # fmt: skip

# Short ones in the way of the models' own: what they do with calls is what differs.
_HEAD = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>"
)
_CALLS = "{% if m.tool_calls is defined %}{% for c in m.tool_calls %}"
_TAIL = "{% endfor %}{% else %}{{ m.content + '\\n' }}{% endif %}{% endfor %}"
WITH_DICTS = (
    _HEAD + _CALLS + '<tool_call>{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}</tool_call>" + _TAIL
)
WITH_TAGS = (
    _HEAD + _CALLS + "<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n"
    "{% endfor %}</function>\n</tool_call>" + _TAIL
)
WITH_TEXTS = (
    _HEAD + _CALLS + "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + c.type + '<｜tool▁sep｜>'"
    " + c.function.name + '\\n```json\\n' + c.function.arguments"
    " + '\\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>' }}" + _TAIL
)
WITH_SHORT_IDS = (
    _HEAD + _CALLS + "{% if c.id | length != 9 %}{{ raise_exception('ids of nine') }}{% endif %}"
    '[TOOL_CALLS] [{"name": "{{ c.function.name }}", "arguments": '
    '{{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}]' + _TAIL
)
WITH_CONTENT = (
    _HEAD + "{{ m.content + '\\n' }}" + _CALLS + '{"name": "{{ c.function.name }}", "parameters": '
    "{{ c.function.arguments | tojson }}}<|python_tag|>{% endfor %}{% endif %}{% endfor %}"
)


def test_what_templates_want_is_found_out() -> None:
    def of(source: str) -> TemplateTraits:
        return TemplateTraits.of(ChatTemplate(source))

    assert of(WITH_DICTS) == TemplateTraits("hermes", None, True, True, True, False)
    assert of(WITH_TAGS) == TemplateTraits("qwen3_coder", None, True, True, True, False)
    assert of(WITH_TEXTS) == TemplateTraits(
        "deepseek", None, True, True, True, False, text_arguments=True
    )
    assert of(WITH_SHORT_IDS) == TemplateTraits(
        "mistral", None, True, True, True, False, short_ids=True
    )
    assert of(WITH_CONTENT) == TemplateTraits(
        "llama3", None, True, True, True, False, null_content=False
    )


@pytest.mark.parametrize(
    "source", [WITH_DICTS, WITH_TAGS, WITH_TEXTS, WITH_SHORT_IDS, WITH_CONTENT]
)
def test_what_a_template_writes_is_read_again(source: str) -> None:
    template = ChatTemplate(source)
    traits = TemplateTraits.of(template)
    messages, tools = for_template(traits, CHAT, TOOLS)
    assert tools == TOOLS
    assert messages[3]["name"] == "get_time"
    assert messages[3]["tool_call_id"] == messages[2]["tool_calls"][0]["id"]
    assert [m["role"] for m in messages][:2] == ["system", "user"]
    before = template.render(messages[:2], tools=tools)
    text = template.render(messages[:3], tools=tools)[len(before + "<|assistant|>") :].lstrip("\n")
    message = parse(
        traits.format, text, [tool("get_time", zone={"type": "string"}, n={"type": "array"})]
    )
    assert message.content in ("", "<|python_tag|>")
    if source == WITH_TAGS:  # written as Python does
        assert json.loads(message.calls[0].arguments)["zone"] == "Zürich"
    else:
        assert calls_of(message) == [("get_time", {"zone": "Zürich", "n": [1, None]})]
    assert "12:00" in template.render(messages, tools=tools)


@pytest.mark.parametrize("name", sorted(BUILTIN_TEMPLATES))
def test_built_in_templates_get_tools_and_calls_as_text(name: str) -> None:
    template = ChatTemplate(BUILTIN_TEMPLATES[name])
    traits = TemplateTraits.of(template)
    assert (traits.format, traits.calls, traits.tools) == ("hermes", False, False)
    messages, tools = for_template(traits, CHAT, TOOLS)
    assert tools is None
    prompt = template.render(messages, tools=tools)
    assert json.dumps(TOOLS[0], ensure_ascii=False) in prompt
    assert "Be brief." in prompt
    assert "<tool_response>\n12:00\n</tool_response>" in prompt
    call = messages[2]["content"]
    assert call in prompt
    assert calls_of(parse(traits.format, call)) == [
        ("get_time", {"zone": "Zürich", "n": [1, None]})
    ]


def test_tools_go_into_the_first_message_where_there_is_no_system_message() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    )
    traits = TemplateTraits.of(ChatTemplate(source))
    messages, _ = for_template(traits, [{"role": "user", "content": "Hi."}], TOOLS)
    assert [m["role"] for m in messages] == ["user"]
    assert messages[0]["content"].endswith("\n\nHi.")
    assert "get_time" in messages[0]["content"]


def test_answers_of_tools_are_put_together_for_templates_that_take_turns() -> None:
    traits = TemplateTraits.of(ChatTemplate(BUILTIN_TEMPLATES["gemma"]))
    calls = [{**CALL, "id": "a"}, {**CALL, "id": "b"}]
    messages, _ = for_template(
        traits,
        [
            {"role": "user", "content": "Q"},
            {"role": "assistant", "content": "Let me see.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
            {"role": "user", "content": "Well?"},
        ],
    )
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"].startswith("Let me see.\n<tool_call>")
    assert messages[2]["content"] == (
        "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>\nWell?"
    )


def test_messages_are_not_changed_in_place() -> None:
    before = json.dumps(CHAT)
    for source in (WITH_DICTS, WITH_TEXTS, WITH_SHORT_IDS, BUILTIN_TEMPLATES["llama2"]):
        for_template(TemplateTraits.of(ChatTemplate(source)), CHAT, TOOLS)
    assert json.dumps(CHAT) == before


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [("", {}), (None, {}), ({"a": 1}, {"a": 1}), ('{"a": 1}', {"a": 1})],
)
def test_arguments_in_other_forms(arguments: object, wanted: object) -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": arguments}}
    chat = [{"role": "user", "content": "Q"}, {"role": "assistant", "tool_calls": [call]}]
    for source in (WITH_DICTS, WITH_TEXTS):
        messages, _ = for_template(TemplateTraits.of(ChatTemplate(source)), chat)
        entry = messages[1]["tool_calls"][0]
        got = entry["function"]["arguments"]
        assert (json.loads(got) if source == WITH_TEXTS else got) == wanted
        assert entry["type"] == "function"


@pytest.mark.parametrize(
    ("calls", "where"),
    [
        ("x", r"messages\[1\].tool_calls is a list"),
        ([1], r"messages\[1\].tool_calls\[0\] has no function"),
        ([{"function": {}}], r"tool_calls\[0\] has no function with a name"),
        ([{"function": {"name": "f", "arguments": "{"}}], r"arguments is not valid JSON"),
        (
            [{"function": {"name": "f", "arguments": "[1]"}}],
            r"arguments is not the JSON text of an",
        ),
        ([{"function": {"name": "f", "arguments": '{"a": NaN}'}}], "NaN"),
        ([{"function": {"name": "f", "arguments": "[" * 100_000}}], "arguments is not valid JSON"),
        ([{"function": {"name": "f", "arguments": 1}}], "arguments is not the JSON text of an"),
    ],
)
def test_calls_that_are_none_are_refused(calls: object, where: str) -> None:
    chat = [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "", "tool_calls": calls},
    ]
    traits = TemplateTraits.of(ChatTemplate(WITH_DICTS))
    with pytest.raises(ValueError, match=where):
        for_template(traits, chat)


@pytest.mark.parametrize(
    ("source", "format", "reasoning"),
    [
        (WITH_DICTS, "hermes", None),
        ("<tool_call>\n<function=x>\n<parameter=y>", "qwen3_coder", None),
        (WITH_TEXTS, "deepseek", None),
        (WITH_SHORT_IDS, "mistral", None),
        ("[TOOL_CALLS]' + name + '[ARGS] [THINK]", "mistral", "magistral"),
        ("{{ '<|python_tag|>' }}", "llama3", None),
        ("<|start_header_id|> {{- '\"parameters\": ' }}", "llama3", None),
        ("<|python_start|>[", "pythonic", None),
        ("<|tool_call_start|>[", "pythonic", None),
        ("<|start|>assistant<|channel|>final<|message|>", "harmony", None),
        ("{{ content.split('</think>')[-1] }}", None, "think"),
        ("<tool_call>{{ name }}<arg_key>k</arg_key> \"name\"", None, None),
        ("<|python_tag|> <function=f>{}</function>", None, None),
        *((source, None, None) for source in BUILTIN_TEMPLATES.values()),
    ],
)  # fmt: skip
def test_formats_are_known_by_their_markers(
    source: str, format: str | None, reasoning: str | None
) -> None:
    assert detect(source) == format
    assert detect_reasoning(source) == reasoning
