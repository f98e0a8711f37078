"""The OpenAPI description says what the server does."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from starlette.routing import compile_path

from support.serving import Server
from tidemill.server.openapi import describe
from tidemill.server.operations import OPERATIONS


@pytest.fixture(scope="module")
def description() -> Any:
    return json.loads(json.dumps(describe(OPERATIONS)))  # plain data


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    if isinstance(value, list):
        return set().union(*map(references, value))
    return set()


def test_every_operation_is_there_once(description: Any) -> None:
    found = {
        (method.upper(), path)
        for path, methods in description["paths"].items()
        for method in methods
    }
    assert len(found) == len(OPERATIONS)
    assert ("POST", "/v1/chat/completions") in found
    assert ("DELETE", "/admin/models/{model}") in found
    names = [m["operationId"] for p in description["paths"].values() for m in p.values()]
    assert len(set(names)) == len(names)


def test_every_reference_leads_somewhere(description: Any) -> None:
    for reference in references(description):
        place = description
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]


def test_bodies_have_all_their_fields(description: Any) -> None:
    schemas = description["components"]["schemas"]
    for operation in OPERATIONS:
        if operation.body is not None:
            found = [s for s in schemas.values() if s.get("title") == operation.body.__name__]
            assert found, operation.path
            fields = set(operation.body.__struct_fields__)
            assert any(set(s["properties"]) == fields for s in found)


def test_every_path_is_answered(server: Server) -> None:
    for operation in OPERATIONS:
        path = re.sub(r"\{(\w+)(:\w+)?\}", "nobody", operation.path)
        body = None if operation.method == "GET" else b"{}"
        status, _, _ = server.request(operation.method, path, body)
        assert status in (200, 400, 404), (operation.method, path, status)


def test_it_is_served_and_can_be_read(server: Server) -> None:
    status, found = server.get("/openapi.json")
    assert (status, found) == (200, json.loads(json.dumps(describe(OPERATIONS))))
    status, headers, page = server.request("GET", "/docs")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"docs.js" in page
    assert "default-src 'none'" in headers["content-security-policy"]


def test_more_specific_paths_come_first() -> None:
    """A model's name may have slashes: what comes after it must be looked for before."""
    patterns = {operation.path: compile_path(operation.path)[0] for operation in OPERATIONS}
    for path in patterns:
        asked = re.sub(r"\{\w+(:path)?\}", lambda found: "a/b" if found[1] else "a", path)
        assert next(p for p, pattern in patterns.items() if pattern.match(asked)) == path
