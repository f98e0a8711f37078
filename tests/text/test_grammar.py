"""Grammars as token masks: what they let through is what they describe, and costs are bounded."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest

from tidemill.text.grammar import MAX_TEXT, Grammar, GrammarError
from tidemill.text.grammar_masks import GrammarCompiler, GrammarMatcher

WORDS = [b"ab", b'{"', b'":', b'", ', b"true", b' "', b"}}", b"12", "é".encode(), "世".encode()]


class Letters:
    """Every byte is a token, and a few words are; 0 ends a text, 1 is a control token."""

    vocab_size = 2 + 256 + len(WORDS) + 5  # some ids that nothing has
    bos_id = None
    eos_ids = frozenset({0})
    special_ids = frozenset({0, 1})
    chat_template = None

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 2:
            return (b"<eos>", b"<ctl>")[token_id]
        if token_id < 258:
            return bytes([token_id - 2])
        return WORDS[token_id - 258] if token_id - 258 < len(WORDS) else b""

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        return [2 + byte for byte in text.encode()]

    def decode(self, ids: Any, *, skip_special: bool = True) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(Letters())


def allowed(compiler: GrammarCompiler, matcher: GrammarMatcher) -> set[int]:
    mask = np.zeros(compiler.mask_words, np.uint32)
    matcher.fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits[: Letters.vocab_size]).tolist())


def wander(compiler: GrammarCompiler, grammar: Grammar, seed: int, most: int = 400) -> str | None:
    """A random text that the masks let through; None if it did not end."""
    rng = random.Random(seed)
    matcher = compiler.matcher(grammar)
    ids: list[int] = []
    for _ in range(most):
        ways = sorted(allowed(compiler, matcher))
        assert ways, "there is no way on"
        # Ends and closing brackets are preferred, or random JSON goes on for ever.
        ends = [t for t in ways if t == 0 or Letters().token_bytes(t)[:1] in (b'"', b"}", b"]")]
        token = rng.choice(ends if ends and rng.random() < 0.5 else ways)
        assert matcher.accept(token)
        if token == 0:
            return b"".join(map(Letters().token_bytes, ids)).decode()
        ids.append(token)
    return None


@pytest.mark.parametrize("seed", range(12))
def test_what_a_schema_lets_through_fits_it(compiler: GrammarCompiler, seed: int) -> None:
    grammar = Grammar.json_schema(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 8},
                "kind": {"enum": ["a", "b", None]},
                "n": {"type": "integer", "minimum": 1, "maximum": 20},
                "ok": {"type": "boolean"},
            },
            "required": ["name", "kind", "n"],
            "additionalProperties": False,
        }
    )
    text = wander(compiler, grammar, seed)
    if text is not None:
        value = json.loads(text)
        assert set(value) <= {"name", "kind", "n", "ok"}
        assert len(value["name"]) <= 8
        assert value["kind"] in ("a", "b", None)
        assert 1 <= value["n"] <= 20


@pytest.mark.parametrize("seed", range(6))
def test_any_object(compiler: GrammarCompiler, seed: int) -> None:
    text = wander(compiler, Grammar.json_object(), seed)
    if text is not None:
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("seed", range(6))
def test_a_regular_expression_matches_the_whole_text(compiler: GrammarCompiler, seed: int) -> None:
    pattern = "(ab|é)+-[0-9]{2,3}"
    text = wander(compiler, Grammar.regex(pattern), seed)
    if text is not None:
        assert re.fullmatch(pattern, text)


def test_choices_are_taken_as_they_are(compiler: GrammarCompiler) -> None:
    choices = ["a", "ab", "a.c", "[x]*", "世 界", "a\\b", "-&~#", "x\ny"]
    found = {wander(compiler, Grammar.choice(choices), seed) for seed in range(80)}
    assert found <= set(choices)
    assert len(found) > 5


def test_a_lark_grammar(compiler: GrammarCompiler) -> None:
    grammar = Grammar.lark('start: "(" start ")" | "x"')
    matcher = compiler.matcher(grammar)
    for byte in b"((x))":
        assert not matcher.complete
        assert matcher.accept(2 + byte)
    assert matcher.complete
    assert allowed(compiler, matcher) == {0}


def test_control_tokens_and_empty_ids_are_never_let_through(compiler: GrammarCompiler) -> None:
    ways = allowed(compiler, compiler.matcher(Grammar.regex("[\\s\\S]*")))
    assert 1 not in ways
    assert not ways & set(range(258 + len(WORDS), Letters.vocab_size))
    assert 0 in ways


def test_tokens_that_may_not_come_change_nothing(compiler: GrammarCompiler) -> None:
    matcher = compiler.matcher(Grammar.choice(["ab"]))
    assert not matcher.accept(2 + ord("x"))
    assert not matcher.accept(1)
    assert matcher.accept(2 + ord("a"))
    assert matcher.accept(2 + ord("b"))


def test_taking_back_and_copies(compiler: GrammarCompiler) -> None:
    matcher = compiler.matcher(Grammar.choice(["abc", "abd"]))
    at_start = allowed(compiler, matcher)
    matcher.accept(2 + ord("a"))
    other = matcher.copy()
    matcher.accept(2 + ord("b"))
    matcher.accept(2 + ord("c"))
    matcher.rollback(1)
    assert matcher.accept(2 + ord("d"))
    matcher.rollback(3)
    assert allowed(compiler, matcher) == at_start
    assert allowed(compiler, other) == {2 + ord("b")}
    # Nobody else sees where the first one has been.
    assert allowed(compiler, compiler.matcher(Grammar.choice(["abc", "abd"]))) == at_start


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.regex("(a"),
        Grammar.regex("(?=a)"),
        Grammar.json_schema({"type": "nope"}),
        Grammar.json_schema({"$ref": "#"}),
        Grammar.json_schema({"$ref": "http://127.0.0.1:1/schema"}),
        Grammar.json_schema({"$ref": "file:///etc/hostname"}),
        Grammar.json_schema(False),
        Grammar.lark("start: nothing"),
        Grammar.lark("start: start"),
        Grammar.lark(""),
        Grammar.lark("%include /etc/hostname"),
    ],
)
def test_what_cannot_be_compiled_is_an_error(compiler: GrammarCompiler, grammar: Grammar) -> None:
    with pytest.raises(GrammarError) as caught:
        compiler.matcher(grammar)
    assert str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_nothing_can_fulfil_is_told_in_words(compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError, match=r"^no text can fulfil it$"):
        compiler.matcher(Grammar.json_schema({"$ref": "#"}))


@pytest.mark.parametrize("levels", [65, 5000])
def test_deep_schemas_are_refused(levels: int) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels // 2):
        schema = {"properties": {"a": schema}}
    with pytest.raises(GrammarError, match="deep"):
        Grammar.json_schema(schema)


def test_large_ones_are_refused() -> None:
    for make in (Grammar.regex, Grammar.lark):
        with pytest.raises(GrammarError, match="characters"):
            make("a" * (MAX_TEXT + 1))
    with pytest.raises(GrammarError, match="characters"):
        Grammar.json_schema({"const": "a" * MAX_TEXT})
    for choices in ([], ["a", ""], ["a"] * 2000):
        with pytest.raises(GrammarError, match="choices"):
            Grammar.choice(choices)


@pytest.mark.parametrize(
    "pattern", ["(a{1000}){1000}", "((a{100}){100}){100}", ".*a.{18}.*b.{18}", "(a|aa)*b" * 50]
)
def test_hostile_patterns_compile_within_their_limits(
    compiler: GrammarCompiler, pattern: str
) -> None:
    """They are refused, or work; with llguidance's own limits the first takes five seconds."""
    try:
        matcher = compiler.matcher(Grammar.regex(pattern))
        for byte in b"aaaaaaaa":
            allowed(compiler, matcher)
            matcher.accept(2 + byte)
    except GrammarError:
        pass
