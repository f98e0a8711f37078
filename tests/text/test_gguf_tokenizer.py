"""Special tokens, flags and defaults of tokenizers from GGUF metadata."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from support.tiny_tokenizers import gguf_metadata, train
from tidemill.text.errors import TokenizerError
from tidemill.text.gguf_tokenizer import GgufTokenizer, tokenizer_from_gguf
from tidemill.text.vocabulary import TokenType

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = (TokenType(kind) for kind in range(1, 7))


def spm_metadata(
    pieces: list[tuple[str, float, TokenType]], *, byte_fallback: bool = True, **extra: Any
) -> dict[str, Any]:
    """A SentencePiece vocabulary: <unk>, <s>, </s>, perhaps 256 bytes, then ``pieces``."""
    head = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    if byte_fallback:
        head += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    texts, scores, types = zip(*head, *pieces, strict=True)
    values = {
        "model": "llama",
        "tokens": list(texts),
        "scores": np.array(scores, np.float32),
        "token_type": np.array(types, np.int32),
        **extra,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


LETTERS = [(char, -100.0, NORMAL) for char in "▁abcdehlorw<>/"]
FIRST = 3 + 256


def ids_of(tokenizer: GgufTokenizer, *texts: str) -> list[int]:
    return [list(tokenizer.vocabulary.texts).index(text) for text in texts]


def byte_level(**extra: Any) -> dict[str, Any]:
    return gguf_metadata(
        train(pre_tokenizers.ByteLevel(add_prefix_space=False), 400), "gpt-2", **extra
    )


class TestSentencePiece:
    def test_best_score_merges_first(self) -> None:
        tokenizer = tokenizer_from_gguf(
            spm_metadata([*LETTERS, ("ab", -2.0, NORMAL), ("bc", -1.0, NORMAL)])
        )
        ids = tokenizer.encode("abc", add_special=False)
        assert ids == ids_of(tokenizer, "▁", "a", "bc")

    def test_leftmost_of_equals_merges_first(self) -> None:
        tokenizer = tokenizer_from_gguf(
            spm_metadata([*LETTERS, ("ab", -1.0, NORMAL), ("ba", -1.0, NORMAL)])
        )
        ids = tokenizer.encode("babab", add_special=False)
        assert ids == ids_of(tokenizer, "▁", "ba", "ba", "b")

    def test_one_token_can_be_reached_by_different_splits(self) -> None:
        """Both (abc, d) and (a, bcd) make abcd: the leftmost wins, whatever the split."""
        pieces = [("bc", -1.0, NORMAL), ("abc", -2.0, NORMAL), ("bcd", -3.0, NORMAL)]
        tokenizer = tokenizer_from_gguf(spm_metadata([*LETTERS, *pieces, ("abcd", -4.0, NORMAL)]))
        ids = tokenizer.encode("abcd", add_special=False)
        assert ids == ids_of(tokenizer, "▁", "abcd")

    def test_bytes_stand_for_what_is_missing(self) -> None:
        tokenizer = tokenizer_from_gguf(spm_metadata(LETTERS))
        ids = tokenizer.encode("é", add_special=False)
        assert ids == ids_of(tokenizer, "▁", "<0xC3>", "<0xA9>")
        assert tokenizer.decode(ids) == "é"

    def test_without_bytes_unknowns_are_one_token(self) -> None:
        tokenizer = tokenizer_from_gguf(spm_metadata(LETTERS, byte_fallback=False))
        ids = tokenizer.encode("aéüb", add_special=False)
        assert ids == [*ids_of(tokenizer, "▁", "a"), 0, *ids_of(tokenizer, "b")]

    def test_unused_pieces_are_split_up_again(self) -> None:
        tokenizer = tokenizer_from_gguf(
            spm_metadata([*LETTERS, ("ab", -1.0, NORMAL), ("abc", -2.0, UNUSED)])
        )
        ids = tokenizer.encode("abc", add_special=False)
        assert ids == ids_of(tokenizer, "▁", "ab", "c")

    def test_text_never_merges_into_a_control_token(self) -> None:
        pieces = [("</", -1.0, NORMAL), ("s", -1.0, NORMAL), ("</s", -1.0, NORMAL)]
        tokenizer = tokenizer_from_gguf(spm_metadata([*LETTERS, *pieces]))
        ids = tokenizer.encode("</s>", add_special=False)
        assert ids == ids_of(tokenizer, "▁", "</s", ">")
        assert tokenizer.encode("</s>", add_special=False, parse_special=True) == [2]

    def test_pieces_may_cross_words(self) -> None:
        pieces = [("a▁", -1.0, NORMAL), ("a▁b", -2.0, NORMAL)]
        tokenizer = tokenizer_from_gguf(spm_metadata([*LETTERS, *pieces]))
        assert tokenizer.encode("a b", add_special=False) == ids_of(tokenizer, "▁", "a▁b")

    def test_space_prefix(self) -> None:
        pieces = [*LETTERS, ("▁a", -1.0, NORMAL)]
        with_prefix = tokenizer_from_gguf(spm_metadata(pieces))
        without = tokenizer_from_gguf(spm_metadata(pieces, add_space_prefix=False))
        assert with_prefix.encode("a a", add_special=False) == ids_of(with_prefix, "▁a", "▁a")
        assert without.encode("a a", add_special=False) == ids_of(without, "a", "▁a")
        assert with_prefix.decode(ids_of(with_prefix, "▁a", "▁a")) == "a a"
        assert without.decode(ids_of(without, "▁a", "▁a")) == " a a"

    def test_the_prefix_comes_again_after_a_control_token(self) -> None:
        tokenizer = tokenizer_from_gguf(spm_metadata([*LETTERS, ("▁a", -1.0, NORMAL)]))
        ids = tokenizer.encode("a</s>a", add_special=False, parse_special=True)
        assert ids == ids_of(tokenizer, "▁a", "</s>", "▁a")

    def test_user_defined_tokens_are_found_in_any_text_longest_first(self) -> None:
        pieces = [("<a>", 0.0, USER), ("▁▁", 0.0, USER), ("▁▁▁", 0.0, USER)]
        tokenizer = tokenizer_from_gguf(spm_metadata([*LETTERS, *pieces], add_space_prefix=False))
        ids = tokenizer.encode("a<a>    b", add_special=False)
        assert ids == ids_of(tokenizer, "a", "<a>", "   ", "▁", "b")
        assert tokenizer.decode(ids) == "a<a>    b"

    def test_long_words_and_cached_words_agree(self) -> None:
        tokenizer = tokenizer_from_gguf(
            spm_metadata([*LETTERS, ("ab", -1.0, NORMAL), ("abab", -2.0, NORMAL)])
        )
        word = "ab" * 40
        expected = ids_of(tokenizer, "▁", *["abab"] * 20)
        assert tokenizer.encode(word, add_special=False) == expected
        assert tokenizer.encode(f"{word} a", add_special=False)[:-2] == expected

    def test_defaults_of_the_kind(self) -> None:
        tokenizer = tokenizer_from_gguf(spm_metadata(LETTERS))
        assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
        assert tokenizer.encode("a")[0] == 1
        assert tokenizer.encode("", add_special=True) == [1]
        assert tokenizer.encode("", add_special=False) == []
        assert tokenizer.special_ids == {0, 1, 2}

    def test_flags_of_the_file_win(self) -> None:
        tokenizer = tokenizer_from_gguf(
            spm_metadata(LETTERS, add_bos_token=False, add_eos_token=True)
        )
        assert tokenizer.encode("a") == [*ids_of(tokenizer, "▁", "a"), 2]

    def test_phi3_tokens_swallow_white_space(self) -> None:
        metadata = spm_metadata([*LETTERS, ("<|user|>", 0.0, CONTROL)])
        metadata["general.architecture"] = "phi3"
        tokenizer = tokenizer_from_gguf(metadata)
        ids = tokenizer.encode("<|user|> \n a", add_special=False, parse_special=True)
        assert ids == ids_of(tokenizer, "<|user|>", "▁", "a")


class TestSpecialTokens:
    def test_bos_is_never_doubled(self) -> None:
        tokenizer = tokenizer_from_gguf(byte_level(add_bos_token=True))
        assert tokenizer.encode("a")[0] == 0
        ids = tokenizer.encode("<|endoftext|>a", parse_special=True)
        assert ids.count(0) == 1

    def test_control_text_is_plain_unless_asked(self) -> None:
        tokenizer = tokenizer_from_gguf(byte_level())
        text = "<|im_start|>a<|im_end|>"
        assert not {1, 2} & set(tokenizer.encode(text))
        assert tokenizer.decode(tokenizer.encode(text)) == text
        ids = tokenizer.encode(text, parse_special=True)
        assert (ids[0], ids[-1]) == (1, 2)
        assert tokenizer.decode(ids) == "a"
        assert tokenizer.decode(ids, skip_special=False) == text

    def test_guarded_text_keeps_broken_control_tokens_plain(self) -> None:
        tokenizer = tokenizer_from_gguf(byte_level())
        ids = tokenizer.encode_guarded("<|im_start|>a<\ufdd0|im_end|><|im_end|>")
        assert (ids[0], ids[-1]) == (1, 2)
        assert ids[1:-1] == tokenizer.encode("a<|im_end|>", add_special=False)

    @pytest.mark.parametrize(
        ("keys", "expected"),
        [
            ({}, {0, 2}),  # <|endoftext|> and <|im_end|> are known by name
            ({"eos_token_id": 5}, {0, 2, 5}),
            ({"eot_token_id": 6, "eom_token_id": 7}, {0, 2, 6, 7}),
        ],
    )
    def test_every_end_token_ends(self, keys: dict[str, int], expected: set[int]) -> None:
        tokenizer = tokenizer_from_gguf(byte_level(**keys))
        assert tokenizer.eos_ids == expected
        assert tokenizer.eos_ids <= tokenizer.special_ids

    def test_harmony_goes_on_after_end(self) -> None:
        pieces = [(name, 0.0, CONTROL) for name in ("<|end|>", "<|return|>", "<|call|>")]
        tokenizer = tokenizer_from_gguf(spm_metadata([*LETTERS, *pieces]))
        assert tokenizer.eos_ids == {2, *ids_of(tokenizer, "<|return|>", "<|call|>")}
        phi = tokenizer_from_gguf(spm_metadata([*LETTERS, pieces[0]]))
        assert phi.eos_ids == {2, *ids_of(phi, "<|end|>")}

    def test_html_is_no_end_token(self) -> None:
        metadata = spm_metadata(LETTERS)
        metadata["tokenizer.ggml.token_type"][2] = USER
        metadata["tokenizer.ggml.eos_token_id"] = 1
        assert tokenizer_from_gguf(metadata).eos_ids == {1}

    def test_ids_out_of_range_are_ignored_with_a_warning(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, logger="tidemill"):
            tokenizer = tokenizer_from_gguf(byte_level(eos_token_id=2**32 - 1, bos_token_id=400))
        assert tokenizer.bos_id is None
        assert "eos_token_id" in caplog.text

    def test_bos_wanted_but_absent_is_an_error(self) -> None:
        with pytest.raises(TokenizerError, match="add_bos_token is set"):
            tokenizer_from_gguf(byte_level(bos_token_id=None, add_bos_token=True))

    def test_chat_templates(self) -> None:
        metadata = byte_level()
        assert tokenizer_from_gguf(metadata).chat_template is None
        metadata["tokenizer.chat_template"] = "A"
        metadata["tokenizer.chat_template.tool_use"] = "B"
        tokenizer = tokenizer_from_gguf(metadata)
        assert tokenizer.chat_template == "A"
        assert tokenizer.chat_templates == {"default": "A", "tool_use": "B"}


class TestBytes:
    def test_token_bytes(self) -> None:
        tokenizer = tokenizer_from_gguf(byte_level())
        texts = list(tokenizer.vocabulary.texts)
        assert tokenizer.token_bytes(texts.index("Ġ")) == b" "
        assert tokenizer.token_bytes(texts.index("Ã")) == b"\xc3"
        assert tokenizer.token_bytes(1) == b"<|im_start|>"
        every = {tokenizer.token_bytes(i) for i in range(3, tokenizer.vocab_size)}
        assert {bytes([byte]) for byte in range(256)} <= every

    def test_invalid_bytes_are_replaced_once_per_bad_part(self) -> None:
        tokenizer = tokenizer_from_gguf(spm_metadata(LETTERS, add_space_prefix=False))
        byte = {b: 3 + b for b in range(256)}
        ids = [byte[0xE4], byte[0xBD], FIRST + 1, byte[0xFF], byte[0xC3], byte[0xA9]]
        assert tokenizer.decode(ids) == "\ufffda\ufffdé"

    def test_ids_outside_the_vocabulary(self) -> None:
        tokenizer = tokenizer_from_gguf(byte_level())
        for bad in (-1, tokenizer.vocab_size, 10**9):
            with pytest.raises(TokenizerError, match="not in the vocabulary"):
                tokenizer.decode([bad])
            with pytest.raises(TokenizerError, match="not in the vocabulary"):
                tokenizer.token_bytes(bad)

    def test_tokens_that_are_not_utf8_keep_their_bytes(self) -> None:
        metadata = spm_metadata([*LETTERS, ("?", -1.0, NORMAL)])
        metadata["tokenizer.ggml.tokens"][-1] = b"\xff\xfe"
        tokenizer = tokenizer_from_gguf(metadata)
        assert tokenizer.token_bytes(tokenizer.vocab_size - 1) == b"\xff\xfe"
        assert tokenizer.encode("a")

    @pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
    def test_surrogates_are_rejected(self, text: str) -> None:
        for metadata in (byte_level(), spm_metadata(LETTERS)):
            with pytest.raises(TokenizerError, match="surrogates"):
                tokenizer_from_gguf(metadata).encode(text)


def test_threads_share_a_tokenizer() -> None:
    tokenizer = tokenizer_from_gguf(spm_metadata([*LETTERS, ("ab", -1.0, NORMAL)]))
    expected = tokenizer_from_gguf(spm_metadata([*LETTERS, ("ab", -1.0, NORMAL)])).encode("ab ba")
    results: list[list[int]] = []
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        results.extend(tokenizer.encode("ab ba") for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 400
