"""Small byte-level BPE tokenizers, trained on the spot, and GGUF metadata that describes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from support.texts import TEXTS

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def split(*patterns: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of a tokenizer.json with these patterns."""
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*steps, last])


def train(pre_tokenizer: pre_tokenizers.PreTokenizer, vocab_size: int = 600) -> Tokenizer:
    """A tokenizer that has seen TEXTS, all 256 bytes and SPECIAL (ids 0 to 2)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TEXTS, *TEXTS], trainer)
    return tokenizer


def gguf_metadata(tokenizer: Tokenizer, pre: str, **extra: Any) -> dict[str, Any]:
    """What a converter would write for ``tokenizer``; ``extra`` are more tokenizer.ggml keys."""
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    types = np.ones(len(tokens), np.int32)
    types[: len(SPECIAL)] = 3
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": types,
        "merges": [" ".join(merge) for merge in model["merges"]],
        "bos_token_id": 0,
        "eos_token_id": 2,
        **extra,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def write_hf_folder(folder: Path, tokenizer: Tokenizer, **config: Any) -> Path:
    """A folder with tokenizer.json and, from ``config``, tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
