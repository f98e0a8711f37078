"""From a model name to answers: LLM, AsyncLLM, memory planning, perplexity."""

from tidemill.engine.errors import ContextLengthError, QueueFullError, RequestError
from tidemill.llm.async_llm import AsyncLLM
from tidemill.llm.llm import LLM
from tidemill.llm.memory import InsufficientMemoryError
from tidemill.llm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from tidemill.llm.prompts import Conversation, Prompt

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
