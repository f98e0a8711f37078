"""Chat messages to prompts: the one place that renders chat templates.

The variables and functions that a template finds are those of Hugging Face transformers, which
set the practice (https://huggingface.co/docs/transformers/chat_templating).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any, NamedTuple, NoReturn

from jinja2 import TemplateSyntaxError

from tidemill.text.base import Tokenizer
from tidemill.text.builtin_templates import BUILTIN_TEMPLATES
from tidemill.text.errors import ChatTemplateError, TextTooLongError
from tidemill.text.matcher import TokenMatcher
from tidemill.text.template_budget import TemplateBudget, TemplateLimits, active, measure
from tidemill.text.template_sandbox import ChatTemplateEnvironment
from tidemill.text.vocabulary_tokenizer import GUARD, VocabularyTokenizer

_FILENAME = "<chat template>"
_NO_LIMIT = 1 << 62
_MAX_INPUT_DEPTH = 48
_MAX_INPUT_NODES = 1_000_000

Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled chat template.

    ``special_tokens`` are variables of the template: bos_token, eos_token and others, by name.
    ``tool_source`` is a template that takes the place of ``source`` when tools are given.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        tool_source: str | None = None,
        limits: TemplateLimits | None = None,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Raises ChatTemplateError if the template does not compile."""
        self.source = source
        self._limits = limits or TemplateLimits()
        self._environment = ChatTemplateEnvironment()
        self._environment.globals["raise_exception"] = _raise_exception
        self._environment.globals["strftime_now"] = _strftime(clock)
        self._special_tokens = {"bos_token": "", "eos_token": "", **(special_tokens or {})}
        self._template = self._compile(source)
        self._tool_template = self._compile(tool_source) if tool_source else self._template

    @classmethod
    def for_tokenizer(
        cls, tokenizer: Tokenizer, template: str | None = None, **options: Any
    ) -> ChatTemplate:
        """The template of a model, or ``template`` instead: a built-in name or Jinja source."""
        tool_source = None
        source = template
        if source is None:
            source = tokenizer.chat_template
            tool_source = getattr(tokenizer, "chat_templates", {}).get("tool_use")
            if source is None:
                raise ChatTemplateError(
                    "the model has no chat template; use plain completion, or choose a template:"
                    f" {', '.join(sorted(BUILTIN_TEMPLATES))}, or Jinja source"
                )
        elif not isinstance(source, str):
            raise ChatTemplateError(f"a chat template is a string, not {type(source).__name__}")
        elif source in BUILTIN_TEMPLATES:
            source = BUILTIN_TEMPLATES[source]
        elif "{{" not in source and "{%" not in source:
            raise ChatTemplateError(
                f"there is no built-in chat template {source!r}; there are"
                f" {', '.join(sorted(BUILTIN_TEMPLATES))}"
            )
        special_tokens = {}
        for name, token_id in (
            ("bos_token", tokenizer.bos_id),
            ("eos_token", getattr(tokenizer, "eos_id", None)),
        ):
            if token_id is not None:
                special_tokens[name] = tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        return cls(source, special_tokens=special_tokens, tool_source=tool_source, **options)

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for ``messages``. ``variables`` are passed on to the template.

        All values must be plain data (as from JSON). Raises ChatTemplateError if the template
        refuses the messages (``raise_exception``), fails, or goes over its limits.
        """
        values = _plain(
            {
                **self._special_tokens,
                **variables,
                "messages": messages,
                "tools": tools,
                "documents": documents,
                "add_generation_prompt": add_generation_prompt,
            },
            0,
            count(),
        )
        template = self._tool_template if tools else self._template
        budget = TemplateBudget(self._limits, measure(values, _NO_LIMIT, _NO_LIMIT))
        chunks: list[str] = []
        length = 0
        try:
            with active(budget):
                for chunk in template.root_render_func(template.new_context(values)):
                    length += len(chunk)
                    budget.reserve(len(chunk))
                    if length > budget.max_chars:
                        budget.reserve(length)
                    chunks.append(chunk)
                budget.tick()
        except Exception as error:
            _fail(error, self._line(error))
        return "".join(chunks)

    def _compile(self, source: str) -> Any:
        if len(source) > self._limits.source_chars:
            raise ChatTemplateError(
                f"the chat template has {len(source):,} characters;"
                f" at most {self._limits.source_chars:,} are supported"
            )
        try:
            with active(TemplateBudget(self._limits, measure(source, _NO_LIMIT, _NO_LIMIT))):
                code = self._environment.compile(source, filename=_FILENAME)
                return self._environment.template_class.from_code(
                    self._environment, code, dict(self._environment.globals)
                )
        except TemplateSyntaxError as error:
            _fail(error, error.lineno)
        except Exception as error:
            _fail(error, None)

    def _line(self, error: BaseException) -> int | None:
        """The template's line that an error comes from."""
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if frame.filename == _FILENAME and frame.lineno is not None:
                line: int = self._template.get_corresponding_lineno(frame.lineno)
                return line
        return None


