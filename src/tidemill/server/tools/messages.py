"""From messages and tools as OpenAI's API has them to what chat templates take.

Templates were written against Hugging Face transformers, where a call's arguments are a dict and
what is missing is missing; requests have JSON texts and nulls. Beyond that, templates differ, and
do not say how: ``TemplateTraits.of`` finds out by rendering a short conversation in several ways.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tidemill.llm.prompts import as_messages, as_tools
from tidemill.records import dataclass
from tidemill.server.tools.detect import detect, detect_reasoning
from tidemill.text import ChatTemplate
from tidemill.text.errors import ChatTemplateError

Message = Mapping[str, Any]

_NAME = "probe_tool"
_KEY = "probe_key"
_RESULT = "probe_result"
_LONG_ID = "call_0123456789abcdef01234567"
_SHORT_ID = "a1B2c3D4e"
# How to call a tool, for templates that do not say; the second is for those that write calls so.
_PLAIN = "hermes"
_FORMS = {
    _PLAIN: '<tool_call>\n{"name": "<name>", "arguments": {<arguments>}}\n</tool_call>',
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜><name>\n"
    "```json\n{<arguments>}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
}
_VALUE = "probe_value"
_ARGUMENTS = {_KEY: _VALUE}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}},
    },
}


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """How a template wants tool calls.

    ``format`` is what its model's calls are to be read by (``parser.FORMATS``), None if that is
    unknown; ``reasoning`` likewise (``reasoning.REASONING``).
    """

    format: str | None
    reasoning: str | None
    calls: bool
    """It writes calls and the tools' answers."""
    tools: bool
    """It writes the tools that there are."""
    system: bool
    developer: bool
    """It knows messages of that role."""
    text_arguments: bool = False
    """A call's arguments are to be JSON text, not a dict."""
    null_content: bool = True
    """A message with calls and no text is to have the content None, not ""."""
    short_ids: bool = False
    """The calls' ids are to be nine letters and digits."""

    @classmethod
    def of(cls, template: ChatTemplate) -> TemplateTraits:
        """Found out by rendering; a few milliseconds."""
        user = {"role": "user", "content": "Hi."}
        tools = _NAME in _render(template, [user])
        system = _VALUE in _render(template, [{"role": "system", "content": _VALUE}, user])
        format = detect(template.source)
        if not tools and format not in _FORMS:
            format = _PLAIN
        head = (format, detect_reasoning(template.source))
        roles = (system, "developer" in template.source)
        ways = itertools.product((False, True), (False, True), (True, False))
        for text_arguments, short_ids, null_content in ways:
            traits = cls(*head, True, tools, *roles, text_arguments, null_content, short_ids)
            if _understands(_render(template, _probe(traits))):
                return traits
        return cls(_PLAIN if not tools else format, head[1], False, tools, *roles)


class TemplateInput(NamedTuple):
    """What ``ChatTemplate.render`` takes."""

    messages: list[dict[str, Any]]
    tools: list[Mapping[str, Any]] | None


