"""What answers with calls must look like, as grammars in llguidance's variant of Lark.

Each tool's schema is a JSON document of its own in there, so that its ``$ref`` lead where they do
by themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.engine.errors import RequestError
from tidemill.text.grammar import JSON_SPACE, Grammar

Schemas = Sequence[tuple[str, Mapping[str, Any]]]
"""Tools' names with the JSON schemas of their arguments."""

_MARKER, _END = "<tool_call>", "</tool_call>"


def listed_calls(schemas: Schemas, *, parallel: bool) -> Grammar:
    """A JSON list of calls; of one without ``parallel``. Raises GrammarError."""
    more = '("," SPACE call SPACE)*' if parallel else ""
    return Grammar.lark(f'start: "[" SPACE call SPACE {more} "]"\n{_call_rules(schemas)}')


def strict_calls(
    format: str | None, schemas: Schemas, control: Mapping[str, int], *, parallel: bool
) -> Grammar:
    """Text in which calls, once they have begun, fit their tools' schemas.

    ``format`` is what the model writes calls in (``parser.FORMATS``): of those only Hermes's can be
    kept to, as a grammar of any other would have to agree with the whole of its parser.
    ``control``: the ids of those markers of calls and reasoning that are control tokens of the
    vocabulary, which no text spells. Without ``parallel`` nothing binds what follows the first
    call, which is not read. Raises RequestError, GrammarError.
    """
    if format != "hermes":
        raise RequestError(
            "tools: the form in which this model writes calls cannot be kept to 'strict'; leave "
            "that out, or ask for a call with tool_choice",
            param="tools",
        )
    thoughts = " | ".join(f"<[{id}]>" for text, id in control.items() if text != _MARKER)
    if parallel:
        start = "(wrapped | thought)* TEXT" if thoughts else "wrapped* TEXT"
    else:
        start = "thought* (wrapped thought* TEXT | TEXT)" if thoughts else "wrapped? TEXT"
    rules = [
        f"start: {start}",
        f"wrapped: begin SPACE call SPACE {json.dumps(_END)}",
        # "lazy" ends the text where the marker first does, and from there on it is a call.
        f"begin: TEXT <[{control[_MARKER]}]>"
        if _MARKER in control
        else f"begin[lazy]: /(?s:.*){_MARKER}/",
        "TEXT: /(?s:.*)/",
        _call_rules(schemas),
    ]
    if thoughts:
        rules.append(f"thought: TEXT ({thoughts})")
    return Grammar.lark("\n".join(rules))


def _call_rules(schemas: Schemas) -> str:
    """``call``: the object that is one, {"name": ..., "arguments": ...}; ``SPACE``."""
    rules = [
        f"call: {' | '.join(f'call_{i}' for i in range(len(schemas)))}",
        r'head: "{" SPACE "\"name\"" SPACE ":" SPACE',
        r'between: SPACE "," SPACE "\"arguments\"" SPACE ":" SPACE',
        f"SPACE: /{JSON_SPACE}/",
    ]
    for i, (name, schema) in enumerate(schemas):
        quoted = json.dumps(json.dumps(name))
        rules.append(f'call_{i}: head {quoted} between arguments_{i} SPACE "}}"')
        bounded = {**schema, "x-guidance": {"whitespace_pattern": JSON_SPACE}}
        rules.append(f"arguments_{i}: %json {json.dumps(bounded)}")
    return "\n".join(rules)
