"""What answers have in common in every API: counts of tokens, log-probabilities."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidemill.llm.outputs import CompletionOutput, Logprob, RequestOutput
from tidemill.text.base import Tokenizer

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON has not; OpenAI writes it for "very unlikely"."""


class TokenCounts(NamedTuple):
    """Tokens of the prompt (``cached`` of them came from the prefix cache) and of all answers."""

    prompt: int
    generated: int
    cached: int

    @classmethod
    def of(cls, output: RequestOutput) -> TokenCounts:
        generated = sum(len(out.token_ids) for out in output.outputs)
        return cls(len(output.prompt_token_ids), generated, output.num_cached_tokens)


def finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def top(entry: dict[int, Logprob], n_top: int) -> list[tuple[int, Logprob]]:
    """The ``n_top`` most probable tokens, best first; ``entry`` also has the sampled one."""
    ranked = sorted(entry.items(), key=lambda item: item[1].rank)
    return [item for item in ranked if item[1].rank <= n_top]


def token_scores(tokenizer: Tokenizer, out: CompletionOutput, n_top: int) -> list[dict[str, Any]]:
    """Each token with its log-probability and its ``n_top`` alternatives."""
    return [
        {
            **_token(tokenizer, token_id, entry[token_id]),
            "top_logprobs": [_token(tokenizer, i, e) for i, e in top(entry, n_top)],
        }
        for token_id, entry in zip(out.token_ids, out.logprobs or (), strict=True)
        if entry is not None
    ]


def _token(tokenizer: Tokenizer, token_id: int, entry: Logprob) -> dict[str, Any]:
    return {
        "token": entry.decoded_token,
        "logprob": finite(entry.logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }
