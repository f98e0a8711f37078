"""What a request asks of an answer's form: ``response_format`` and the extensions of vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tidemill.engine.errors import RequestError
from tidemill.text.grammar import Grammar, GrammarError


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``strict`` is what happens in any case: the schema is followed to the letter."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One of them."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class FormatFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of a request that say something about an answer's form: at most one."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    @property
    def format_fields(self) -> list[str]:
        """Those that were given."""
        names = FormatFields.__struct_fields__
        return [name for name in names if getattr(self, name) is not None]

    def grammar(self) -> Grammar | None:
        """What the answer must look like. Raises RequestError that names the field at fault."""
        given = self.format_fields
        if len(given) > 1:
            raise RequestError(f"give only one of {', '.join(given)}", param=given[1])
        for name in given:
            try:
                return _grammar(name, getattr(self, name))
            except GrammarError as error:
                raise RequestError(f"{name}: {error}", param=name) from None
        return None


def _grammar(name: str, value: Any) -> Grammar | None:
    match name, value:
        case "response_format", ResponseFormat(type="text"):
            return None
        case "response_format", ResponseFormat(type="json_object"):
            return Grammar.json_object()
        case "response_format", ResponseFormat(type="json_schema", json_schema=JsonSchema() as s):
            if s.schema is None:
                raise RequestError(
                    "response_format.json_schema has no schema", param="response_format"
                )
            return Grammar.json_schema(s.schema)
        case "response_format", ResponseFormat(type=kind):
            raise RequestError(
                f"response_format: the type {kind[:40]!r} needs what is not there, or does not "
                "exist; there are text, json_object and json_schema",
                param="response_format",
            )
        case "structured_outputs", StructuredOutputs():
            given = {n: v for n in value.__struct_fields__ if (v := getattr(value, n)) is not None}
            if len(given) != 1:
                raise RequestError(
                    "structured_outputs has one of json, json_object, regex, choice and grammar",
                    param="structured_outputs",
                )
            ((kind, inner),) = given.items()
            if kind == "json_object":
                return Grammar.json_object() if inner else None
            return _grammar(f"guided_{kind}", inner)
        case "guided_json", str():
            return Grammar.json_schema(_parsed(value))
        case "guided_json", _:
            return Grammar.json_schema(value)
        case "guided_regex", _:
            return Grammar.regex(value)
        case "guided_choice", _:
            return Grammar.choice(value)
    return Grammar.lark(value)


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise GrammarError(f"it is not valid JSON: {error}") from None
