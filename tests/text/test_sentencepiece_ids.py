"""Ids of SentencePiece vocabularies equal those of the sentencepiece library
(recorded by make_sentencepiece_ids.py)."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.texts import TEXTS
from tidemill.text.gguf_tokenizer import GgufTokenizer, tokenizer_from_gguf

FIXTURES = Path(__file__).parents[1] / "fixtures" / "sentencepiece"
CASES = ["bpe", "bpe_no_prefix", "bpe_unknown", "bpe_across_words", "unigram"]


def load(name: str) -> tuple[GgufTokenizer, list[list[int]]]:
    record = json.loads((FIXTURES / f"{name}.json").read_text())
    pieces, scores, types = zip(*record["pieces"], strict=True)
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": {"bpe": "llama", "unigram": "t5"}[record["model_type"]],
        "tokenizer.ggml.tokens": list(pieces),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.add_space_prefix": record["add_space_prefix"],
        "tokenizer.ggml.remove_extra_whitespaces": record["remove_extra_whitespaces"],
        "tokenizer.ggml.precompiled_charsmap": np.frombuffer(
            base64.b64decode(record["charsmap"]), np.uint8
        ),
        "tokenizer.ggml.unknown_token_id": types.index(2),
    }
    return tokenizer_from_gguf(metadata), record["ids"]


@pytest.mark.parametrize("name", CASES)
def test_ids(name: str) -> None:
    tokenizer, expected = load(name)
    for text, ids in zip(TEXTS, expected, strict=True):
        if name == "bpe_no_prefix" and "▁" in text:
            # A literal U+2581 counts as a space here, and next to one it makes a user-defined
            # token of two spaces; like llama.cpp we look for such tokens in the text as it is.
            continue
        assert tokenizer.encode(text, add_special=False) == ids, text
