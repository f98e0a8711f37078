"""Parts of answers in the OpenAI API: usage, log-probabilities, errors."""

from __future__ import annotations

from typing import Any

from tidemill.llm.outputs import CompletionOutput, RequestOutput
from tidemill.server.answers import TokenCounts, token_scores
from tidemill.server.errors import ApiError
from tidemill.text.base import Tokenizer


def error_body(error: ApiError) -> dict[str, Any]:
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }


def write_error(error: ApiError, request_id: str) -> tuple[int, Any]:
    return error.status, error_body(error)


def finish_reason(out: CompletionOutput) -> str:
    return "length" if out.finish_reason == "length" else "stop"


def usage(output: RequestOutput) -> dict[str, Any]:
    return usage_of(*TokenCounts.of(output))


def usage_of(prompt: int, generated: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def chat_logprobs(tokenizer: Tokenizer, out: CompletionOutput, n_top: int) -> dict[str, Any]:
    """The chat API's form: a list of tokens with their ``n_top`` alternatives."""
    return {"content": token_scores(tokenizer, out, n_top), "refusal": None}
