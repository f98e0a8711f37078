"""Prompts in the forms that callers have them, as token ids that the engine takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, cast

from tidemill.records import dataclass
from tidemill.text.base import Tokenizer


class TextPrompt(TypedDict):
    """A prompt as text; the same as giving the string itself."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt that is tokenised already; nothing is added to it."""

    prompt_token_ids: Sequence[int]


Prompt = str | TextPrompt | TokensPrompt
Message = Mapping[str, Any]
"""One chat message, as in OpenAI's API: {"role": ..., "content": ...} and what tools need. The
content is a string, or a list of parts {"type": "text", "text": ...}, which are joined by newlines;
only a message with tool_calls can be without."""
Conversation = Sequence[Message]


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """``text`` is None for a prompt that came as token ids. ``is_chat``: what is generated is a
    message of its own, and not more of this text."""

    text: str | None
    token_ids: tuple[int, ...]
    is_chat: bool = False


def prepare(prompt: Prompt, tokenizer: Tokenizer) -> PreparedPrompt:
    """Tokenise one prompt. Raises ValueError if it is none; its ids are the engine's to check."""
    if isinstance(prompt, str):
        return PreparedPrompt(prompt, tuple(tokenizer.encode(prompt)))
    if isinstance(prompt, Mapping):
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if isinstance(text, str) and ids is None:
            return PreparedPrompt(text, tuple(tokenizer.encode(text)))
        if isinstance(ids, Iterable) and not isinstance(ids, str | bytes) and text is None:
            return PreparedPrompt(None, tuple(ids))
    raise ValueError(
        "a prompt is a string or a dict with either 'prompt' (str) or 'prompt_token_ids' (list of "
        f"int), not {_short(prompt)}"
    )


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise ValueError(f"prompts is one prompt or a list of prompts, not {_short(prompts)}")
    return list(prompts)


def as_conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """One conversation or several, as a list."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise ValueError(
            f"messages is a list of dicts or a list of such lists, not {_short(messages)}"
        )
    if messages and not isinstance(messages[0], Mapping):
        return [cast("Conversation", entry) for entry in messages]
    return [cast("Conversation", messages)]


def as_messages(conversation: Conversation) -> list[dict[str, Any]]:
    """One conversation, its contents as text. Raises ValueError for what is none."""
    if isinstance(conversation, str | bytes | Mapping) or not isinstance(conversation, Sequence):
        raise ValueError(f"messages is a list of dicts, not {_short(conversation)}")
    if not conversation:
        raise ValueError("messages is empty")
    messages = []
    for i, message in enumerate(conversation):
        where = f"messages[{i}]"
        if not isinstance(message, Mapping):
            raise ValueError(f"{where} is a dict with role and content, not {_short(message)}")
        if not isinstance(message.get("role"), str):
            raise ValueError(f"{where} has no role, which is a string such as 'user'")
        messages.append({**message, "content": _content(message, where)})
    return messages


def _content(message: Message, where: str) -> str | None:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        # Templates tell a call from an answer by it, so it is not made an empty string.
        if message.get("tool_calls"):
            return None
        raise ValueError(f"{where} has no content; only a message with tool_calls can be without")
    if isinstance(content, bytes | Mapping) or not isinstance(content, Sequence):
        raise ValueError(f"{where}.content is a string or a list of parts, not {_short(content)}")
    texts = []
    for i, part in enumerate(content):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise ValueError(f"{where}.content[{i}] is a dict with a type, not {_short(part)}")
        if part["type"] != "text":
            raise ValueError(
                f"{where}.content[{i}] is of type {_short(part['type'])}; only parts of type "
                "'text' are supported"
            )
        if not isinstance(part.get("text"), str):
            raise ValueError(f"{where}.content[{i}] has no text, which is a string")
        texts.append(part["text"])
    return "\n".join(texts)


def as_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]] | None:
    """The tools of a request as a list; None if there are none. Raises ValueError for junk."""
    if tools is None:
        return None
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise ValueError(f"tools is a list of dicts, not {_short(tools)}")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise ValueError(f"tools[{i}] is a dict, not {_short(tool)}")
    return list(tools) or None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
