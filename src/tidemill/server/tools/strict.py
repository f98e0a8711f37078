"""Answers that may have calls of strict tools: free text, but a call that has begun fits its schema.

The grammar is llguidance's Lark. Only formats whose calls are JSON objects are here; a grammar of any
other would have to agree with the whole of its parser.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidemill.engine.errors import RequestError
from tidemill.text.grammar import WHITESPACE, Grammar, GrammarError

_TEXT = r"/(?s:.*)/"
_SPACE = r"/[ \t\r\n]{0,8}/"


def strict_calls(
    format: str | None,
    schemas: Sequence[tuple[str, Mapping[str, Any]]],
    control: Mapping[str, int],
    *,
    parallel: bool,
) -> Grammar:
    """For answers of a model that writes its calls in ``format`` (``parser.FORMATS``).

    ``schemas``: the tools' names and what their arguments must look like. ``control``: the ids of
    markers (of calls and of reasoning) that are control tokens of the vocabulary; others are text.
    Without ``parallel`` nothing binds what follows the first call. Raises RequestError.
    """
    make = _FORMATS.get(format or "")
    if make is None:
        raise RequestError(
            "tools: 'strict' is not kept by the form in which this model writes calls; leave it out, "
            "or ask for a call with tool_choice",
            param="tools",
        )
    try:
        return Grammar.lark(make(schemas, control, parallel))
    except GrammarError as error:
        raise RequestError(f"tools: {error}", param="tools") from None


def _hermes(
    schemas: Sequence[tuple[str, Mapping[str, Any]]], control: Mapping[str, int], parallel: bool
) -> str:
    """Text up to a marker, from there on a call: "lazy" ends the text where the marker first does."""
    marker, end = "<tool_call>", "</tool_call>"
    others = [f"<[{id}]>" for text, id in control.items() if text not in (marker, end)]
    begin = f"begin: TEXT <[{control[marker]}]>" if marker in control else (
        f"begin[lazy]: /(?s:.*){marker}/"
    )  # fmt: skip
    parts = " | ".join(["call", *(f"TEXT {other}" for other in others)])
    rest = " | ".join(["TEXT", *others])
    return f"""
start: {"part* TEXT" if parallel else f"thought* (call ({rest})* | TEXT)"}
part: {parts}
{begin}
call: begin SPACE body SPACE {json.dumps(end)}
body: %json {_body(schemas, "arguments")}
TEXT: {_TEXT}
SPACE: {_SPACE}
"""


def _body(schemas: Sequence[tuple[str, Mapping[str, Any]]], key: str) -> str:
    """The object that is a call, ``key`` being that of its arguments."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, key: schema},
            "required": ["name", key],
            "additionalProperties": False,
        }
        for name, schema in schemas
    ]
    return json.dumps({"anyOf": calls, "x-guidance": {"whitespace_pattern": WHITESPACE}})


_FORMATS: Mapping[str, Callable[..., str]] = {"hermes": _hermes}
