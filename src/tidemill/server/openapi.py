"""The OpenAPI description of the server: its operations and the types of their bodies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill import __version__

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
    responses = {"200": {"description": "The answer."}}
    if operation.method == "POST" and operation.path == "/admin/models":
        responses = {"201": {"description": "The model is served."},
                     "409": {"description": "One of its names is taken."}}  # fmt: skip
    refusals = dict(_KEY_REFUSALS) if not operation.open else {}
    if operation.body is not None or operation.group == "Admin":
        refusals |= _REFUSALS
    elif "{" in operation.path or operation.path.startswith("/health"):
        refusals |= {code: _REFUSALS[code] for code in ("404", "503")}
    described: dict[str, Any] = {
        "operationId": _name(operation),
        "summary": operation.summary,
        "tags": [operation.group],
        "responses": responses | {c: {"description": text} for c, text in refusals.items()},
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


def _name(operation: Operation) -> str:
    words = re.findall(r"\w+", _PARAMETER.sub(r"\1", operation.path))
    return "_".join([operation.method.lower(), *words])
