"""What a request must be to be served at all."""

from __future__ import annotations

from array import array
from typing import get_args

from tidemill.engine.base import NO_OUTPUT, Request
from tidemill.engine.errors import ContextLengthError, RequestError
from tidemill.engine.params import as_integer
from tidemill.engine.pooling import Pooling


def checked_prompt(
    request: Request, *, vocab_size: int, max_context: int, has_tokenizer: bool
) -> array[int]:
    """The prompt's ids. Raises RequestError, ContextLengthError if it is too long."""
    # Both are compared and hashed with those of other requests, which must not suffer.
    as_integer(request.priority, "priority")
    if not isinstance(request.salt, str):
        raise RequestError(f"salt must be a string, not {request.salt!r}", param="salt")
    prompt = _ids(request, vocab_size)
    params = request.params
    if request.pooling not in (None, *get_args(Pooling)):
        raise RequestError(
            f"pooling must be 'mean' or 'last', not {request.pooling!r}", param="pooling"
        )
    if request.pooling is not None and params != NO_OUTPUT:
        raise RequestError("an embedding has no sampling parameters", param="pooling")
    for name, ids in (
        ("prompt", prompt), ("stop_token_ids", params.stop_token_ids),
        ("logit_bias", tuple(params.logit_bias)),
    ):  # fmt: skip
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            wrong = min(ids) if min(ids) < 0 else max(ids)
            raise RequestError(
                f"{name} has the token id {wrong}; the vocabulary's ids are 0 to {vocab_size - 1}",
                param=name,
            )
    if params.stop and not has_tokenizer:
        raise RequestError("stop strings need a tokenizer, and there is none", param="stop")
    wanted = max(params.most_tokens(max(1, max_context - len(prompt))), params.min_tokens)
    if len(prompt) + wanted > max_context:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens and up to {wanted} are to be generated, "
            f"together more than the context of {max_context}; shorten the prompt or "
            "ask for fewer tokens"
        )
    return prompt


def _ids(request: Request, vocab_size: int) -> array[int]:
    try:
        if bool in map(type, request.prompt_token_ids):
            raise TypeError
        prompt = array("i", request.prompt_token_ids)
    except (TypeError, OverflowError):
        raise RequestError(
            f"prompt token ids must be integers from 0 to {vocab_size - 1}", param="prompt"
        ) from None
    if not prompt:
        raise RequestError("the prompt has no tokens", param="prompt")
    return prompt
