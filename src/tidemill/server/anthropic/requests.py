"""Bodies of requests in Anthropic's API, and what of them can be served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tidemill.engine.errors import RequestError
from tidemill.engine.params import SamplingParams
from tidemill.server.anthropic.conversation import as_chat
from tidemill.server.errors import check_only, unsupported

# What clients may send, and which values mean what happens here anyway. ``cache_control`` is not
# among them: prefixes are always cached. Anything else is an error, not silence.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "container": (None,),
    "context_management": (None,),
    "diagnostics": (None,),
    "inference_geo": (None,),
    "mcp_servers": (None, []),
    "output_config": (None, {}),
    "output_format": (None,),
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

    # Understood, but only at the values of _ONLY.
    container: Any = None
    context_management: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    mcp_servers: Any = None
    output_config: Any = None
    output_format: Any = None
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
        chat = as_chat(self.system, self.messages)
        self._refuse_tools_and_thinking(chat)
        return chat

    @property
    def template_options(self) -> Mapping[str, Any]:
        """Variables of the chat template: whether the model is to think, if that was said."""
        return {} if self.thinking is None else {"enable_thinking": False}

    def _refuse_tools_and_thinking(self, chat: list[dict[str, Any]]) -> None:
        """The one place that says no to tools and to thinking. ``as_chat`` converts their blocks
        already; what is missing is that answers are parsed for them (``server/tools``)."""
        if self.tools or any(m["role"] == "tool" or "tool_calls" in m for m in chat):
            raise unsupported("tools")
        if self.tool_choice not in (None, {"type": "none"}):
            raise unsupported("tool_choice")
        if self.thinking not in (None, {"type": "disabled"}) or any(
            "reasoning_content" in m for m in chat
        ):
            raise unsupported("thinking")


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
