"""Prompts in the forms that callers have them, as token ids that the engine takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

from tidemill.text.base import Tokenizer


class TextPrompt(TypedDict):
    """A prompt as text; the same as giving the string itself."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt that is tokenised already; nothing is added to it."""

    prompt_token_ids: Sequence[int]


Prompt = str | TextPrompt | TokensPrompt
Message = Mapping[str, Any]
"""One chat message, as in OpenAI's API: {"role": ..., "content": ...} and what tools need."""
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
    wrong = f"messages is a list of dicts or a list of such lists, not {_short(messages)}"
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise ValueError(wrong)
    if not messages:
        raise ValueError("messages is empty")
    if all(isinstance(message, Mapping) for message in messages):
        return [cast("Conversation", messages)]
    conversations = [cast("Conversation", entry) for entry in messages]
    for conversation in conversations:
        if isinstance(conversation, (str, Mapping)) or not isinstance(conversation, Sequence):
            raise ValueError(wrong)
        if not conversation or not all(isinstance(message, Mapping) for message in conversation):
            raise ValueError(wrong)
    return conversations


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
