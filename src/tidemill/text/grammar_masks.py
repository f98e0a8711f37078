"""Grammars as masks of the tokens that may come next.

The parsing is llguidance's (https://github.com/guidance-ai/llguidance). Here are the limits that
keep one request's grammar from costing the others anything, and the errors.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from tidemill.text.base import Tokenizer
from tidemill.text.grammar import JSON_SPACE, Grammar, GrammarError

if TYPE_CHECKING:
    from llguidance import TokenizerWrapper
    from llguidance._lib import JsonCompileOptions

_KEPT = 64  # compiled grammars

# Work, in llguidance's own unit, that compiling and one step may cost: some 30 ms at the most,
# where its defaults allow several seconds (found with regular expressions like (a{1000}){1000}).
_LIMITS = LLParserLimits(initial_lexer_fuel=100_000, step_lexer_fuel=20_000)

_JSON: JsonCompileOptions = {"whitespace_pattern": JSON_SPACE}


class GrammarMatcher:
    """Follows one answer token by token. Not to be used by two threads at once."""

    def __init__(self, matcher: LLMatcher, end_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._end_ids = end_ids

    def copy(self) -> GrammarMatcher:
        """Another answer from here on."""
        return GrammarMatcher(self._matcher.deep_copy(), self._end_ids)

    def fill(self, mask: npt.NDArray[np.uint32]) -> None:
        """Set the bits of all tokens that may come next: token t is bit t % 32 of mask[t // 32].
        At a point where the answer may end these include the end tokens. Lets go of the
        interpreter's lock meanwhile. Raises GrammarError if the grammar costs too much here."""
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()

    def accept(self, token_id: int) -> bool:
        """Go on by a token; False if it may not come here. Raises GrammarError if the grammar costs
        too much from here on."""
        if self._matcher.is_stopped():  # it takes not even an end token any more
            return token_id in self._end_ids and not self._matcher.is_error()
        if self._matcher.try_consume_tokens([token_id]):
            return True
        self._check()
        return False

    def rollback(self, n: int) -> None:
        """Take back the last ``n`` tokens."""
        if n:
            self._matcher.rollback(n)

    @property
    def complete(self) -> bool:
        """Whether nothing but an end token may come."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(_first_line(self._matcher.get_error()))


class GrammarCompiler:
    """Makes matchers for one vocabulary; safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._native: LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, GrammarMatcher] = OrderedDict()

    @property
    def mask_words(self) -> int:
        """Length of a mask."""
        return -(-self._tokenizer.vocab_size // 32)

    def matcher(self, grammar: Grammar) -> GrammarMatcher:
        """A matcher at the start of an answer. Raises GrammarError."""
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
                return found.copy()
            if self._native is None:
                # A tenth of a second to a few, by the size of the vocabulary: when first needed.
                vocabulary = cast("TokenizerWrapper", _Vocabulary(self._tokenizer))
                ends = sorted(self._tokenizer.eos_ids)
                self._native = LLTokenizer(vocabulary, eos_token=ends)
        made = self._compile(grammar, self._native)
        with self._lock:
            self._compiled[grammar] = made
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return made.copy()

    def _compile(self, grammar: Grammar, native: LLTokenizer) -> GrammarMatcher:
        try:
            source = _source(grammar)
        except ValueError as error:
            raise GrammarError(_first_line(str(error))) from None
        matcher = LLMatcher(native, source, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise GrammarError(_first_line(matcher.get_error()))
        made = GrammarMatcher(matcher, self._tokenizer.eos_ids)
        made.fill(np.zeros(self.mask_words, np.uint32))  # most of the work is done for the first
        return made


class _Vocabulary:
    """A tokenizer as llguidance takes it (its TokenizerWrapper)."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = tokenizer.bos_id

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._tokenizer.encode(text, add_special=False)


def _source(grammar: Grammar) -> str:
    """A grammar as llguidance takes it."""
    match grammar.kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(grammar.text, defaults=_JSON)
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.text)


def _first_line(text: str) -> str:
    """An error of llguidance's in one line."""
    lines = [line.strip() for line in text.partition("<state>")[0].splitlines()]
    told = " ".join(line for line in lines if line and set(line) != {"^"})
    if told.startswith("NoExtension"):  # its name for "no token can come next"
        return "no text can fulfil it"
    return told[:300] or "the grammar cannot be used"
