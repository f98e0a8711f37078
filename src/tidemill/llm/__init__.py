"""From a model name to answers: LLM, AsyncLLM, memory planning, perplexity."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.engine.errors import ContextLengthError, QueueFullError, RequestError
    from tidemill.llm.async_llm import AsyncLLM
    from tidemill.llm.llm import LLM
    from tidemill.llm.memory import InsufficientMemoryError
    from tidemill.llm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
    from tidemill.llm.prompts import Conversation, Prompt

_HOMES = {
    "LLM": "tidemill.llm.llm",
    "AsyncLLM": "tidemill.llm.async_llm",
    "CompletionOutput": "tidemill.llm.outputs",
    "ContextLengthError": "tidemill.engine.errors",
    "Conversation": "tidemill.llm.prompts",
    "InsufficientMemoryError": "tidemill.llm.memory",
    "Logprob": "tidemill.llm.outputs",
    "Prompt": "tidemill.llm.prompts",
    "QueueFullError": "tidemill.engine.errors",
    "RequestError": "tidemill.engine.errors",
    "RequestMetrics": "tidemill.llm.outputs",
    "RequestOutput": "tidemill.llm.outputs",
}
__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "ContextLengthError",
    "Conversation",
    "InsufficientMemoryError",
    "Logprob",
    "Prompt",
    "QueueFullError",
    "RequestError",
    "RequestMetrics",
    "RequestOutput",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: a command that needs no event loop does not pay for asyncio.
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
