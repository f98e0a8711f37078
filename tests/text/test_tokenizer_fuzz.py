"""Damaged and hostile tokenizer descriptions: TokenizerError, or a tokenizer that works."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from support.tiny_tokenizers import gguf_metadata, train, write_hf_folder
from tidemill.text.errors import TokenizerError
from tidemill.text.gguf_tokenizer import tokenizer_from_gguf
from tidemill.text.hf_tokenizer import tokenizer_from_hf
from tidemill.text.vocabulary_tokenizer import VocabularyTokenizer

LIBRARY = train(pre_tokenizers.ByteLevel(add_prefix_space=False), 300)
BYTE_LEVEL = gguf_metadata(LIBRARY, "gpt-2")
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
SPM = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *BYTE_TOKENS, "▁", "a", "b", "ab", "<b>"],
    "tokenizer.ggml.scores": np.array([0.0] * 259 + [-1, -2, -3, -4, 0], np.float32),
    "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * 4 + [4], np.int32),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.add_space_prefix": True,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.chat_template": "{{ 1 }}",
}
UNIGRAM = {
    **SPM,
    "tokenizer.ggml.model": "t5",
    "tokenizer.ggml.remove_extra_whitespaces": True,
    "tokenizer.ggml.precompiled_charsmap": np.zeros(0, np.uint8),
}
VALID = {"gpt2": BYTE_LEVEL, "llama": SPM, "t5": UNIGRAM}
TEXT = "ab <s></s> <b>é\n  <|im_end|>\0"


def exercise(tokenizer: VocabularyTokenizer) -> None:
    """A tokenizer that was accepted must work."""
    for special in (False, True):
        ids = tokenizer.encode(TEXT, add_special=special, parse_special=special)
        assert all(0 <= token < tokenizer.vocab_size for token in ids)
        tokenizer.decode(ids)
    tokenizer.encode_guarded(TEXT)
    assert all(0 <= token < tokenizer.vocab_size for token in tokenizer.eos_ids)
    for token in range(tokenizer.vocab_size):
        assert isinstance(tokenizer.token_bytes(token), bytes)


def survives(make: Callable[[], VocabularyTokenizer]) -> None:
    with contextlib.suppress(TokenizerError):
        exercise(make())


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.one_of(st.integers(-5, 300), st.text(max_size=3), st.none()), max_size=5),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.sampled_from(
        [
            np.zeros((2, 2)),
            np.array(["a"]),
            np.array(3),
            np.array([np.nan] * 264),
            np.array([np.inf] * 264, np.float32),
            np.arange(264, dtype=np.uint64),
            np.full(264, 2**40),
            object(),
        ]
    ),
)


@pytest.mark.parametrize("kind", VALID)
def test_the_valid_ones_are_accepted(kind: str) -> None:
    exercise(tokenizer_from_gguf(VALID[kind]))


@settings(
    max_examples=250,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.data(), st.sampled_from(sorted(VALID)), st.integers(1, 3))
def test_keys_with_junk(data: st.DataObject, kind: str, edits: int) -> None:
    metadata = dict(VALID[kind])
    for _ in range(edits):
        key = data.draw(st.sampled_from(sorted(metadata)))
        metadata[key] = data.draw(junk)
    survives(lambda: tokenizer_from_gguf(metadata))


@pytest.mark.parametrize("kind", VALID)
def test_missing_keys(kind: str) -> None:
    for key in VALID[kind]:
        metadata = {name: value for name, value in VALID[kind].items() if name != key}
        survives(lambda metadata=metadata: tokenizer_from_gguf(metadata))  # type: ignore[misc]
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.model"):
        tokenizer_from_gguf({})


@pytest.mark.parametrize("kind", VALID)
def test_arrays_that_do_not_match(kind: str) -> None:
    for key in ("tokens", "scores", "token_type"):
        name = f"tokenizer.ggml.{key}"
        if name not in VALID[kind]:
            continue
        for change in (lambda v: v[:-1], lambda v: v[:0], lambda v: [*v, v[0]]):
            with pytest.raises(TokenizerError):
                tokenizer_from_gguf({**VALID[kind], name: change(VALID[kind][name])})


def test_entries_with_junk() -> None:
    rng = random.Random(7)
    values: list[Any] = [None, 5, b"\xff\xfe", "", "a b", "\ud800", "x" * 3000, "a", "▁▁", "\0", []]
    for _ in range(120):
        kind = rng.choice(sorted(VALID))
        metadata = copy.deepcopy(VALID[kind])
        for key in ("tokens", "merges"):
            array = metadata.get(f"tokenizer.ggml.{key}")
            if array is not None and rng.random() < 0.7:
                for _ in range(rng.randint(1, 3)):
                    array[rng.randrange(len(array))] = rng.choice(values)
        survives(lambda metadata=metadata: tokenizer_from_gguf(metadata))  # type: ignore[misc]


def test_duplicate_tokens_are_refused() -> None:
    tokens = [*SPM["tokenizer.ggml.tokens"]]
    tokens[260] = "ab"
    with pytest.raises(TokenizerError, match="has 'ab' twice, as 260 and 262"):
        tokenizer_from_gguf({**SPM, "tokenizer.ggml.tokens": tokens})


def test_empty_tokens_are_never_produced() -> None:
    tokens = [*SPM["tokenizer.ggml.tokens"]]
    tokens[260] = tokens[261] = ""
    exercise(tokenizer_from_gguf({**SPM, "tokenizer.ggml.tokens": tokens}))


def test_a_huge_special_token_is_refused() -> None:
    tokens = [*SPM["tokenizer.ggml.tokens"]]
    tokens[-1] = "b" * 5000
    tokenizer = tokenizer_from_gguf({**SPM, "tokenizer.ggml.tokens": tokens})
    with pytest.raises(TokenizerError, match="5,000 characters"):
        tokenizer.encode("b")


@pytest.mark.parametrize(
    "charsmap",
    [
        b"\x00",
        b"\xff\xff\xff\xff",
        struct.pack("<I", 4) + b"\xff" * 8,
        struct.pack("<I", 1024) + b"\xff" * 1024 + b"abc\0",
        struct.pack("<I", 1024) + bytes(range(256)) * 4 + b"\xff\0\xfe\0",
        struct.pack("<I", 0) + b"abc",
    ],
)
def test_hostile_charsmaps(charsmap: bytes) -> None:
    metadata = {
        **UNIGRAM,
        "tokenizer.ggml.precompiled_charsmap": np.frombuffer(charsmap, np.uint8),
    }
    survives(lambda: tokenizer_from_gguf(metadata))


def test_tokenizer_json_with_random_damage(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path, LIBRARY)
    good = (folder / "tokenizer.json").read_bytes()
    rng = random.Random(11)
    for _ in range(60):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(data))
            match rng.randrange(3):
                case 0:
                    data[place] = rng.randrange(256)
                case 1:
                    del data[place : place + rng.randint(1, 200)]
                case 2:
                    data[place:place] = data[: rng.randint(1, 50)]
        (folder / "tokenizer.json").write_bytes(data)
        survives(lambda: tokenizer_from_hf(folder))


def test_tokenizer_json_with_changed_values(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path, LIBRARY)
    good = json.loads((folder / "tokenizer.json").read_text())
    rng = random.Random(12)
    values = [None, True, -1, 2**63, 1.5, "", "x", [], {}, [1], {"type": "ByteLevel"}]
    for _ in range(80):
        state = copy.deepcopy(good)
        where = rng.choice(["top", "model", "added", "decoder", "pre_tokenizer"])
        place: dict[str, Any] = (
            state
            if where == "top"
            else rng.choice(state["added_tokens"])
            if where == "added"
            else state[where]
        )
        place[rng.choice(sorted(place))] = rng.choice(values)
        (folder / "tokenizer.json").write_text(json.dumps(state))
        survives(lambda: tokenizer_from_hf(folder))
