"""The JSON object by which most formats write a call: {"name": ..., "arguments": {...}}."""

from __future__ import annotations

import json

from tidemill.records import dataclass
from tidemill.server.tools.json_text import is_json
from tidemill.server.tools.scanner import Calls
from tidemill.server.tools.steps import NotACall, Steps, expect, one_of, skip_space
from tidemill.server.tools.values import ValueReader, read_value

_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", *_ARGUMENTS, "type", "id")


@dataclass(frozen=True, slots=True)
class JsonCall:
    """A call that has been read but not reported."""

    name: str
    arguments: str
    id: str | None

    def report(self, calls: Calls) -> None:
        calls.add(self.name, self.arguments, self.id)


def read_call(calls: Calls) -> Steps[JsonCall]:
    """Read a call's object after its opening brace.

    ``arguments`` or, as Llama has it, ``parameters`` is an object, or a string that is the JSON
    text of one, or null or missing for none; ``id`` and ``type`` may be there too. Anything else
    is no call, known at the first character that shows it.
    """
    name: str | None = None
    id: str | None = None
    arguments = ""
    left = list(_KEYS)
    char = yield from skip_space()
    while True:
        if char != '"':
            raise NotACall(char)
        key = yield from one_of(left, '"')
        left = [k for k in left if k != key and not (key in _ARGUMENTS and k in _ARGUMENTS)]
        char = yield from skip_space()
        if char != ":":
            raise NotACall(char)
        char = yield from skip_space()
        if key == "name":
            if char != '"':
                raise NotACall(char)
            name = (yield from calls.name('"'))[:-1]
        elif key in _ARGUMENTS:
            arguments = yield from _arguments(char)
        elif char == '"':
            text = yield from read_value(ValueReader(), char)
            id = json.loads(text) if key == "id" else id
        else:
            yield from expect("null", char)
        char = yield from skip_space()
        if char == "}":
            break
        if char != ",":
            raise NotACall(char)
        char = yield from skip_space()
    if name is None:
        raise NotACall(char)
    return JsonCall(name, arguments or "{}", id)


def read_arguments(name: str, char: str, id: str | None = None) -> Steps[JsonCall]:
    """Read the object of arguments that begins with ``char``, of a call named before it."""
    if char != "{":
        raise NotACall(char)
    arguments = yield from read_value(ValueReader(), char)
    return JsonCall(name, arguments, id)


def _arguments(char: str) -> Steps[str]:
    if char == "{":
        return (yield from read_value(ValueReader(), char))
    if char == '"':
        text = yield from read_value(ValueReader(), char)
        inner: str = json.loads(text)
        if not inner.strip():
            return "{}"
        # Half a surrogate pair can be written in JSON, but not sent in UTF-8.
        if not is_json(inner) or any("\ud800" <= char <= "\udfff" for char in inner):
            raise NotACall
        return inner
    yield from expect("null", char)
    return "{}"
