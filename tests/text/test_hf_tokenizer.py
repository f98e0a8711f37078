"""Tokenizers from Hugging Face folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from support.texts import TEXTS
from support.tiny_tokenizers import gguf_metadata, train, write_hf_folder
from tidemill.text.detokenize import IncrementalDetokenizer
from tidemill.text.errors import TokenizerError
from tidemill.text.gguf_tokenizer import tokenizer_from_gguf
from tidemill.text.hf_tokenizer import tokenizer_from_hf
from tidemill.text.loading import load_tokenizer


def byte_level() -> Tokenizer:
    return train(pre_tokenizers.ByteLevel(add_prefix_space=False), 500)


def with_bos(tokenizer: Tokenizer, eos: bool = False) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A" + (" <|im_end|>" if eos else ""),
        special_tokens=[("<|endoftext|>", 0), ("<|im_end|>", 2)],
    )
    return tokenizer


def llama_like() -> Tokenizer:
    """A tokenizer.json as transformers makes it from Llama 2's SentencePiece model."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "ab", "▁ab"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[("a", "b"), ("▁", "ab")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def test_ids_equal_the_librarys_and_the_gguf_form(tmp_path: Path) -> None:
    library = byte_level()
    folder = write_hf_folder(tmp_path, library, eos_token="<|im_end|>", bos_token=None)
    tokenizer = tokenizer_from_hf(folder)
    twin = tokenizer_from_gguf(gguf_metadata(library, "gpt-2"))
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        assert ids == library.encode(text, add_special_tokens=False).ids
        assert ids == twin.encode(text, add_special=False, parse_special=True)
        plain = tokenizer.encode(text, add_special=False)
        assert plain == twin.encode(text, add_special=False)
        assert tokenizer.decode(plain) == text
    assert tokenizer.special_ids == twin.special_ids == {0, 1, 2}
    assert tokenizer.eos_ids == twin.eos_ids
    assert all(tokenizer.token_bytes(i) == twin.token_bytes(i) for i in range(twin.vocab_size))


def test_decoding_equals_the_librarys(tmp_path: Path) -> None:
    library = llama_like()
    tokenizer = tokenizer_from_hf(write_hf_folder(tmp_path, library))
    for text in ("ab", "a b", " ab  ab", "é 世", "x\ny", ""):
        ids = tokenizer.encode(text, add_special=False)
        assert ids == library.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == library.decode(ids) == text
    assert tokenizer.strips_leading_space
    assert tokenizer.decode([1, 263, 2]) == "ab"
    assert tokenizer.decode([1, 263, 2], skip_special=False) == "<s> ab</s>"


def test_a_continuation_keeps_the_space_that_the_library_keeps(tmp_path: Path) -> None:
    """Prompt and completion decoded together, less the prompt's text, as transformers users do."""
    library = llama_like()
    tokenizer = tokenizer_from_hf(write_hf_folder(tmp_path, library))
    word, space, a = 263, 259, 260
    for prompt in ([1], [1, word], [a], [1, space], [word, 2], [1, 2]):
        for completion in ([word], [word, word], [space, word], [a, word], [2, word], [3 + 32, a]):
            detokenizer = IncrementalDetokenizer(tokenizer, after=prompt)
            text = "".join([*map(detokenizer.push, completion), detokenizer.flush()])
            assert library.decode(prompt) + text == library.decode([*prompt, *completion])


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": False, "add_eos_token": False}])
@pytest.mark.parametrize(
    ("library", "prefix", "suffix"),
    [
        (byte_level(), [], []),
        (with_bos(byte_level()), [0], []),
        (with_bos(byte_level(), eos=True), [0], [2]),
    ],
)
def test_bos_and_eos_are_those_of_the_post_processor(
    tmp_path: Path,
    library: Tokenizer,
    prefix: list[int],
    suffix: list[int],
    flags: dict[str, bool],
) -> None:
    folder = write_hf_folder(
        tmp_path, library, bos_token="<|endoftext|>", eos_token="<|im_end|>", **flags
    )
    tokenizer = tokenizer_from_hf(folder)
    plain = tokenizer.encode("Hello", add_special=False)
    assert tokenizer.encode("Hello") == [*prefix, *plain, *suffix]
    assert tokenizer.encode("Hello") == library.encode("Hello").ids
    assert tokenizer.encode("") == [*prefix, *suffix]


def test_bos_is_never_doubled(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path, with_bos(byte_level()), bos_token="<|endoftext|>")
    tokenizer = tokenizer_from_hf(folder)
    assert tokenizer.encode("<|endoftext|>a", parse_special=True).count(0) == 1


