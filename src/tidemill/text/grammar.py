"""What an answer must look like: JSON schemas, regular expressions, grammars, as token masks.

The parsing is llguidance's (https://github.com/guidance-ai/llguidance). Here are the limits that
keep one request's grammar from costing the others anything, and the errors.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from tidemill.records import dataclass
from tidemill.text.base import Tokenizer

MAX_TEXT = 128 << 10
"""Characters of a schema, regular expression or grammar."""
MAX_DEPTH = 64
"""Objects and lists within one another in a schema."""
MAX_CHOICES = 1024
_KEPT = 64  # compiled grammars

# Work, in llguidance's own unit, that compiling and one step may cost: some 30 ms at the most,
# where its defaults allow several seconds (found with regular expressions like (a{1000}){1000}).
_LIMITS = LLParserLimits(initial_lexer_fuel=100_000, step_lexer_fuel=20_000)

if TYPE_CHECKING:
    from llguidance import TokenizerWrapper

GrammarKind = Literal["json_schema", "regex", "lark"]


class GrammarError(ValueError):
    """A grammar that cannot be compiled, or is too large; the message says why."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must look like, as text. ``parse`` functions check only what can be checked
    without a vocabulary: ``GrammarCompiler.matcher`` does the rest."""

    kind: GrammarKind
    text: str

    @staticmethod
    def json_schema(schema: Mapping[str, Any] | bool) -> Grammar:
        """JSON that fits ``schema``. Raises GrammarError."""
        if _too_deep(schema, MAX_DEPTH):
            raise GrammarError(f"the schema is nested more than {MAX_DEPTH} levels deep")
        return Grammar._sized("json_schema", json.dumps(schema, ensure_ascii=False))

    @staticmethod
    def json_object() -> Grammar:
        """Any JSON object."""
        return Grammar("json_schema", '{"type": "object"}')

    @staticmethod
    def regex(pattern: str) -> Grammar:
        """Text that the pattern matches as a whole."""
        return Grammar._sized("regex", pattern)

    @staticmethod
    def choice(choices: Sequence[str]) -> Grammar:
        """One of the given texts."""
        if not 1 <= len(choices) <= MAX_CHOICES or "" in choices:
            raise GrammarError(f"give 1 to {MAX_CHOICES} choices, none of them empty")
        # Longer ones first changes nothing for the matcher: it takes all alternatives at once.
        return Grammar._sized("regex", "|".join(map(_escape, choices)))

    @staticmethod
    def lark(text: str) -> Grammar:
        """Text of a grammar in llguidance's variant of Lark."""
        return Grammar._sized("lark", text)

    @staticmethod
    def _sized(kind: GrammarKind, text: str) -> Grammar:
        if len(text) > MAX_TEXT:
            raise GrammarError(f"it has {len(text):,} characters; at most {MAX_TEXT:,} are taken")
        return Grammar(kind, text)

    def source(self) -> str:
        """As llguidance takes it."""
        match self.kind:
            case "json_schema":
                return LLMatcher.grammar_from_json_schema(self.text)
            case "regex":
                return LLMatcher.grammar_from_regex(self.text)
            case "lark":
                return LLMatcher.grammar_from_lark(self.text)


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
        """Go on by a token; False if it may not come here."""
        if self._matcher.is_stopped():  # it takes not even an end token any more
            return token_id in self._end_ids and not self._matcher.is_error()
        return bool(self._matcher.try_consume_tokens([token_id]))

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
            source = grammar.source()
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


def _too_deep(value: Any, levels: int) -> bool:
    """Whether lists and dicts are nested more than ``levels`` deep."""
    level = [value]
    for _ in range(levels + 1):
        level = [
            item
            for container in level
            if isinstance(container, Mapping | list)
            for item in (container.values() if isinstance(container, Mapping) else container)
        ]
        if not level:
            return False
    return True


_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/ ]")


def _escape(text: str) -> str:
    """``text`` as a regular expression for itself, in the syntax of Rust's regex crate."""
    return _SPECIAL.sub(lambda found: f"\\x{{{ord(found[0]):x}}}", text)


def _first_line(text: str) -> str:
    """An error of llguidance's in one line."""
    lines = [line.strip() for line in text.splitlines()]
    told = " ".join(line for line in lines if line and set(line) != {"^"})
    return told[:300] or "the grammar cannot be used"
