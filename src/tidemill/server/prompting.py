"""Prompts as the engine takes them, and the limits that go with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from tidemill.engine.errors import ContextLengthError, RequestError
from tidemill.engine.params import SamplingParams
from tidemill.llm.loading import OpenModel
from tidemill.llm.prompts import PreparedPrompt, as_messages
from tidemill.server.tools import TemplateTraits, for_template, opens_reasoning, parser_for
from tidemill.server.tools.call_grammar import strict_calls
from tidemill.server.tools.use import ListedCalls, NamedCall, OneCall, Reader, ToolUse
from tidemill.text import ChatTemplate, encode_chat
from tidemill.text.errors import TextTooLongError
from tidemill.text.grammar import GrammarError

# Texts that may be single tokens of a vocabulary, by which calls and reasoning are found.
MARKERS = (
    "<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<｜tool▁calls▁begin｜>", "<|channel|>",
    "<|tool_call_start|>", "<|python_start|>", "<think>", "</think>", "[THINK]",
)  # fmt: skip


_ALWAYS_ENCODED = 1 << 18  # characters, which take a fraction of a second


class Prompting:
    """Renders and tokenises for one model; safe to use from several threads."""

    def __init__(self, opened: OpenModel, chat_template: str | None) -> None:
        self.tokenizer = opened.tokenizer
        self.max_context = opened.max_context
        self._template: ChatTemplate | None = None
        self._traits = TemplateTraits(None, None, False, False, False, False)
        if chat_template is not None or opened.tokenizer.chat_template is not None:
            self._template = ChatTemplate.for_tokenizer(opened.tokenizer, chat_template)
            self._traits = TemplateTraits.of(self._template)
        self._control_markers = self._control_tokens(MARKERS)

    @cached_property
    def most_characters(self) -> int:
        """Of a prompt. More cannot fit the context, whatever they say, and to find out how many
        tokens megabytes have would keep everybody waiting."""
        return max(_ALWAYS_ENCODED, self.max_context * self.tokenizer.longest_token)

    @property
    def can_chat(self) -> bool:
        return self._template is not None

    @property
    def thinks(self) -> bool:
        """Whether its template knows of reasoning."""
        return self._traits.reasoning is not None or self._traits.format == "harmony"

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        /,
        *,
        add_generation_prompt: bool = True,
        **options: Any,
    ) -> PreparedPrompt:
        """A conversation as its template writes it. Raises ValueError for what is none,
        ContextLengthError for what is far too long."""
        if self._template is None:
            raise ValueError(
                "this model has no chat template: use /v1/completions, or start the server with "
                "--chat-template"
            )
        if len(messages) > self.max_context:  # each has a token at least
            raise ContextLengthError(
                f"there are {len(messages):,} messages; the context has {self.max_context} tokens"
            )
        prepared = for_template(self._traits, messages, tools)
        try:
            prompt = encode_chat(
                self.tokenizer,
                self._template,
                prepared.messages,
                tools=prepared.tools,
                add_generation_prompt=add_generation_prompt,
                most_characters=self.most_characters,
                **options,
            )
        except TextTooLongError as error:
            raise ContextLengthError(f"{error} this model's context") from None
        return PreparedPrompt(prompt.text, tuple(prompt.ids), is_chat=True)

    def continued_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        /,
        **options: Any,
    ) -> PreparedPrompt:
        """A conversation; if its last message is the assistant's, the answer goes on with that.
        What it says so far stays plain text, whatever it spells. Raises ValueError."""
        if len(messages) < 2 or messages[-1].get("role") != "assistant":
            return self.chat(messages, tools, **options)
        begun = as_messages(messages[-1:])[0]["content"] or ""
        prompt = self.chat(messages[:-1], tools, **options)
        ids = self.encode(begun, add_special=False)
        return PreparedPrompt(f"{prompt.text}{begun}", (*prompt.token_ids, *ids))

    def reader(self, prompt: PreparedPrompt, use: ToolUse) -> Reader | None:
        """What takes an answer to ``prompt`` apart; None where there is nothing to look for."""
        if use.mode == "named":
            return NamedCall(use.name)
        if use.mode == "required":
            return ListedCalls()
        traits = self._traits
        if not self.thinks and not use.offered:
            return None
        parser = parser_for(
            traits.format,
            use.offered,
            reasoning=traits.reasoning,
            in_reasoning=opens_reasoning(prompt.text or "", traits.reasoning),
        )
        return parser if use.parallel else OneCall(parser)

    def keeping_markers(self, params: SamplingParams, reader: Reader | None) -> SamplingParams:
        """``params`` for answers that ``reader`` takes apart: what calls and reasoning are told by
        may be control tokens, which the engine leaves out of texts unless it is told to keep
        them."""
        if reader is None or not self._control_markers:
            return params
        return replace(params, skip_special_tokens=False)

    def keeping_schemas(self, params: SamplingParams, use: ToolUse) -> SamplingParams:
        """``params`` for answers whose calls, if the model makes any, are to fit the schemas of
        strict tools. Raises RequestError."""
        if not use.strict or params.grammar is not None:
            return params
        try:
            grammar = strict_calls(
                self._traits.format, use.schemas, self._control_markers, parallel=use.parallel
            )
        except GrammarError as error:
            raise RequestError(f"tools: {error}", param="tools") from None
        return replace(params, grammar=grammar)

    def _control_tokens(self, texts: Sequence[str]) -> dict[str, int]:
        """The ids of those texts that are control tokens of the vocabulary."""
        found = {}
        for text in texts:
            ids = self.tokenizer.encode(text, add_special=False, parse_special=True)
            if len(ids) == 1 and ids[0] in self.tokenizer.special_ids:
                found[text] = ids[0]
        return found

    def text(self, text: str) -> PreparedPrompt:
        """Raises ContextLengthError for what is far too long."""
        return PreparedPrompt(text, tuple(self.encode(text)))

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """See ``Tokenizer.encode``. Raises ContextLengthError for what is far too long."""
        if len(text) > self.most_characters:
            raise ContextLengthError(
                f"the text has {len(text):,} characters; at most {self.most_characters:,} fit this "
                "model's context"
            )
        return self.tokenizer.encode(text, add_special=add_special)

    def tokens(self, ids: Sequence[int], *, truncate: bool = False) -> PreparedPrompt:
        """Raises ContextLengthError for too many, if those are not to be cut off later."""
        if len(ids) > self.max_context and not truncate:
            raise ContextLengthError(
                f"the prompt has {len(ids)} tokens; the context has {self.max_context}"
            )
        return PreparedPrompt(None, tuple(ids))
