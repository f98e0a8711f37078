"""One way to a tokenizer, whatever format the model is in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tidemill.text.errors import TokenizerError
from tidemill.text.gguf_tokenizer import tokenizer_from_gguf
from tidemill.text.vocabulary_tokenizer import VocabularyTokenizer


def load_tokenizer(
    format: Literal["gguf", "safetensors"],
    metadata: Mapping[str, Any],
    folder: Path,
    *,
    pre: str | None = None,
) -> VocabularyTokenizer:
    """The tokenizer of a checkpoint; the arguments are a Checkpoint's fields of the same names.

    ``pre`` names the pre-tokenizer of a GGUF file that does not name it itself, or wrongly.
    Raises TokenizerError.
    """
    if format == "gguf":
        return tokenizer_from_gguf(metadata, pre=pre)
    if pre is not None:
        raise TokenizerError(
            "a pre-tokenizer can be given for GGUF files only; tokenizer.json has its own"
        )
    from tidemill.text.hf_tokenizer import tokenizer_from_hf  # with all of `tokenizers`

    text_config = metadata.get("text_config")
    config = text_config if isinstance(text_config, Mapping) else metadata
    vocab_size = config.get("vocab_size")
    return tokenizer_from_hf(folder, vocab_size=vocab_size if type(vocab_size) is int else None)
