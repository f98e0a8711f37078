"""Parts of answers in the OpenAI API: usage, log-probabilities, errors."""

from __future__ import annotations

from typing import Any

from tidemill.llm.outputs import CompletionOutput, Logprob, RequestOutput
from tidemill.server.errors import ApiError
from tidemill.text.base import Tokenizer

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON has not; OpenAI writes it for "very unlikely"."""


def error_body(error: ApiError) -> dict[str, Any]:
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }


def finish_reason(out: CompletionOutput) -> str:
    return "length" if out.finish_reason == "length" else "stop"


def usage(output: RequestOutput) -> dict[str, Any]:
    prompt = len(output.prompt_token_ids)
    generated = sum(len(out.token_ids) for out in output.outputs)
    return usage_of(prompt, generated, output.num_cached_tokens)


def usage_of(prompt: int, generated: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def chat_logprobs(tokenizer: Tokenizer, out: CompletionOutput, n_top: int) -> dict[str, Any]:
    """The chat API's form: a list of tokens with their ``n_top`` alternatives."""
    content = []
    for token_id, entry in zip(out.token_ids, out.logprobs or (), strict=True):
        if entry is None:
            continue
        content.append(
            {
                **_token(tokenizer, token_id, entry[token_id]),
                "top_logprobs": [_token(tokenizer, i, e) for i, e in top(entry, n_top)],
            }
        )
    return {"content": content, "refusal": None}


def _token(tokenizer: Tokenizer, token_id: int, entry: Logprob) -> dict[str, Any]:
    return {
        "token": entry.decoded_token,
        "logprob": finite(entry.logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def top(entry: dict[int, Logprob], n_top: int) -> list[tuple[int, Logprob]]:
    """The ``n_top`` most probable tokens, best first; ``entry`` also has the sampled one."""
    ranked = sorted(entry.items(), key=lambda item: item[1].rank)
    return [item for item in ranked if item[1].rank <= n_top]
