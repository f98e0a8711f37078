"""Requests made from the OpenAPI description, valid ones and others: none is an error of the
server's, and what comes back is what the description says (Schemathesis).

TIDEMILL_TEST_EXAMPLES is the number of requests to each operation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from support.serving import Server, serving
from tidemill.server.openapi import describe
from tidemill.server.operations import OPERATIONS

EXAMPLES = int(os.environ.get("TIDEMILL_TEST_EXAMPLES", "12"))


@pytest.fixture(scope="module")
def fuzzed(tiny_chat_model: Path) -> Iterator[Server]:
    """A server of its own, as its models may be unloaded; nothing is fetched from elsewhere."""
    with serving(str(tiny_chat_model), "--name", "tiny", "--threads", "1", "--offline") as found:
        yield found
        assert "failed" not in found.log
        assert found.post("/tokenize", {"model": "tiny", "prompt": "x"})[0] == 200


schema = schemathesis.openapi.from_dict(json.loads(json.dumps(describe(OPERATIONS))))


@schema.hook
def map_body(context: Any, body: Any) -> Any:
    """Most requests are to the model that there is."""
    if isinstance(body, dict) and body.get("model"):
        body = {**body, "model": "tiny"}
    return body


@schema.parametrize()
@settings(
    max_examples=EXAMPLES, derandomize=True, database=None, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_no_request_is_an_error_of_the_servers(fuzzed: Server, case: Any) -> None:
    case.call_and_validate(
        base_url=fuzzed.url,
        checks=[
            not_a_server_error, status_code_conformance, content_type_conformance,
            response_headers_conformance, response_schema_conformance, negative_data_rejection,
            unsupported_method,
        ],
        timeout=60,
    )  # fmt: skip