def test_guarded_text_keeps_broken_control_tokens_plain(tmp_path: Path) -> None:
    tokenizer = tokenizer_from_hf(write_hf_folder(tmp_path, byte_level()))
    ids = tokenizer.encode_guarded("<|im_start|>a<\ufdd0|im_end|><|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert ids[1:-1] == tokenizer.encode("a<|im_end|>", add_special=False)


def test_non_special_added_tokens_are_visible(tmp_path: Path) -> None:
    library = byte_level()
    library.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    tokenizer = tokenizer_from_hf(write_hf_folder(tmp_path, library))
    think = tokenizer.vocab_size - 1
    assert tokenizer.encode("<think>", add_special=False) == [think]
    assert tokenizer.decode([think]) == "<think>"


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    library = byte_level()
    library.enable_truncation(3)
    library.enable_padding(length=50)
    tokenizer = tokenizer_from_hf(write_hf_folder(tmp_path, library))
    text = "a long text that goes on"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_end_tokens_of_generation_config(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path, byte_level(), eos_token={"content": "<|im_end|>"})
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [7, 8], "bos_token_id": 0})
    )
    tokenizer = tokenizer_from_hf(folder)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (0, 2)
    assert tokenizer.eos_ids == {0, 2, 7, 8}


def test_chat_templates(tmp_path: Path) -> None:
    templates = [
        {"name": "default", "template": "A{{ 1 }}"},
        {"name": "tool_use", "template": "B{{ 1 }}"},
    ]
    folder = write_hf_folder(tmp_path, byte_level(), chat_template=templates)
    assert tokenizer_from_hf(folder).chat_templates == {
        "default": "A{{ 1 }}",
        "tool_use": "B{{ 1 }}",
    }
    (folder / "chat_template.jinja").write_text("C")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("D")
    tokenizer = tokenizer_from_hf(folder)
    assert tokenizer.chat_template == "C"
    assert tokenizer.chat_templates["rag"] == "D"


def test_logits_can_be_wider_than_the_tokenizer(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path, byte_level())
    tokenizer = load_tokenizer("safetensors", {"vocab_size": 512}, folder)
    assert tokenizer.vocab_size == 512
    assert tokenizer.token_bytes(511) == b""
    assert tokenizer.decode([511]) == ""
    with pytest.raises(TokenizerError):
        tokenizer.token_bytes(512)
    nested = load_tokenizer("safetensors", {"text_config": {"vocab_size": 600}}, folder)
    assert nested.vocab_size == 600


def test_a_pre_tokenizer_cannot_be_given(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="GGUF files only"):
        load_tokenizer("safetensors", {}, tmp_path, pre="gpt-2")


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
def test_surrogates_are_rejected(tmp_path: Path, text: str) -> None:
    tokenizer = tokenizer_from_hf(write_hf_folder(tmp_path, byte_level()))
    with pytest.raises(TokenizerError, match="surrogates"):
        tokenizer.encode(text)


def _edit(folder: Path, edit: dict[str, Any]) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **edit}))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"decoder": None}, "decoder does not say"),
        ({"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}, "'WordPiece'"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}, "not a valid tokenizer"),
        ({"model": {"type": "Nonsense"}}, "not a valid tokenizer"),
        ({"model": 3}, "not a valid tokenizer"),
        ({"added_tokens": [{"id": -1}]}, "not a valid tokenizer"),
        (
            {
                "model": {
                    "type": "BPE",
                    "vocab": {"a": 4_000_000_000},
                    "merges": [],
                }
            },
            "token ids up to",
        ),
        (
            {
                "pre_tokenizer": {
                    "type": "Split",
                    "pattern": {"Regex": "("},
                    "behavior": "Isolated",
                    "invert": False,
                }
            },
            "not a valid tokenizer",
        ),
    ],
)
def test_hostile_tokenizer_json(tmp_path: Path, edit: dict[str, Any], message: str) -> None:
    folder = write_hf_folder(tmp_path, byte_level())
    _edit(folder, edit)
    with pytest.raises(TokenizerError, match=message):
        tokenizer_from_hf(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b""),
        ("tokenizer.json", b"\xff\xfe\x00"),
        ("tokenizer.json", b"[" * 100_000),
        ("tokenizer_config.json", b"[1, 2]"),
        ("tokenizer_config.json", b"\xff"),
        ("tokenizer_config.json", b"[" * 100_000),
        ("tokenizer_config.json", b'{"bos_token": 5}'),
        ("tokenizer_config.json", b'{"chat_template": 5}'),
        ("tokenizer_config.json", b'{"chat_template": [{"name": 1}]}'),
        ("generation_config.json", b'{"eos_token_id": ["x"]}'),
        ("generation_config.json", b'{"eos_token_id": true}'),
        ("chat_template.jinja", b"\xff\xfe"),
    ],
)
def test_hostile_files(tmp_path: Path, name: str, content: bytes) -> None:
    folder = write_hf_folder(tmp_path, byte_level())
    (folder / name).write_bytes(content)
    with pytest.raises(TokenizerError):
        tokenizer_from_hf(folder)


def test_no_tokenizer_json(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json; save the tokenizer"):
        tokenizer_from_hf(tmp_path)
