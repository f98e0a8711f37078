"""What requests for embeddings have in common in every API."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.engine.errors import RequestError
from tidemill.engine.pooling import Pooling
from tidemill.llm.embeddings import check_dimensions, choose_pooling, fit_text
from tidemill.llm.prompts import PreparedPrompt
from tidemill.server.models import LoadedModel

MAX_TEXTS = 2048  # of one request, as OpenAI has it

Texts = Sequence[str | Sequence[int]]


def check_vector(model: LoadedModel, pooling: Pooling | None, dimensions: int | None) -> Pooling:
    """How to pool. Raises RequestError for what the model cannot give."""
    check_dimensions(dimensions, model.opened.model.config.d_model)
    return choose_pooling(pooling, model.opened.checkpoint)


def prepare_texts(
    model: LoadedModel, texts: Texts, *, truncate: int | None, context: int | None = None
) -> list[PreparedPrompt]:
    """Each text tokenised, of at most ``context`` tokens (None: as many as the model takes). Raises
    RequestError, ContextLengthError for one that is too long."""
    most: int = model.worker.info["max_context"] if context is None else context
    prompting = model.prompting
    found = []
    for i, text in enumerate(texts):
        if isinstance(text, str) and truncate is not None:
            text = text[: prompting.most_characters]
        whole = (
            prompting.text(text)
            if isinstance(text, str)
            else prompting.tokens(text, truncate=truncate is not None)
        )
        if not whole.token_ids:
            raise RequestError(f"prompt: text {i} has no tokens", param="prompt")
        ids = fit_text(
            whole.token_ids, context=most, truncate=truncate,
            end_ids=prompting.tokenizer.eos_ids,
        )  # fmt: skip
        found.append(PreparedPrompt(whole.text, tuple(ids)))
    return found
