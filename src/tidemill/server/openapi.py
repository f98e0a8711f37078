"""The OpenAPI description of the server: its operations and the types of their bodies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill import __version__
from tidemill.server.errors import ApiError

if TYPE_CHECKING:
    from tidemill.server.operations import Operation

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
# Statuses that every operation with a body may answer with.
_REFUSALS = {
    "400": "The request cannot be served as it stands; the error says what is wrong.",
    "404": "There is no such model.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "429": "The queue is full; Retry-After says when to come back.",
    "503": "The model cannot be used now, or the server is shutting down.",
    "504": "The request took too long.",
}
_KEY_REFUSALS = {"401": "There is no key, or an unknown one.", "403": "The key is not for this."}


def describe(operations: Iterable[Operation]) -> dict[str, Any]:
    """OpenAPI 3.1, as plain data."""
    operations = list(operations)
    bodies = {operation.body for operation in operations if operation.body is not None}
    named = sorted(bodies, key=lambda body: f"{body.__module__}.{body.__name__}")
    schemas, components = msgspec.json.schema_components(
        named, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(named, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = _PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidemill",
            "version": __version__,
            "description": "Language models over HTTP: the APIs of OpenAI, Anthropic and Ollama.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation, schema_of: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    adds = operation.method == "POST" and operation.path == "/admin/models"
    answers = {"201": "The model is served."} if adds else {"200": "The answer."}
    refusals = dict(_KEY_REFUSALS) if not operation.open else {}
    if operation.path.startswith("/health"):
        answers["503"] = _REFUSALS["503"]
    elif operation.body is not None or operation.group == "Admin":
        refusals |= _REFUSALS
    elif "{" in operation.path:
        refusals |= {code: _REFUSALS[code] for code in ("404", "503")}
    if adds:
        refusals["409"] = "One of its names is taken."
    content: dict[str, Any] = {kind: {} for kind in operation.answers}
    described: dict[str, Any] = {
        "operationId": _name(operation),
        "summary": operation.summary,
        "tags": [operation.group],
        "responses": {
            **{code: {"description": text, "content": content} for code, text in answers.items()},
            **_errors(operation, refusals),
        },
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[operation.body]}},
        }
    if parameters := _PARAMETER.findall(operation.path):
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in parameters
        ]
    if not operation.open:
        described["security"] = [{}, {"key": []}]
    return described


def _errors(operation: Operation, refusals: Mapping[str, str]) -> dict[str, Any]:
    """The answers other than success, with the status and the form that their API has for them."""
    found = {}
    for code, text in refusals.items():
        status, body = operation.errors(ApiError(int(code), text), "id")
        found[str(status)] = {
            "description": text,
            "content": {"application/json": {"schema": _form(body)}},
        }
    return found


def _form(example: Any) -> dict[str, Any]:
    """The JSON schema of values like ``example``; what is null there may be a text."""
    if isinstance(example, dict):
        return {
            "type": "object",
            "required": list(example),
            "properties": {name: _form(value) for name, value in example.items()},
        }
    return {"type": ["string", "null"] if example is None else "string"}


def _name(operation: Operation) -> str:
    words = re.findall(r"\w+", _PARAMETER.sub(r"\1", operation.path))
    return "_".join([operation.method.lower(), *words])