class ChatPrompt(NamedTuple):
    """A rendered chat. ``ids`` can begin with a BOS that ``text`` does not have."""

    text: str
    ids: list[int]


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    /,
    *,
    parse_content: bool = False,
    most_characters: int | None = None,
    **options: Any,
) -> ChatPrompt:
    """The prompt of a chat as text and token ids; for ``options`` see ``ChatTemplate.render``.
    Raises TextTooLongError for a prompt of more than ``most_characters``, before it is encoded.

    The one way from messages to ids, for all callers. The template's control tokens become their
    ids; BOS stands at the start exactly once if the template writes it or the tokenizer wants it.
    Control tokens that are spelled out in messages, tools or documents stay plain text, so that
    what a user writes cannot end a turn; ``parse_content=True`` lets them count, as most other
    software does.
    """
    if not parse_content and isinstance(tokenizer, VocabularyTokenizer):
        matcher = tokenizer.special_matcher
        counter = count()  # one limit for all that is walked, before it is
        messages = _plain(list(messages), 0, counter)
        for name in ("tools", "documents"):
            if options.get(name):
                options[name] = _guarded(_plain(options[name], 0, counter), matcher)
        text = template.render(_guarded(messages, matcher), **options)
        _check_length(text, most_characters)
        ids = tokenizer.encode_guarded(text)
        text = text.replace(GUARD, "")
    else:
        text = template.render(messages, **options)
        _check_length(text, most_characters)
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
    bos = tokenizer.bos_id
    if bos is not None:
        while ids[:2] == [bos, bos]:
            del ids[0]
        if ids[:1] != [bos] and tokenizer.encode("", add_special=True)[:1] == [bos]:
            ids.insert(0, bos)
    return ChatPrompt(text, ids)


def _check_length(text: str, most: int | None) -> None:
    if most is not None and len(text) > most:
        raise TextTooLongError(f"the prompt has {len(text):,} characters; at most {most:,} fit")


def _guarded(value: Any, matcher: TokenMatcher) -> Any:
    """``value`` with the control tokens in its texts made unrecognisable by GUARD characters."""
    if isinstance(value, str):
        parts: list[str] = []
        position = 0
        text = value.replace(GUARD, "")
        while (match := matcher.find(text, position)) is not None:
            # One at every place where a token begins: others may overlap it.
            parts += (text[position : match[0] + 1], GUARD)
            position = match[0] + 1
        return "".join((*parts, text[position:]))
    if isinstance(value, Mapping):
        return {_guarded(k, matcher): _guarded(v, matcher) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_guarded(item, matcher) for item in value]
    return value


def _plain(value: Any, depth: int, counter: Iterator[int]) -> Any:
    """A copy of plain data as dict, list, str, int, float, bool and None."""
    if depth > _MAX_INPUT_DEPTH:
        raise ChatTemplateError("the messages are nested too deeply")
    if next(counter) > _MAX_INPUT_NODES:
        raise ChatTemplateError(f"the messages have more than {_MAX_INPUT_NODES:,} parts")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ChatTemplateError("the messages have a key that is not a text")
        return {str(key): _plain(item, depth + 1, counter) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1, counter) for item in value]
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise ChatTemplateError(
        f"the messages hold a {type(value).__name__}; only plain data (as from JSON) can be"
        " rendered"
    )


def _raise_exception(message: Any) -> NoReturn:
    raise ChatTemplateError(f"the chat template refuses the messages: {message}")


def _strftime(clock: Callable[[], datetime]) -> Callable[[str], str]:
    def strftime_now(format: str) -> str:
        if len(format) > 256:
            raise ChatTemplateError("a chat template asks for too long a date")
        return clock().strftime(format)

    return strftime_now


def _fail(error: Exception, line: int | None) -> NoReturn:
    if isinstance(error, ChatTemplateError):
        raise error
    where = f" at line {line}" if line else ""
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    raise ChatTemplateError(
        f"the chat template fails{where}: {reason or type(error).__name__}"
    ) from error
