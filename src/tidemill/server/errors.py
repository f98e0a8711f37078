"""What a handler raises to answer with an error; each API writes it in a shape of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tidemill.engine.errors import ContextLengthError, QueueFullError, RequestError


class ModelUnavailable(RuntimeError):
    """The model cannot be used now: its process failed, or it could not be loaded."""


class ApiError(Exception):
    """An answer other than success.

    ``status`` is HTTP's. ``param`` names the field at fault, ``code`` is a stable word for
    programs; ``kind`` is the error's type in OpenAI's API. ``retry_after``: seconds after which
    another try makes sense.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
        self.retry_after = retry_after


def unsupported(name: str) -> ApiError:
    """For a parameter that is known, but not served at the value that it has."""
    return ApiError(
        400, f"{name} is not supported here; leave it out", param=name,
        code="unsupported_parameter",
    )  # fmt: skip


def check_only(fields: object, accepted: Mapping[str, tuple[Any, ...]], where: str = "") -> None:
    """Raises ApiError for an attribute of ``fields`` that has none of its accepted values."""
    for name, values in accepted.items():
        if getattr(fields, name, None) not in values:
            raise unsupported(where + name)


ErrorWriter = Callable[[ApiError, str], tuple[int, Any]]
"""How an API writes an error of the request with that id: HTTP status and JSON body."""


def api_error(error: Exception) -> ApiError | None:
    """What a client is told of an error that something below has raised; None if it is a bug."""
    match error:
        case ApiError():
            return error
        case ContextLengthError():
            return ApiError(400, str(error), param="messages", code=error.code)
        case RequestError():
            return ApiError(400, str(error), param=error.param, code=error.code)
        case QueueFullError():
            after = getattr(error, "retry_after", 1.0)
            return ApiError(
                429, str(error), code="queue_full", kind="rate_limit_error", retry_after=after
            )
        case ModelUnavailable():
            return ApiError(503, str(error), code="model_unavailable", retry_after=2)
        case MemoryError():
            return ApiError(
                503, "there is too little memory for this request", code="out_of_memory",
                retry_after=10,
            )  # fmt: skip
        case ValueError():
            return ApiError(400, str(error), code="invalid_value")
    return None


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """What the engine refuses is told under an API's own names of its parameters."""
    try:
        yield
    except RequestError as error:
        own = error.param or ""
        param = names.get(own, error.param)
        message = str(error)
        if own in names and message.startswith(f"{own}:"):
            message = f"{param}{message.removeprefix(own)}"
        raise ApiError(400, message, param=param, code=error.code) from None
