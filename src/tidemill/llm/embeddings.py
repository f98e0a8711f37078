"""Embeddings: what is pooled by default, and how a pooled vector becomes the one that is wanted."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from tidemill.engine.errors import ContextLengthError, RequestError
from tidemill.engine.params import as_integer
from tidemill.engine.pooling import Pooling
from tidemill.llm.outputs import RequestOutput
from tidemill.weights.base import Checkpoint

Vector = npt.NDArray[np.float32]

# ``<architecture>.pooling_type`` of GGUF files, as llama.cpp numbers them.
_GGUF_POOLING: dict[int, Pooling | None] = {0: None, 1: "mean", 3: "last"}


def choose_pooling(asked: Pooling | None, checkpoint: Checkpoint) -> Pooling:
    """What was asked for, or what the model's file says, or "mean". Raises RequestError if the file
    says what there is not here: the first token's state, or a ranking head."""
    if asked is not None:
        return asked
    kind = checkpoint.metadata.get(_pooling_key(checkpoint), 0)
    if not isinstance(kind, int) or kind not in _GGUF_POOLING:
        raise RequestError(
            f"pooling: this model's own way (pooling_type {kind}) is not supported; ask for 'mean' "
            "or 'last'",
            param="pooling",
        )
    return _GGUF_POOLING[kind] or "mean"


def says_pooling(checkpoint: Checkpoint) -> bool:
    """Whether the file says how it is to be pooled, as those of models made for embeddings do."""
    return _pooling_key(checkpoint) in checkpoint.metadata


def _pooling_key(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.metadata.get('general.architecture')}.pooling_type"


def vector_of(output: RequestOutput, *, dimensions: int | None, normalize: bool) -> Vector:
    """The first ``dimensions`` of what was pooled (for models trained so that these are good by
    themselves: Kusupati et al. 2022, "Matryoshka Representation Learning"), of length 1 if
    ``normalize``: float32 (dimensions,). Raises RuntimeError if the request failed."""
    if output.embedding is None:
        raise RuntimeError(output.error or "the request was dropped")
    vector = output.embedding[:dimensions]
    length = np.linalg.norm(vector.astype(np.float64))
    if not normalize or length == 0:  # a vector of zeros has no direction
        return vector
    return (vector / length).astype(np.float32)


def check_dimensions(dimensions: int | None, width: int) -> None:
    """Raises RequestError unless a vector of ``width`` has so many."""
    if dimensions is not None and not 1 <= as_integer(dimensions, "dimensions") <= width:
        raise RequestError(
            f"dimensions must be from 1 to {width}, the width of this model, not {dimensions}",
            param="dimensions",
        )


def fit_text(
    token_ids: Sequence[int], *, context: int, truncate: int | None, end_ids: Collection[int]
) -> Sequence[int]:
    """The ids of a text to embed, of which there may be ``context``. Longer ones are an error
    (ContextLengthError), unless ``truncate`` says how many of the first to keep (-1: as many as
    there may be). An end token that closes them stays where models of the last token look."""
    if truncate is not None:
        most = context if truncate == -1 else as_integer(truncate, "truncate_prompt_tokens")
        if not 1 <= most <= context:
            raise RequestError(
                f"truncate_prompt_tokens must be -1 or from 1 to {context}, not {truncate}",
                param="truncate_prompt_tokens",
            )
        if len(token_ids) > most:
            closing = token_ids[-1:] if token_ids[-1] in tuple(end_ids) else ()
            return [*token_ids[: most - len(closing)], *closing]
    if len(token_ids) > context:
        raise ContextLengthError(
            f"the text to embed has {len(token_ids)} tokens, more than the context of {context}; "
            "shorten it, or have it cut off (truncate_prompt_tokens)"
        )
    return token_ids
