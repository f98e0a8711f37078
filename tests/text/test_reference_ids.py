"""Token ids of the two real models equal llama.cpp's (recorded by make_llama_cpp_token_ids.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemill.text.gguf_tokenizer import GgufTokenizer
from tidemill.text.loading import load_tokenizer
from tidemill.weights import open_checkpoint

FIXTURES = Path(__file__).parents[1] / "fixtures" / "token_ids"
MODELS = ["smollm2", "gemma3"]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, real_model: Callable[[str], Path]) -> Any:
    checkpoint = open_checkpoint(real_model(request.param))
    tokenizer = load_tokenizer(checkpoint.format, checkpoint.metadata, checkpoint.folder)
    records = json.loads((FIXTURES / f"{request.param}.json").read_text())
    return request.param, tokenizer, records


def test_plain_ids(model: tuple[str, GgufTokenizer, list[dict[str, Any]]]) -> None:
    _, tokenizer, records = model
    for record in records:
        ids = tokenizer.encode(record["text"], add_special=False)
        assert ids == record["plain"], record["text"]


def test_ids_with_special_tokens(model: tuple[str, GgufTokenizer, list[dict[str, Any]]]) -> None:
    name, tokenizer, records = model
    for record in records:
        ids = tokenizer.encode(record["text"], add_special=True, parse_special=True)
        expected = record["full"]
        bos = tokenizer.bos_id
        if name == "gemma3" and record["text"].startswith("<bos>"):
            assert expected[:2] == [bos, bos]  # llama.cpp doubles it, with a warning
            expected = expected[1:]
        assert ids == expected, record["text"]


def test_decoding_gives_the_text_back(
    model: tuple[str, GgufTokenizer, list[dict[str, Any]]],
) -> None:
    name, tokenizer, records = model
    for record in records:
        text = record["text"]
        if name == "gemma3":
            text = text.replace("▁", " ")  # SentencePiece cannot tell the two
        assert tokenizer.decode(record["plain"]) == text


def test_what_the_files_declare(real_model: Callable[[str], Path]) -> None:
    smollm2, gemma3 = (
        load_tokenizer(c.format, c.metadata, c.folder)
        for c in (open_checkpoint(real_model(name)) for name in MODELS)
    )
    assert (smollm2.vocab_size, smollm2.bos_id, smollm2.eos_id) == (49152, 1, 2)
    assert {0, 2} <= smollm2.eos_ids
    assert smollm2.encode("x")[0] != 1  # its file says: no BOS
    assert smollm2.chat_template is not None
    assert (gemma3.vocab_size, gemma3.bos_id, gemma3.eos_id) == (262144, 2, 1)
    assert gemma3.eos_ids == {1, 106}  # <eos>, <end_of_turn>
    assert gemma3.encode("x")[0] == 2
    assert gemma3.chat_template is None
    assert gemma3.encode("</s>", add_special=False) == [212]  # an HTML tag here, not a control
