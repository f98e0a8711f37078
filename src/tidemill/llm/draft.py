"""The draft model of speculative decoding: found, and checked to speak the same vocabulary."""

from __future__ import annotations

import os
from dataclasses import replace

from tidemill.llm.loading import OnStage, OpenModel, open_model
from tidemill.store.base import Progress
from tidemill.text.base import Tokenizer


def open_draft(
    name: str | os.PathLike[str],
    target: OpenModel,
    *,
    offline: bool | None = None,
    progress: Progress | None = None,
    on_stage: OnStage | None = None,
) -> OpenModel:
    """Open the model that is to guess tokens for ``target``.

    Raises what ``open_model`` raises, and ValueError if the vocabularies differ.
    """
    opened = open_model(name, offline=offline, progress=progress, on_stage=on_stage)
    difference = vocabulary_difference(target.tokenizer, opened.tokenizer)
    if difference is not None:
        raise ValueError(
            f"{opened.name} cannot guess for {target.name}: {difference}; a draft model needs the "
            "same vocabulary, so take a smaller model of the same family"
        )
    return replace(opened, max_context=min(opened.max_context, target.max_context))


def vocabulary_difference(target: Tokenizer, draft: Tokenizer) -> str | None:
    """Where the token ids of two models do not mean the same; None if they do.

    One may have more rows of logits than the other, as far as no token stands for them."""
    a, b = target.vocab_size, draft.vocab_size
    for i in range(max(a, b)):
        ours = target.token_bytes(i) if i < a else b""
        theirs = draft.token_bytes(i) if i < b else b""
        if ours != theirs:
            return f"token {i} is {_shown(ours)} in one and {_shown(theirs)} in the other"
    return None


def _shown(token: bytes) -> str:
    return repr(token.decode("utf-8", "replace")[:40]) if token else "not there"
