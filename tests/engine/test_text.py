"""Text, stop strings and end tokens, through the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.fake_runner import FakeRunner
from engine.helpers import drive, make_engine, request
from tidemill.engine.base import TokenEvent

EOS, HIDDEN = 30, 31
LETTERS = [bytes([c]) for c in b"abcdefghijklmnopqrstuvwxyz"]
MORE = ["é".encode(), b"\xf0\x9f", b"\x98\x80", b"ab c", b"<eos>", b"<ctl>"]
PIECES = [*LETTERS, *MORE, *(f" w{i}".encode() for i in range(8))]


class PieceTokenizer:
    """Token i is PIECES[i]; an emoji takes two tokens."""

    vocab_size = len(PIECES)
    bos_id = None
    eos_ids = frozenset({EOS, 10_000})  # an id that the logits do not have
    special_ids = frozenset({EOS, HIDDEN})
    chat_template = None

    def encode(self, text, *, add_special=True, parse_special=False):
        raise NotImplementedError

    def decode(self, ids, *, skip_special=True):
        hidden = self.special_ids if skip_special else ()
        return b"".join(PIECES[i] for i in ids if i not in hidden).decode("utf-8", "replace")

    def token_bytes(self, token_id):
        return PIECES[token_id]


class ScriptRunner(FakeRunner):
    """Continues every prompt with ``script``, by position from the end of a prompt of one token."""

    def __init__(self, script: list[int]) -> None:
        super().__init__(vocab_size=40)
        self.script = script

    def logits_after(self, tokens):
        logits = super().logits_after(tokens).copy()
        if len(tokens) - 1 < len(self.script):
            logits[self.script[len(tokens) - 1]] = 30.0
        return logits


def run(script: list[int], **params):
    params = {"max_tokens": len(script)} | params
    engine = make_engine(ScriptRunner(script), PieceTokenizer())
    return drive(engine, [request("r", [5], **params)])["r"].samples[0]


def ids(text: str) -> list[int]:
    return [c - ord("a") for c in text.encode()]


def test_joined_deltas_are_the_decoded_text() -> None:
    script = [*ids("hello"), 26, 27, 28, 34, HIDDEN, 35]
    sample = run(script)
    assert sample.tokens == script
    assert sample.text == "helloé😀 w2 w3"
    assert run(script, skip_special_tokens=False).text == "helloé😀 w2<ctl> w3"


def test_a_character_cut_off_at_the_end_is_flushed() -> None:
    sample = run([0, 27])
    assert (sample.text, sample.finish.text, sample.finish.reason) == ("a�", "�", "length")


def test_the_models_end_token_ends_and_is_not_text() -> None:
    sample = run([*ids("abc"), EOS, *ids("def")], skip_special_tokens=False)
    assert sample.tokens == [0, 1, 2, EOS]
    assert sample.text == "abc"
    assert (sample.finish.reason, sample.finish.stop_reason) == ("stop", None)
    sample = run([*ids("abc"), EOS, *ids("def")], ignore_eos=True)
    assert sample.text == "abcdef"
    assert sample.finish.reason == "length"
    sample = run([*ids("abc"), EOS, 3], ignore_eos=True, stop_token_ids=[EOS])
    assert (sample.finish.reason, sample.finish.stop_reason) == ("stop", EOS)


def test_end_tokens_wait_for_min_tokens() -> None:
    script = [EOS, EOS, EOS, 3, EOS]
    sample = run(script, min_tokens=3)
    assert EOS not in sample.tokens[:3]
    assert sample.tokens[3:] == [3, EOS]


@pytest.mark.parametrize(
    ("script", "stop", "text", "found"),
    [
        (ids("abcdef"), ["cd"], "ab", "cd"),
        (ids("abcdef"), ["a"], "", "a"),
        (ids("abcdef"), ["xyz", "ef", "cde"], "ab", "cde"),
        ([0, 29, 3], ["b c"], "aa", "b c"),  # within one token: what follows it is not shown
        ([26, 27, 28, 0], ["😀"], "é", "😀"),  # completed by the second half of a character
        (ids("abababc"), ["abc"], "abab", "abc"),
        (ids("abcab"), ["abd"], "abcab", None),  # held back, then flushed
        ([*ids("ab"), EOS], ["abc"], "ab", None),
    ],
)
def test_stop_strings(script: list[int], stop: list[str], text: str, found: str | None) -> None:
    sample = run(script, stop=stop)
    assert sample.text == text
    assert sample.finish.stop_reason == found
    assert (sample.finish.reason == "stop") == (found is not None or EOS in script)


def test_what_may_become_a_stop_string_is_held_back() -> None:
    engine = make_engine(ScriptRunner(ids("abcxabd")), PieceTokenizer())
    engine.add(request("r", [5], stop=["abd"], max_tokens=7), 0.0)
    texts = []
    while engine.has_work:
        texts += [e.text for e in engine.step(0.0) if isinstance(e, TokenEvent)]
    assert texts == ["", "", "abc", "x", "", "", ""]


def test_stop_strings_wait_for_min_tokens() -> None:
    sample = run(ids("abababab"), stop=["ab"], min_tokens=4)
    assert sample.text == "ababab"[: len(sample.text)]
    assert len(sample.tokens) >= 4
    assert sample.finish.reason == "stop"


def test_a_stop_string_in_the_flushed_end_still_counts() -> None:
    sample = run([0, 27], stop=["�"])
    assert (sample.text, sample.finish.reason, sample.finish.stop_reason) == ("a", "stop", "�")


def test_samples_have_their_own_text() -> None:
    engine = make_engine(FakeRunner(), PieceTokenizer())
    result = drive(engine, [request("r", [1, 2, 3], n=3, temperature=1.5, seed=5, stop=["q"])])["r"]
    tokenizer = PieceTokenizer()
    texts = set()
    for sample in result.samples.values():
        whole = tokenizer.decode([t for t in sample.tokens if t != EOS])
        assert sample.text == whole.split("q")[0]
        texts.add(sample.text)
    assert len(texts) == 3


def test_a_tokenizer_that_raises_fails_only_that_request() -> None:
    class Broken(PieceTokenizer):
        def token_bytes(self, token_id):
            if token_id == 7:
                raise ValueError("no such piece")
            return PIECES[token_id]

    engine = make_engine(ScriptRunner(ids("aaaaah")), Broken())
    results = drive(engine, [request("bad", [5], max_tokens=6), request("good", [5], max_tokens=5)])
    assert "no such piece" in results["bad"].error.message
    assert results["good"].samples[0].text == "aaaaa"


class PrefixingTokenizer(PieceTokenizer):
    """Writes a space before the first word, as Llama 2's does, and takes it off when decoding."""

    strips_leading_space = True


@pytest.mark.parametrize(
    ("prompt", "continues_text", "text"),
    [
        ([5], True, " w2 w3"),
        ([5], False, "w2 w3"),  # an answer in a chat is a text of its own
        ([HIDDEN], True, "w2 w3"),  # the first word that is seen
        ([HIDDEN, 5, HIDDEN], True, " w2 w3"),
    ],
)
def test_a_completion_keeps_the_space_before_its_first_word(
    prompt: list[int], continues_text: bool, text: str
) -> None:
    script = [34, 35]
    runner = ScriptRunner([0] * (len(prompt) - 1) + script)
    engine = make_engine(runner, PrefixingTokenizer())
    params = request("r", prompt, max_tokens=2)
    result = drive(engine, [replace(params, continues_text=continues_text)])["r"]
    assert result.tokens == script
    assert result.samples[0].text == text
