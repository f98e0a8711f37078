"""Parts of answers in the OpenAI API: usage, log-probabilities, errors."""

from __future__ import annotations

from typing import Any

from tidemill.llm.outputs import CompletionOutput, RequestOutput
from tidemill.server.answers import TokenCounts, finite, token_scores
from tidemill.server.errors import ApiError
from tidemill.server.http import encoded
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


def chat_usage(output: RequestOutput, reasoning: int) -> dict[str, Any]:
    """``reasoning``: so many of the answers' tokens were."""
    return {
        **usage_of(*TokenCounts.of(output)),
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


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


def prompt_logprobs(output: RequestOutput) -> dict[str, Any]:
    """The field of that name as vLLM has it, where it was asked for: of each token of the prompt
    itself and its alternatives by their ids; null for the first, which nothing predicts."""
    if output.prompt_logprobs is None:
        return {}
    entries = [
        None if entry is None else encoded({
            str(token_id): {
                "logprob": finite(score.logprob), "rank": score.rank,
                "decoded_token": score.decoded_token,
            }
            for token_id, score in entry.items()
        })
        for entry in output.prompt_logprobs
    ]  # fmt: skip
    return {"prompt_logprobs": entries}
