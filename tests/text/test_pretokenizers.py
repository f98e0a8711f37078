"""The pre-tokenizer table against what the families' tokenizer.json files say.

For each family a tokenizer is trained with the family's own pre-tokenizer, written here as it
stands in tokenizer.json, and then described by GGUF metadata: both must give the same ids.
"""

from __future__ import annotations

import logging
import random

import pytest
from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from support.texts import TEXTS
from support.tiny_tokenizers import gguf_metadata, split, train
from tidemill.text.errors import TokenizerError
from tidemill.text.gguf_tokenizer import tokenizer_from_gguf
from tidemill.text.pretokenizers import PRE_TOKENIZERS

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)

FAMILIES: dict[str, PreTokenizer] = {
    "gpt-2": BYTE_LEVEL,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), BYTE_LEVEL]),
    "falcon": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation("contiguous"),
            BYTE_LEVEL,
            pre_tokenizers.Digits(False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    ),
    "llama-bpe": split(LLAMA3),
    "dbrx": split(LLAMA3),
    "qwen2": split(QWEN2),
    "qwen35": split(QWEN35),
    "tekken": split(TEKKEN),
    "gpt-4o": split(GPT4O),
    "deepseek-v3": split(*DEEPSEEK_V3),
    "deepseek-coder": split(*DEEPSEEK_CODER),
    "command-r": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), BYTE_LEVEL]),
    "olmo": BYTE_LEVEL,
    "poro-chat": split(" ?[^(\\s|.,!?…。，、।۔،)]+"),
}


# Families whose tokenizer.json composes characters before anything else.
NFC = {"qwen2", "command-r", "olmo"}


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_equal_those_of_the_familys_tokenizer(name: str) -> None:
    reference = train(FAMILIES[name])
    if name in NFC:
        reference.normalizer = normalizers.NFC()
    tokenizer = tokenizer_from_gguf(gguf_metadata(reference, name))
    rng = random.Random(name)
    characters = sorted({char for text in TEXTS for char in text})
    noise = ["".join(rng.choices(characters, k=rng.randint(1, 30))) for _ in range(100)]
    for text in [text for text in [*TEXTS, *noise] if "<|" not in text]:
        expected = reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=False) == expected, text


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_pattern_compiles_and_keeps_the_text(name: str) -> None:
    splitter = split(*PRE_TOKENIZERS[name].patterns)
    text = "I'LL pay 12345 €, Été\u0301 ABCdef!!\n\n  a_b(c) 你好，世界 \t\n ok  "
    pieces = [piece for piece, _ in splitter.pre_tokenize_str(text)]
    mapped = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert "".join(pieces) == mapped.pre_tokenize_str(text)[0][0]
    assert len(pieces) > 8


def test_families_differ_where_they_should() -> None:
    def pieces(name: str, text: str) -> list[str]:
        patterns = PRE_TOKENIZERS[name].patterns
        splitter = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        )
        return [piece for piece, _ in splitter.pre_tokenize_str(text)]

    assert pieces("llama3", "12345") == ["123", "45"]
    assert pieces("qwen2", "12345") == ["1", "2", "3", "4", "5"]
    assert pieces("gpt-2", "12345") == ["12345"]
    assert pieces("smollm", " 12") == [" ", "1", "2"]
    assert pieces("gpt-4o", "I'LL camelCase") == ["I'LL", " camel", "Case"]
    assert pieces("tekken", "I'LL camelCase") == ["I", "'LL", " camel", "Case"]
    assert pieces("llama3", "it's I'LL") == ["it", "'s", " I", "'LL"]
    assert pieces("gpt-2", "it's I'LL") == ["it", "'s", " I", "'", "LL"]
    assert pieces("deepseek-v3", "说hello世界") == ["说", "hello", "世界"]
    assert pieces("qwen2", "a!\n\nb") == ["a", "!\n\n", "b"]
    assert pieces("gpt-2", "a!\n\nb") == ["a", "!", "\n", "\n", "b"]


def test_an_unknown_pre_tokenizer_is_refused_by_name() -> None:
    metadata = gguf_metadata(train(BYTE_LEVEL), "brand-new")
    with pytest.raises(TokenizerError, match=r"'brand-new'.*gpt-2.*llama-bpe"):
        tokenizer_from_gguf(metadata)


def test_a_missing_pre_tokenizer_is_refused() -> None:
    metadata = gguf_metadata(train(BYTE_LEVEL), "gpt-2")
    del metadata["tokenizer.ggml.pre"]
    with pytest.raises(TokenizerError, match=r"does not name its pre-tokenizer.*gpt-2"):
        tokenizer_from_gguf(metadata)


def test_an_override_is_used_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    reference = train(BYTE_LEVEL)
    metadata = gguf_metadata(reference, "brand-new")
    with caplog.at_level(logging.WARNING, logger="tidemill"):
        tokenizer = tokenizer_from_gguf(metadata, pre="gpt-2")
    assert "'gpt-2'" in caplog.text
    assert "'brand-new'" in caplog.text
    text = "it's 12345 I'LL"
    assert tokenizer.encode(text, add_special=False) == reference.encode(text).ids


def test_an_override_must_be_known() -> None:
    metadata = gguf_metadata(train(BYTE_LEVEL), "gpt-2")
    with pytest.raises(TokenizerError, match="unknown pre-tokenizer 'gpt-5'"):
        tokenizer_from_gguf(metadata, pre="gpt-5")


def test_ignore_merges_takes_whole_pieces_first() -> None:
    """Llama 3 has tokens that its merges never lead to."""
    metadata = gguf_metadata(train(split(LLAMA3)), "llama-bpe")
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "zqzq"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1]
    whole = len(metadata["tokenizer.ggml.tokens"]) - 1
    assert tokenizer_from_gguf(metadata).encode("zqzq") == [0, whole]  # and BOS, by family
    metadata["tokenizer.ggml.token_type"][whole] = 3  # but never a control token
    assert whole not in tokenizer_from_gguf(metadata).encode("zqzq")
    metadata["tokenizer.ggml.token_type"][whole] = 1
    metadata["tokenizer.ggml.pre"] = "dbrx"
    assert whole not in tokenizer_from_gguf(metadata).encode("zqzq")
