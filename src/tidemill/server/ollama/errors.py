"""Errors as Ollama writes them."""

from __future__ import annotations

from typing import Any

from tidemill.server.errors import ApiError


def error_body(error: ApiError) -> dict[str, Any]:
    """The form has no place for the field at fault, so the text names it."""
    message = error.message
    told = error.code == "context_length_exceeded" or (error.param or "") in message
    if not told:
        message = f"{error.param}: {message}"
    return {"error": message}


def write_error(error: ApiError, request_id: str) -> tuple[int, Any]:
    # A full queue is 503 there.
    return 503 if error.code == "queue_full" else error.status, error_body(error)
