"""Prompts as the engine takes them, and the limits that go with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.llm.loading import OpenModel
from tidemill.llm.prompts import PreparedPrompt, as_messages, as_tools
from tidemill.text import ChatTemplate, encode_chat


class Prompting:
    """Renders and tokenises for one model; safe to use from several threads."""

    def __init__(self, opened: OpenModel, chat_template: str | None) -> None:
        self.tokenizer = opened.tokenizer
        self.max_context = opened.max_context
        self._template: ChatTemplate | None = None
        if chat_template is not None or opened.tokenizer.chat_template is not None:
            self._template = ChatTemplate.for_tokenizer(opened.tokenizer, chat_template)

    @property
    def can_chat(self) -> bool:
        return self._template is not None

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        **options: Any,
    ) -> PreparedPrompt:
        """A conversation as its template writes it. Raises ValueError for what is none."""
        if self._template is None:
            raise ValueError(
                "this model has no chat template: use /v1/completions, or start the server with "
                "--chat-template"
            )
        prompt = encode_chat(
            self.tokenizer,
            self._template,
            as_messages(messages),
            tools=as_tools(tools),
            add_generation_prompt=add_generation_prompt,
            **options,
        )
        return PreparedPrompt(prompt.text, tuple(prompt.ids), is_chat=True)

    def continued_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> PreparedPrompt:
        """A conversation; if its last message is the assistant's, the answer goes on with that.
        What it says so far stays plain text, whatever it spells. Raises ValueError."""
        if len(messages) < 2 or messages[-1].get("role") != "assistant":
            return self.chat(messages, tools, **options)
        begun = as_messages(messages[-1:])[0]["content"] or ""
        prompt = self.chat(messages[:-1], tools, **options)
        ids = self.tokenizer.encode(begun, add_special=False)
        return PreparedPrompt(f"{prompt.text}{begun}", (*prompt.token_ids, *ids))

    def text(self, text: str) -> PreparedPrompt:
        return PreparedPrompt(text, tuple(self.tokenizer.encode(text)))

    def tokens(self, ids: Sequence[int]) -> PreparedPrompt:
        return PreparedPrompt(None, tuple(ids))
