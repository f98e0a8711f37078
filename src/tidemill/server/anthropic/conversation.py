"""Messages of content blocks as the chat messages that templates and tools know (OpenAI's form).

Pure. One message may become several: the results of tools are messages of their own there. Turns
of one role that follow each other become one, as the API has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidemill.engine.errors import RequestError

Content = str | list[dict[str, Any]]

# What a block may have. cache_control asks for what the prefix cache does anyway.
_FIELDS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"text", "citations", "cache_control"}),
    "thinking": frozenset({"thinking", "signature"}),
    "tool_use": frozenset({"id", "name", "input", "cache_control", "caller"}),
    "tool_result": frozenset({"tool_use_id", "content", "is_error", "cache_control"}),
}
_OF_ROLE: Mapping[str, tuple[str, ...]] = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}
_JOINED = ("user", "assistant")


def as_chat(system: Content | None, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """``system`` and ``messages`` of a request as chat messages with ``role`` and ``content``, and
    ``tool_calls``, ``tool_call_id`` or ``reasoning_content`` where there are such blocks. Raises
    RequestError that says where something is not as it should be."""
    chat: list[dict[str, Any]] = []
    if system:
        chat.append({"role": "system", "content": _text(system, "system")})
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        extra = message.keys() - {"role", "content"}
        if extra:
            raise _wrong(where, f"has no {min(extra)!r}")
        role = message.get("role")
        if not isinstance(role, str) or role not in _OF_ROLE:
            raise _wrong(where, f"has a role, which is one of {', '.join(_OF_ROLE)}")
        for part in _parts(role, _blocks(message.get("content"), f"{where}.content", role)):
            if part["role"] in _JOINED and chat and chat[-1]["role"] == part["role"]:
                _join(chat[-1], part)
            else:
                chat.append(part)
    return chat


def _parts(role: str, blocks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The chat messages of one message, in the order of its blocks."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        match block["type"]:
            case "text":
                texts.append(block["text"])
            case "thinking":
                thoughts.append(block["thinking"])
            case "tool_use":
                arguments = json.dumps(block["input"], ensure_ascii=False)
                function = {"name": block["name"], "arguments": arguments}
                calls.append({"id": block["id"], "type": "function", "function": function})
            case _:
                if texts:
                    yield {"role": role, "content": "\n".join(texts)}
                    texts = []
                yield _result(block)
                continue
    if texts or calls or thoughts:
        message: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
        if thoughts:
            message["reasoning_content"] = "\n".join(thoughts)
        if calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = calls
        yield message


def _result(block: Mapping[str, Any]) -> dict[str, Any]:
    text = block["content"]
    if block.get("is_error"):  # which a chat message cannot say otherwise
        text = f"Error: {text}" if text else "Error"
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}


def _join(message: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name in ("content", "reasoning_content"):
        texts = [text for text in (message.get(name), more.get(name)) if text]
        if texts:
            message[name] = "\n".join(texts)
    if "tool_calls" in more:
        message["tool_calls"] = message.get("tool_calls", []) + more["tool_calls"]


def _blocks(content: object, where: str, role: str) -> list[dict[str, Any]]:
    """The content as checked blocks; those of tool results have their content as text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        raise _wrong(where, "is a text or a list of blocks, and not empty")
    blocks = []
    for i, block in enumerate(content):
        here = f"{where}[{i}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str):
            raise _wrong(here, "is an object with a type")
        if kind not in _OF_ROLE[role]:
            kinds = ", ".join(_OF_ROLE[role])
            raise _wrong(here, f"is of type {kind[:40]!r}; a {role} message may have {kinds}")
        extra = block.keys() - _FIELDS[kind] - {"type"}
        if extra:
            raise _wrong(here, f"has {min(extra)!r}, which is not supported here")
        blocks.append(_checked(kind, block, here))
    return blocks


def _checked(kind: str, block: dict[str, Any], where: str) -> dict[str, Any]:
    if block.get("citations"):
        raise _wrong(where, "has citations, which are not supported here; leave them out")
    for name in {"text": ("text",), "thinking": ("thinking",), "tool_use": ("id", "name")}.get(
        kind, ("tool_use_id",)
    ):
        if not isinstance(block.get(name), str):
            raise _wrong(where, f"has no {name}, which is a string")
    if kind == "tool_use" and not isinstance(block.get("input"), dict):
        raise _wrong(where, "has no input, which is an object")
    if kind == "tool_result":
        content = block.get("content")
        return {**block, "content": _text(content, f"{where}.content") if content else ""}
    return block


def _text(content: object, where: str) -> str:
    """The text of a string or of text blocks."""
    return "\n".join(block["text"] for block in _blocks(content, where, "system"))


def _wrong(where: str, what: str) -> RequestError:
    return RequestError(f"{where} {what}", param=where.partition("[")[0])
