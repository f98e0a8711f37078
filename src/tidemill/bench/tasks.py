"""Tasks whose answers can be checked: a text with blanks, and which of them must come back."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any, Literal

import msgspec

Value = str | int | float
Verdict = Literal["right", "wrong", "malformed"]
"""``malformed``: not in the form asked for; ``wrong``: in that form, with another value."""


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that the model may call; ``parameters`` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``template`` is a text with blanks like ``$city``; of each blank's ``values`` one is drawn.

    The answer is a JSON object under ``schema``, or one call of the tool ``call`` of ``tools``. It
    must have a field for each blank in ``answer``, of the same name, with the value that was drawn.
    ``choice`` is what is sent as ``tool_choice``.
    """

    template: str
    values: dict[str, tuple[Value, ...]]
    answer: tuple[str, ...]
    schema: dict[str, Any] | None = None
    tools: tuple[Tool, ...] = ()
    call: str = ""
    choice: Literal["auto", "required"] = "auto"

    def __post_init__(self) -> None:
        template = Template(self.template)
        if not template.is_valid():
            raise ValueError("template: a $ that begins no blank is written $$")
        blanks = set(template.get_identifiers())
        if blanks != set(self.values):
            odd = ", ".join(sorted(blanks ^ set(self.values)))
            raise ValueError(f"template and values must have the same blanks; not in both: {odd}")
        if empty := [name for name, values in self.values.items() if not values]:
            raise ValueError(f"values.{empty[0]} is empty")
        if not self.answer or not set(self.answer) <= blanks:
            raise ValueError("answer must name blanks of the template")
        if (self.schema is None) == (not self.tools):
            raise ValueError("a task has either a schema or tools")
        if self.tools and self.call not in {tool.name for tool in self.tools}:
            raise ValueError(f"call must be the name of one of the tools, not {self.call!r}")

    def draw(self, rng: random.Random) -> dict[str, Value]:
        """A value for each blank."""
        return {name: rng.choice(values) for name, values in self.values.items()}

    def text(self, drawn: Mapping[str, Value]) -> str:
        return Template(self.template).substitute(drawn)

    def fields(self) -> dict[str, Any]:
        """Of the request's body."""
        if self.schema is not None:
            form = {"name": "answer", "schema": self.schema, "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": form}}
        tools = [{"type": "function", "function": msgspec.to_builtins(t)} for t in self.tools]
        return {"tools": tools, "tool_choice": self.choice}

    def judge(
        self, drawn: Mapping[str, Value], content: str, calls: Sequence[tuple[str, str]]
    ) -> Verdict:
        """Of an answer: its text, and its calls as names with their arguments in JSON."""
        if self.schema is None:
            content = calls[0][1] if len(calls) == 1 and calls[0][0] == self.call else ""
        try:
            found = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return "malformed"
        if not isinstance(found, dict) or not set(self.answer) <= set(found):
            return "malformed"
        same = all(_same(found[name], drawn[name]) for name in self.answer)
        return "right" if same else "wrong"


def _same(found: Any, wanted: Value) -> bool:
    """Letters may be large or small, and numbers whole or not."""
    if isinstance(wanted, str):
        return isinstance(found, str) and found.strip().casefold() == wanted.strip().casefold()
    return isinstance(found, int | float) and not isinstance(found, bool) and found == wanted