def for_template(
    traits: TemplateTraits,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> TemplateInput:
    """``messages`` and ``tools`` of a request in the form that a template wants.

    What a template does not write it gets as text: the tools in the system message (or, where there
    is none, the first one), calls and answers in the form of "hermes". ``traits.format`` is what to
    parse by in any case. Raises ValueError that says where a message is not as it should be.
    """
    given = as_tools(tools)
    prepared = _prepare(traits, as_messages(messages))
    if not traits.calls:
        prepared = _calls_as_text(prepared)
    if given and not traits.tools:
        prepared = _with_tools_as_text(prepared, given, traits)
        given = None
    return TemplateInput(prepared, given)


def _prepare(traits: TemplateTraits, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names: dict[str, str] = {}  # of the calls, by their ids
    prepared = []
    for i, message in enumerate(messages):
        # Templates ask whether there is a key at all; what is null or empty is as good as none.
        keep = {
            key: value
            for key, value in message.items()
            if value is not None and not (key == "tool_calls" and not value)
        }
        role = keep["role"]
        if role == "developer" and not traits.developer:
            keep["role"] = "system"
        if "reasoning" in keep:
            keep.setdefault("reasoning_content", keep.pop("reasoning"))
        if "tool_calls" in keep:
            keep["tool_calls"] = _calls(traits, keep["tool_calls"], f"messages[{i}].tool_calls")
            names |= {c["id"]: c["function"]["name"] for c in keep["tool_calls"] if "id" in c}
            if not keep.get("content"):
                keep["content"] = None if traits.null_content else ""
        elif role == "tool" and isinstance(id := keep.get("tool_call_id"), str):
            keep["tool_call_id"] = id = _id(traits, id)
            if id in names:
                keep.setdefault("name", names[id])
        prepared.append(keep)
    return prepared


def _calls(traits: TemplateTraits, calls: object, where: str) -> list[dict[str, Any]]:
    if isinstance(calls, str) or not isinstance(calls, Sequence):
        raise ValueError(f"{where} is a list of calls")
    prepared = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError(f"{where}[{i}] has no function with a name")
        arguments = _object(function.get("arguments"), f"{where}[{i}].function.arguments")
        entry = {**call, "type": call.get("type") or "function"}
        entry["function"] = {**function, "arguments": arguments}
        if traits.text_arguments:
            text = function.get("arguments")
            if not isinstance(text, str) or not text.strip():
                text = json.dumps(arguments, ensure_ascii=False)
            entry["function"]["arguments"] = text
        if isinstance(call.get("id"), str):
            entry["id"] = _id(traits, call["id"])
        prepared.append(entry)
    return prepared


def _object(arguments: object, where: str) -> dict[str, Any]:
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if isinstance(arguments, Mapping):
        return dict(arguments)
    try:
        value = json.loads(arguments, parse_constant=_no_json) if isinstance(arguments, str) else 0
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not the JSON text of an object")
    return value


def _no_json(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _id(traits: TemplateTraits, id: str) -> str:
    if not traits.short_ids or (len(id) == 9 and id.isascii() and id.isalnum()):
        return id
    return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


# ---- for templates without tools


def _calls_as_text(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    prepared: list[dict[str, Any]] = []
    answers = False  # the last of ``prepared`` holds answers of tools
    for message in messages:
        role = message["role"]
        if role == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if answers:
                prepared[-1]["content"] += "\n" + text
            else:
                prepared.append({"role": "user", "content": text})
            answers = True
        elif role == "user" and answers:
            # Most of these templates want user and assistant to take turns.
            prepared[-1]["content"] += "\n" + message["content"]
            answers = False
        else:
            answers = False
            calls = message.get("tool_calls", ())
            texts = [message["content"]] if message.get("content") else []
            for call in calls:
                function = {k: call["function"][k] for k in ("name", "arguments")}
                json_text = json.dumps(function, ensure_ascii=False)
                texts.append(f"<tool_call>\n{json_text}\n</tool_call>")
            keep = {k: v for k, v in message.items() if k != "tool_calls"}
            prepared.append({**keep, "content": "\n".join(texts)})
    return prepared


def _with_tools_as_text(
    messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]], traits: TemplateTraits
) -> list[dict[str, Any]]:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = (
        "You can call functions. These are there, each as JSON with its name, what it does and a "
        f"JSON schema of its parameters:\n<tools>\n{lines}\n</tools>\n"
        "To call one, write its name and arguments as JSON in this form, and wait for the answer. "
        f"Where none is needed, just answer.\n{_FORMS[traits.format or _PLAIN]}"
    )
    first = messages[0]
    if first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    if not traits.system:
        return [{**first, "content": f"{text}\n\n{first['content'] or ''}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


# ---- trying a template out


def _probe(traits: TemplateTraits) -> list[dict[str, Any]]:
    id = _SHORT_ID if traits.short_ids else _LONG_ID
    function = {"name": _NAME, "arguments": json.dumps(_ARGUMENTS)}
    call = {"id": id, "type": "function", "function": function}
    return _prepare(
        traits,
        [
            {"role": "user", "content": "Hi."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": id, "content": _RESULT},
        ],
    )


def _render(template: ChatTemplate, messages: list[dict[str, Any]]) -> str:
    """What a template makes of ``messages``; nothing where it refuses them."""
    try:
        return template.render(messages, tools=[_TOOL], add_generation_prompt=True)
    except ChatTemplateError:
        return ""


def _understands(text: str) -> bool:
    """Whether the answer is there, and the call's arguments are written as the model would: neither
    as Python writes a dict, nor as a JSON text in JSON."""
    if str(_ARGUMENTS) in text or f'\\"{_VALUE}' in text:
        return False
    return _VALUE in text and _RESULT in text
