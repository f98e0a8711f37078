"""What an answer must look like: JSON schemas, regular expressions, grammars.

``grammar_masks.py`` compiles them and follows answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tidemill.records import dataclass

MAX_TEXT = 128 << 10
"""Characters of a schema, regular expression or grammar."""
MAX_DEPTH = 64
"""Objects and lists within one another in a schema."""
MAX_CHOICES = 1024
JSON_SPACE = r"( |\n {0,24})?"
"""White space between the parts of JSON, as a regular expression: a space, or a new line with its
indentation. Without a bound, models are known to go on with white space for ever."""

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
        _check_shape(schema)
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


def _check_shape(schema: Any) -> None:
    """Raises GrammarError for what is nested too deeply, or has more parts than characters may
    be: to write it as text first would take long."""
    level = [schema]
    parts = 0
    for _ in range(MAX_DEPTH + 1):
        level = [
            item
            for container in level
            if isinstance(container, Mapping | list)
            for item in (container.values() if isinstance(container, Mapping) else container)
        ]
        if not level:
            return
        parts += len(level)
        if parts > MAX_TEXT:
            raise GrammarError(f"the schema has more than {MAX_TEXT:,} parts")
    raise GrammarError(f"the schema is nested more than {MAX_DEPTH} levels deep")


_SPECIAL = r"[\\.+*?()|\[\]{}^$#&\-~/ ]"


def _escape(text: str) -> str:
    """``text`` as a regular expression for itself, in the syntax of Rust's regex crate."""
    return re.sub(_SPECIAL, lambda found: f"\\x{{{ord(found[0]):x}}}", text)
