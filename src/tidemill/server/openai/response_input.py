"""The input of ``/v1/responses`` as chat messages. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.engine.errors import RequestError

_TEXTS = ("input_text", "output_text", "text")
_ROLES = ("user", "assistant", "system", "developer")


def as_chat(
    instructions: str | None, given: str | Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """``instructions`` and ``input`` as messages of the chat API: calls, their outputs and
    reasoning are items of their own here, and parts of messages there. Raises RequestError."""
    chat: list[dict[str, Any]] = []
    if instructions:
        chat.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*chat, {"role": "user", "content": given}]
    if not given:
        raise RequestError("input is empty", param="input")
    reasoning = ""
    for i, item in enumerate(given):
        where = f"input[{i}]"
        match item.get("type", "message"):
            case "message":
                message = _message(item, where)
                if reasoning and message["role"] == "assistant":
                    message["reasoning_content"], reasoning = reasoning, ""
                chat.append(message)
            case "function_call":
                last = chat[-1] if chat else {}
                if last.get("role") != "assistant":
                    last = {"role": "assistant", "content": None}
                    chat.append(last)
                if reasoning:
                    last["reasoning_content"], reasoning = reasoning, ""
                last.setdefault("tool_calls", []).append(_call(item, where))
            case "function_call_output":
                chat.append(_output(item, where))
            case "reasoning":
                reasoning = _texts(item.get("content") or [], f"{where}.content")
            case kind:
                raise _wrong(where, f"is of type {str(kind)[:40]!r}, which is not supported here")
    return chat


def _message(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = item.get("role")
    if role not in _ROLES:
        raise _wrong(where, f"has a role, which is one of {', '.join(_ROLES)}")
    return {"role": role, "content": _texts(item.get("content"), f"{where}.content")}


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    for name in ("call_id", "name", "arguments"):
        if not isinstance(item.get(name), str):
            raise _wrong(where, f"has no {name}, which is a text")
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _output(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(item.get("call_id"), str):
        raise _wrong(where, "has no call_id, which is a text")
    text = _texts(item.get("output"), f"{where}.output")
    return {"role": "tool", "tool_call_id": item["call_id"], "content": text}


def _texts(content: object, where: str) -> str:
    """The text of a string, or of a list of parts that have some."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(where, "is a text or a list of parts")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in (*_TEXTS, "reasoning_text") or not isinstance(part.get("text"), str):
            raise _wrong(f"{where}[{i}]", "is no text; others are not supported here")
        texts.append(part["text"])
    return "\n".join(texts)


def _wrong(where: str, what: str) -> RequestError:
    return RequestError(f"{where} {what}", param="input")
