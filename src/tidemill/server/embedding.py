"""What requests for embeddings have in common in every API."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.engine.errors import RequestError
from tidemill.engine.pooling import Pooling
from tidemill.llm.embeddings import check_dimensions, choose_pooling, fit_text
from tidemill.server.models import LoadedModel

MAX_TEXTS = 2048  # of one request, as OpenAI has it

Texts = Sequence[str | Sequence[int]]


def check_vector(model: LoadedModel, pooling: Pooling | None, dimensions: int | None) -> Pooling:
    """How to pool. Raises RequestError for what the model cannot give."""
    check_dimensions(dimensions, model.opened.model.config.d_model)
    return choose_pooling(pooling, model.opened.checkpoint)


def text_ids(
    model: LoadedModel, texts: Texts, *, truncate: int | None, context: int | None = None
) -> list[Sequence[int]]:
    """The token ids of each text, of which there may be ``context`` (None: as many as the model
    takes). Raises RequestError, ContextLengthError for one that is too long."""
    most: int = model.worker.info["max_context"] if context is None else context
    end_ids = model.opened.tokenizer.eos_ids
    found: list[Sequence[int]] = []
    for i, text in enumerate(texts):
        ids = model.opened.tokenizer.encode(text) if isinstance(text, str) else text
        if not ids:
            raise RequestError(f"prompt: text {i} has no tokens", param="prompt")
        found.append(fit_text(ids, context=most, truncate=truncate, end_ids=end_ids))
    return found
