"""JSON values and Python literals, read a character at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from tidemill.server.tools.steps import SPACE, NotACall, Steps

MAX_DEPTH = 64

# As in RFC 8259, section 6; what is read from Python literals is to be JSON too.
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_CHARS = frozenset("0123456789+-.eE")
_HEX = frozenset("0123456789abcdefABCDEF")
_JSON_WORDS = {"true": "true", "false": "false", "null": "null"}
_PYTHON_WORDS = {**_JSON_WORDS, "True": "true", "False": "false", "None": "null"}
_JSON_ESCAPES = frozenset('"\\/bfnrtu')
_PYTHON_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a",
    "\\": "\\", "'": "'", '"': '"', "\n": "",
}  # fmt: skip
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_CLOSERS = {"{": "}", "[": "]", "(": ")", "f(": ")"}


class _Container:
    """An open bracket: ``kind`` is it, or "f(" for the arguments of a Python call."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.count = 0
        self.names: set[str] = set()


class ValueReader:
    """Reads one value, an object, list or string, and gives its JSON text.

    A pushdown automaton: each character costs the same, nesting is bounded by ``MAX_DEPTH``, and
    the first character that cannot belong to the value raises NotACall. JSON (RFC 8259) is passed
    through as it is. ``python`` reads Python's literals and writes them as JSON: strings in either
    quotes with their escapes, True, False and None, tuples, commas before a closing bracket. Of a
    Python call the keyword arguments are read, as an object (see ``call_arguments``).
    """

    def __init__(self, *, python: bool = False) -> None:
        self._python = python
        self._words = _PYTHON_WORDS if python else _JSON_WORDS
        self._out: list[str] = []
        self._stack: list[_Container] = []
        self._step: Callable[[str], bool] = self._value
        self._token = ""
        self._quote = '"'
        self._digits = 0  # that an escape still wants
        self._is_key = False
        self._comma = False  # since the last item of the container that is open

    @classmethod
    def call_arguments(cls) -> ValueReader:
        """For what follows the opening bracket of a Python call, up to the closing one."""
        reader = cls(python=True)
        reader._open("f(")
        return reader

    def feed(self, char: str) -> bool:
        """Take one character ("" is the end of the text); whether the value is complete."""
        if not char:
            raise NotACall
        if not self._python:
            self._out.append(char)
        return self._step(char)

    def text(self) -> str:
        """The JSON text of the value, once it is complete."""
        return "".join(self._out)

    # ---- between tokens

    def _value(self, char: str) -> bool:
        if char in SPACE:
            return False
        if char == '"' or (char == "'" and self._python):
            self._separate()
            return self._begin_string(char, is_key=False)
        if char in "{[" or (char == "(" and self._python):
            self._separate()
            self._open(char)
            return False
        if self._stack and self._stack[-1].kind in ("[", "(") and self._may_close(char):
            return self._close()
        if self._stack and (char in _NUMBER_CHARS or char.isalpha()):
            self._separate()
            self._token = char
            self._step = self._number if char in "-0123456789" else self._word
            if self._step == self._word:
                self._check_word()
            return False
        raise NotACall(char)

    def _key(self, char: str) -> bool:
        if char in SPACE:
            return False
        container = self._stack[-1]
        if self._may_close(char):
            return self._close()
        if container.kind == "f(":
            if not (char == "_" or char.isalpha()):
                raise NotACall(char)
            self._token = char
            self._step = self._keyword
            return False
        if char == '"' or (char == "'" and self._python):
            self._separate()
            return self._begin_string(char, is_key=True)
        raise NotACall(char)

    def _keyword(self, char: str) -> bool:
        if (char == "_" or char.isalnum()) and len(self._token) < 128:
            self._token += char
            return False
        container = self._stack[-1]
        if self._token in container.names or char not in {"=", *SPACE}:
            raise NotACall(char)
        container.names.add(self._token)
        self._separate()
        self._out.append(json.dumps(self._token, ensure_ascii=False))
        return self._colon(char)

    def _colon(self, char: str) -> bool:
        wanted = "=" if self._stack[-1].kind == "f(" else ":"
        if char == wanted:
            if self._python:
                self._out.append(": ")
            self._step = self._member
        elif char in SPACE:
            self._step = self._colon
        else:
            raise NotACall(char)
        return False

    def _member(self, char: str) -> bool:
        # The value of a key, which has its separator behind it; a bracket cannot close here.
        if char in SPACE:
            return False
        if char in "]})":
            raise NotACall(char)
        return self._value(char)

    def _after(self, char: str) -> bool:
        """After a value in a container."""
        if char in SPACE:
            return False
        container = self._stack[-1]
        if char == ",":
            self._comma = True
            self._step = self._key if container.kind in ("{", "f(") else self._value
            return False
        if self._may_close(char):
            return self._close()
        raise NotACall(char)

    # ---- containers

    def _may_close(self, char: str) -> bool:
        container = self._stack[-1]
        if char != _CLOSERS[container.kind] or (self._comma and not self._python):
            return False
        # "(x)" is no tuple, but x.
        return container.kind != "(" or container.count != 1 or self._comma

    def _open(self, kind: str) -> None:
        if len(self._stack) >= MAX_DEPTH:
            raise NotACall(kind)
        self._stack.append(_Container(kind))
        self._comma = False
        self._step = self._key if kind in ("{", "f(") else self._value
        if self._python:
            self._out.append("{" if kind in ("{", "f(") else "[")

    def _close(self) -> bool:
        container = self._stack.pop()
        if self._python:
            self._out.append("}" if container.kind in ("{", "f(") else "]")
        return self._end_value()

    def _separate(self) -> None:
        """Count an item of the container and, in Python, write what separates it."""
        self._comma = False
        if not self._stack or self._step == self._member:
            return
        container = self._stack[-1]
        if container.count and self._python:
            self._out.append(", ")
        container.count += 1

    def _end_value(self) -> bool:
        self._comma = False
        self._step = self._after
        return not self._stack

    # ---- numbers and words: they end at the character behind them

    def _number(self, char: str) -> bool:
        if char in _NUMBER_CHARS:
            self._token += char
            return False
        if not NUMBER.fullmatch(self._token):
            raise NotACall(char)
        return self._end_token(self._token, char)

    def _word(self, char: str) -> bool:
        if char.isalpha():
            self._token += char
            self._check_word()
            return False
        if self._token not in self._words:
            raise NotACall(char)
        return self._end_token(self._words[self._token], char)

    def _check_word(self) -> None:
        if not any(word.startswith(self._token) for word in self._words):
            raise NotACall(self._token[-1])

    def _end_token(self, text: str, char: str) -> bool:
        if self._python:
            self._out.append(text)
        self._end_value()
        return self._after(char)

    # ---- strings

    def _begin_string(self, quote: str, *, is_key: bool) -> bool:
        self._quote = quote
        self._is_key = is_key
        self._step = self._string
        if self._python:
            self._out.append('"')
        return False

    def _string(self, char: str) -> bool:
        if char == self._quote:
            if self._python:
                self._out.append('"')
            if self._is_key:
                self._step = self._colon
                return False
            return self._end_value()
        if char == "\\":
            self._step = self._escape
        elif self._python:
            self._write(char)
        elif char < " ":
            raise NotACall(char)
        return False

    def _escape(self, char: str) -> bool:
        self._step = self._string
        if not self._python:
            if char not in _JSON_ESCAPES:
                raise NotACall(char)
            if char == "u":
                self._begin_digits(4)
        elif char in _HEX_DIGITS:
            self._begin_digits(_HEX_DIGITS[char])
        elif char in _PYTHON_ESCAPES:
            self._write(_PYTHON_ESCAPES[char])
        elif char in "01234567N":
            raise NotACall(char)  # octal and named characters: nobody writes them
        else:
            self._write("\\")  # as Python has it: an unknown escape is no escape
            self._write(char)
        return False

    def _begin_digits(self, count: int) -> None:
        self._digits = count
        self._token = ""
        self._step = self._hex

    def _hex(self, char: str) -> bool:
        if char not in _HEX:
            raise NotACall(char)
        self._token += char
        if len(self._token) < self._digits:
            return False
        self._step = self._string
        if self._python:
            code = int(self._token, 16)
            if code > 0x10FFFF:
                raise NotACall(char)
            if code < 0x10000:
                self._out.append(f"\\u{code:04x}")  # it may be half of a surrogate pair
            else:
                self._write(chr(code))
        return False

    def _write(self, text: str) -> None:
        if text in ('"', "\\") or text < " ":
            text = json.dumps(text)[1:-1]
        self._out.append(text)


def read_value(reader: ValueReader, first: str) -> Steps[str]:
    """The JSON text of the value that begins with ``first``."""
    char = first
    while not reader.feed(char):
        char = yield
    return reader.text()
