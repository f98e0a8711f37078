"""Why the engine refuses a request: always before anything is allocated or computed."""

from __future__ import annotations


class RequestError(ValueError):
    """A request that cannot be served as it stands.

    ``code`` is a stable machine-readable word (as in the OpenAI API's error object), ``param``
    the parameter at fault.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value"):
        super().__init__(message)
        self.param = param
        self.code = code


class ContextLengthError(RequestError):
    """Prompt and wanted output are together longer than the context."""

    def __init__(self, message: str):
        super().__init__(message, param="prompt", code="context_length_exceeded")


class ConstraintError(ValueError):
    """What an answer must look like costs too much, or cannot be followed any further."""


class QueueFullError(RuntimeError):
    """As many requests wait as may; the client should come back later."""

    code = "queue_full"
