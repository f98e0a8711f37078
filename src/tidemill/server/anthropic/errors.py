"""Errors as Anthropic's API writes them."""

from __future__ import annotations

from typing import Any

from tidemill.server.errors import ApiError

_OVERLOADED = 529  # not one of HTTP's; Anthropic's clients know it, and try again later

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    """The body, which is also the data of an ``error`` event. The form has no place for the field
    at fault, so the message names it."""
    kind = _KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    message = error.message
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": request_id,
    }


def write_error(error: ApiError, request_id: str) -> tuple[int, Any]:
    status = _OVERLOADED if error.status == 503 else error.status
    return status, error_body(error, request_id)
