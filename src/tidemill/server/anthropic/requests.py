"""Bodies of requests in Anthropic's API, and what of them can be served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tidemill.engine.errors import RequestError
from tidemill.engine.params import SamplingParams
from tidemill.server.anthropic.conversation import as_chat
from tidemill.server.errors import check_only, unsupported
from tidemill.server.tools.use import ToolUse, tool_use
from tidemill.text.grammar import Grammar, GrammarError

# What clients may send, and which values mean what happens here anyway. ``cache_control`` is not
# among them: prefixes are always cached. Anything else is an error, not silence.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "container": (None,),
    "context_management": (None,),
    "diagnostics": (None,),
    "inference_geo": (None,),
    "mcp_servers": (None, []),
    "service_tier": (None, "auto", "standard_only"),
    "speed": (None, "standard"),
    "user_profile_id": (None,),
    "workspace_id": (None,),
}


class ConversationFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What makes up a prompt; the body of a request to count its tokens."""

    model: str
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None

    # Understood, but only at the values of _ONLY.
    container: Any = None
    context_management: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    mcp_servers: Any = None
    service_tier: Any = None
    speed: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None

    def chat(self) -> list[dict[str, Any]]:
        """The conversation as chat messages. Raises ApiError or RequestError, which name the
        field, for what cannot be served."""
        check_only(self, _ONLY)
        if not self.messages:
            raise RequestError("messages is empty", param="messages")
        if self.thinking not in (None, {"type": "disabled"}):
            raise unsupported("thinking")  # there is no way to keep to its budget
        return as_chat(self.system, self.messages)

    def form(self) -> Grammar | None:
        """What the answer's text must look like. Raises RequestError."""
        config = {k: v for k, v in (self.output_config or {}).items() if v is not None}
        match config:
            case {"format": {"type": "json_schema", "schema": schema, **more}, **rest} if (
                isinstance(schema, dict | bool) and not more and not rest
            ):
                try:
                    return Grammar.json_schema(schema)
                except GrammarError as error:
                    raise RequestError(f"output_config: {error}", param="output_config") from None
            case {"format": _, **rest} if not rest:
                raise RequestError(
                    "output_config.format is of type json_schema with a schema",
                    param="output_config",
                )
        if config:
            raise unsupported(f"output_config.{min(config.keys() - {'format'})}")
        return None

    def use(self) -> ToolUse:
        """What is said of tools. Raises RequestError that names the field at fault."""
        tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(self.tools or ())]
        choice = dict(self.tool_choice or {})
        parallel = None
        if choice.pop("disable_parallel_tool_use", None):
            parallel = False
        match choice:
            case {"type": "tool", "name": str(name), **rest} if not rest:
                wanted: Any = {"type": "function", "function": {"name": name}}
            case {"type": "auto" | "any" | "none" as kind, **rest} if not rest:
                wanted = {"any": "required"}.get(kind, kind)
            case _:
                wanted = None
        if choice and wanted is None:
            raise RequestError(
                "tool_choice is of type auto, any, none, or tool with a name", param="tool_choice"
            )
        return tool_use(tools, wanted, parallel if tools else None)

    @property
    def template_options(self) -> Mapping[str, Any]:
        """Variables of the chat template: whether the model is to think, if that was said."""
        return {} if self.thinking is None else {"enable_thinking": False}


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A tool in OpenAI's form. Those that Anthropic's servers run themselves are not there."""
    if tool.get("type", "custom") != "custom":
        raise RequestError(
            f"{where} is of a type that is not supported here; only 'custom' is", param="tools"
        )
    extra = tool.keys() - {"type", "name", "description", "input_schema", "cache_control", "strict"}
    if extra:
        raise RequestError(f"{where} has {min(extra)!r}, which is not supported", param="tools")
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
        "strict": tool.get("strict"),
    }
    return {
        "type": "function",
        "function": {name: value for name, value in function.items() if value is not None},
    }


class MessagesRequest(ConversationFields, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/messages``. ``metadata`` says something about the caller and changes
    nothing."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = None

    def sampling(self) -> SamplingParams:
        """How to sample. Raises RequestError that names the parameter at fault."""
        if self.max_tokens < 1:
            raise RequestError("max_tokens must be at least 1", param="max_tokens")
        given: dict[str, Any] = {
            name: value
            for name in ("temperature", "top_p", "top_k")
            if (value := getattr(self, name)) is not None
        }
        try:
            return SamplingParams(
                max_tokens=self.max_tokens, stop=tuple(self.stop_sequences or ()), **given
            )
        except RequestError as error:
            if error.param != "stop":
                raise
            raise RequestError(f"stop_sequences: {error}", param="stop_sequences") from None


class CountTokensRequest(ConversationFields, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/messages/count_tokens``."""
