"""What a request says of its tools, and how its answers are then read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from tidemill.engine.errors import RequestError
from tidemill.records import dataclass
from tidemill.server.tools.call_grammar import listed_calls
from tidemill.server.tools.pieces import CallArguments, CallBegin, Content, Piece, Span, call_id
from tidemill.text.grammar import Grammar, GrammarError

MAX_TOOLS = 512
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

Mode = Literal["none", "auto", "required", "named"]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """``tools`` as in OpenAI's API; ``mode`` "named" asks for a call of the tool ``name``,
    "required" for any call, "auto" leaves it to the model. Without ``parallel`` there is at most
    one call."""

    tools: tuple[Mapping[str, Any], ...] = ()
    mode: Mode = "none"
    name: str = ""
    parallel: bool = True

    @property
    def offered(self) -> tuple[Mapping[str, Any], ...]:
        """The tools that the model is told of."""
        return () if self.mode == "none" else self.tools

    @property
    def strict(self) -> bool:
        """Whether the model is free to call, but calls of some tool are to fit its schema."""
        return self.mode == "auto" and any(_function(tool).get("strict") for tool in self.tools)

    @property
    def schemas(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The tools' names, and what their arguments must look like in a strict answer."""
        loose = self.strict
        return [
            (
                _function(tool)["name"],
                _ANY_OBJECT if loose and not _function(tool).get("strict") else _parameters(tool),
            )
            for tool in self.tools
        ]

    def grammar(self) -> Grammar | None:
        """What an answer must look like so that it is a call, if it must be one: the arguments of
        the named tool, or a list of calls. Raises RequestError for a schema that is none."""
        try:
            match self.mode:
                case "named":
                    return Grammar.json_schema(_parameters(self._named()))
                case "required":
                    return listed_calls(self.schemas, parallel=self.parallel)
        except GrammarError as error:
            raise RequestError(f"tools: {error}", param="tools") from None
        return None

    def _named(self) -> Mapping[str, Any]:
        return next(tool for tool in self.tools if _function(tool)["name"] == self.name)


def tool_use(
    tools: Sequence[Mapping[str, Any]] | None, choice: Any, parallel: bool | None
) -> ToolUse:
    """From the fields ``tools``, ``tool_choice`` and ``parallel_tool_calls`` of OpenAI's API.
    Raises RequestError that names the field at fault."""
    checked = tuple(_checked(tool, f"tools[{i}]") for i, tool in enumerate(tools or ()))
    if len(checked) > MAX_TOOLS:
        raise RequestError(f"tools has more than {MAX_TOOLS} entries", param="tools")
    names = [_function(tool)["name"] for tool in checked]
    if len(set(names)) < len(names):
        raise RequestError("tools has two functions of one name", param="tools")
    mode, name = _choice(choice, names)
    if parallel is not None and not checked:
        raise RequestError("parallel_tool_calls needs tools", param="parallel_tool_calls")
    return ToolUse(checked, mode, name, parallel is not False)


def _choice(choice: Any, names: Sequence[str]) -> tuple[Mode, str]:
    match choice:
        case None:
            return ("auto" if names else "none"), ""
        case "none":
            return "none", ""
        case "auto":
            return ("auto" if names else "none"), ""
        case "required" if names:
            return "required", ""
        case {"type": "function", "function": {"name": str(name)}} if name in names:
            return "named", name
    shown = json.dumps(choice)[:80]
    raise RequestError(
        f"tool_choice is none, auto, required, or names one of tools, not {shown}",
        param="tool_choice",
    )


def _checked(tool: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, Mapping):
        raise RequestError(f"{where} is not of the type 'function' with a function", param="tools")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{where}.function.name is 1 to 128 letters, digits, dots, dashes and underscores",
            param="tools",
        )
    if parameters is not None and not isinstance(parameters, Mapping):
        raise RequestError(f"{where}.function.parameters is a JSON schema", param="tools")
    if not isinstance(function.get("strict"), bool | None):
        raise RequestError(f"{where}.function.strict is true or false", param="tools")
    return tool


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Mapping[str, Any] = tool["function"]
    return function


def _parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a tool's arguments, which are an object whatever it says."""
    return {**_ANY_OBJECT, **(_function(tool).get("parameters") or {})}


# ---- reading answers


class Reader(Protocol):
    """Takes an answer's text apart as it comes."""

    @property
    def call_count(self) -> int:
        """Calls that have begun so far."""
        ...

    @property
    def reasoning(self) -> Sequence[Span]:
        """Where in the text so far reasoning was, without the markers around it."""
        ...

    def push(self, text: str) -> list[Piece]: ...
    def finish(self) -> list[Piece]: ...


def news(reader: Reader | None, text: str, *, finished: bool) -> list[Piece]:
    """What ``text`` brings of an answer, of which it may be the last; all of it is content where
    there is no reader."""
    if reader is None:
        return [Content(text)] if text else []
    pieces = reader.push(text)
    return pieces + reader.finish() if finished else pieces


class OneCall:
    """At most the first call of what ``reader`` finds."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def call_count(self) -> int:
        return min(1, self._reader.call_count)

    @property
    def reasoning(self) -> Sequence[Span]:
        return self._reader.reasoning

    def push(self, text: str) -> list[Piece]:
        return self._first(self._reader.push(text))

    def finish(self) -> list[Piece]:
        return self._first(self._reader.finish())

    @staticmethod
    def _first(pieces: list[Piece]) -> list[Piece]:
        return [piece for piece in pieces if getattr(piece, "index", 0) == 0]


class NamedCall:
    """The whole text is the arguments of one tool (ToolUse.grammar of mode "named")."""

    reasoning = ()

    def __init__(self, name: str) -> None:
        self._name = name
        self.call_count = 0

    def push(self, text: str) -> list[Piece]:
        if not text:
            return []
        pieces: list[Piece] = []
        if not self.call_count:
            self.call_count = 1
            pieces.append(CallBegin(0, call_id(), self._name))
        return [*pieces, CallArguments(0, text)]

    def finish(self) -> list[Piece]:
        return []


class ListedCalls:
    """The text is a list of calls (ToolUse.grammar of mode "required"), given out at its end; a
    list that was cut off is content."""

    reasoning = ()

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.call_count = 0

    def push(self, text: str) -> list[Piece]:
        self._texts.append(text)
        return []

    def finish(self) -> list[Piece]:
        text = "".join(self._texts)
        try:
            calls = json.loads(text)
        except ValueError:
            return [Content(text)] if text else []
        pieces: list[Piece] = []
        for call in calls:
            arguments = json.dumps(call["arguments"], ensure_ascii=False)
            pieces += (
                CallBegin(self.call_count, call_id(), call["name"]),
                CallArguments(self.call_count, arguments),
            )
            self.call_count += 1
        return pieces
