"""What answers have in common in every API: counts of tokens, log-probabilities."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, NamedTuple

from tidemill.engine.params import SamplingParams
from tidemill.llm.outputs import CompletionOutput, Logprob, RequestOutput
from tidemill.server.tools.use import Reader
from tidemill.text.base import Tokenizer
from tidemill.text.detokenize import IncrementalDetokenizer

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


def reasoning_tokens(
    tokenizer: Tokenizer,
    params: SamplingParams,
    readers: Iterable[Reader | None],
    output: RequestOutput,
) -> int:
    """How many tokens of the answers of a chat are reasoning: those whose text begins within what
    the answer's reader has found to be some."""
    count = 0
    for reader, out in zip(readers, output.outputs, strict=True):
        if reader is None or not (spans := reader.reasoning):
            continue
        texts = IncrementalDetokenizer(tokenizer, skip_special=params.skip_special_tokens)
        lengths = (len(texts.push(token_id)) for token_id in out.token_ids)
        starts = list(accumulate(lengths, initial=0))[:-1]
        count += sum(bisect_left(starts, end) - bisect_left(starts, start) for start, end in spans)
    return count


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
