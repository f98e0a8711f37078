"""The server as an ASGI application: routes, keys, errors, request ids, the log of requests."""

from __future__ import annotations

import logging
import math
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router

from tidemill.server.browsers import check_browser
from tidemill.server.errors import ApiError, api_error
from tidemill.server.http import ClientGone, Exchange, Receive, Scope, Send
from tidemill.server.keys import ANYBODY, NOBODY, Keys, Tenant
from tidemill.server.ollama.errors import write_error as write_ollama_error
from tidemill.server.operations import OPERATIONS, Operation
from tidemill.server.rate_limits import anthropic_headers, openai_headers
from tidemill.server.service import Service

log = logging.getLogger("tidemill.server")
requests_log = logging.getLogger("tidemill.requests")

_REQUEST_ID = re.compile(r"[\w.:-]{1,128}")
PATHS = [operation.path for operation in OPERATIONS]
_ANY_METHOD = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_CLIENT_CLOSED = 499  # as nginx writes it in its log: nobody was answered


class App:
    """Answers HTTP requests with a service. Closed while it drains: see ``serve.py``."""

    def __init__(self, service: Service, keys: Keys) -> None:
        self.service = service
        self._keys = keys
        self.active = 0
        """Requests to models that have not been answered yet."""
        self._router = Router(
            [
                *(Route(path, self._endpoints(path)) for path in dict.fromkeys(PATHS)),
                # What clients of Ollama ask for in vain is told in their form.
                Route("/api/{rest:path}", _Endpoint(self, _NOTHING_OF_OLLAMA)),
            ],
            default=_Endpoint(self, _NOTHING),
        )
        self._asgi: Any = self._router
        origins = service.config.allow_origins
        if origins:
            cors = Middleware(
                CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"],
                allow_headers=["*"],
            )  # fmt: skip
            self._asgi = cors.cls(self._router, *cors.args, **cors.kwargs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._asgi(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    def tenant(self, scope: Scope, *, open: bool) -> Tenant:
        """Who asks. What is ``open`` is for NOBODY as well; else raises ApiError 401, or 403 for
        what a page of another site has a browser send."""
        headers = Headers(scope=scope)
        if not self._keys.needed:
            if not open:
                check_browser(headers, self.service.config)
            return ANYBODY
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")
        tenant = self._keys.tenant(given)
        if tenant is not None:
            return tenant
        if open:
            return NOBODY
        raise ApiError(
            401,
            "this server needs an API key: Authorization: Bearer KEY"
            if not given
            else "this API key is not known here",
            code="invalid_api_key",
            kind="authentication_error",
        )

    def knows(self, tenant: Tenant) -> bool:
        """Whether that is whose key a request came with, where one is needed."""
        return tenant is not ANYBODY or not self._keys.needed

    def _endpoints(self, path: str) -> _ByMethod:
        return _ByMethod({o.method: _Endpoint(self, o) for o in OPERATIONS if o.path == path})


class _ByMethod:
    """Endpoints of one path. What none of them takes, the first refuses."""

    def __init__(self, endpoints: Mapping[str, _Endpoint]) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = next(iter(self._endpoints.values()))
        await self._endpoints.get(scope["method"], first)(scope, receive, send)


class _Endpoint:
    """One operation as an ASGI application of its own."""

    def __init__(self, app: App, operation: Operation) -> None:
        self._app = app
        self._operation = operation
        self._open = operation.open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app, service = self._app, self._app.service
        exchange = Exchange(
            scope, receive, send, id=_request_id(scope), tenant=ANYBODY,
            max_body=service.config.max_body_bytes, stall_seconds=service.config.stall_seconds,
        )  # fmt: skip
        app.active += not self._open
        try:
            if scope["method"] not in _accepted(self._operation.method):
                raise ApiError(
                    405, f"{exchange.path} takes {self._allowed}", code="method_not_allowed"
                )
            exchange.tenant = app.tenant(scope, open=self._open)
            if not self._open:
                exchange.headers = partial(self._limits, exchange.tenant)
                if service.draining:
                    raise ApiError(
                        503, "the server is shutting down", code="draining", retry_after=5
                    )
            await self._operation.handler(service, exchange)
        except ClientGone:
            exchange.status = exchange.status or _CLIENT_CLOSED
        except Exception as error:
            await self._fail(exchange, error)
        finally:
            app.active -= not self._open
            self._record(exchange)

    @property
    def _allowed(self) -> str:
        """The methods that this path takes."""
        return ", ".join(o.method for o in OPERATIONS if o.path == self._operation.path)

    def _limits(self, tenant: Tenant) -> dict[str, str]:
        """The headers that tell of the tenant's quotas."""
        quotas, now = self._app.service.quotas, time.monotonic()
        limits = quotas.limits(tenant, now)
        if self._operation.group == "Anthropic":
            return anthropic_headers(limits, quotas.wall(now))
        return openai_headers(limits)

    async def _fail(self, exchange: Exchange, error: Exception) -> None:
        known = api_error(error)
        if known is None:
            log.error("request %s failed", exchange.id, exc_info=error)
            known = ApiError(
                500,
                f"an error of the server's own; its log has it under {exchange.id}",
                code="internal_error",
            )
        exchange.error = known.code
        if exchange.status:  # the answer has begun: it can only be cut off
            log.error("request %s broke off: %s", exchange.id, known.code)
            raise error
        headers = {}
        if known.retry_after is not None:
            headers["retry-after"] = str(math.ceil(known.retry_after))
            # In which OpenAI's and Anthropic's clients look first.
            headers["retry-after-ms"] = str(math.ceil(known.retry_after * 1000))
        if known.status == 401:
            headers["www-authenticate"] = "Bearer"
        if known.status == 405:
            headers["allow"] = self._allowed
        try:
            status, body = self._operation.errors(known, exchange.id)
            await exchange.json(body, status, headers)
        except ClientGone:
            exchange.status = _CLIENT_CLOSED

    def _record(self, exchange: Exchange) -> None:
        path = self._operation.path
        known = not self._open and self._app.knows(exchange.tenant)
        tenant = exchange.tenant if known else None
        self._app.service.metrics.answered(path, exchange.status, tenant)
        if self._open:
            return
        if self._app.service.tracing is not None:
            self._app.service.tracing.record(exchange, path)
        now, config = time.monotonic(), self._app.service.config
        requests_log.log(
            logging.DEBUG if path == "/metrics" else logging.INFO,
            "%s %s %d", exchange.scope["method"], exchange.path, exchange.status,
            extra={
                "request_id": exchange.id,
                **({"tenant": tenant.name} if tenant else {}),
                "status": exchange.status,
                **({"error": exchange.error} if exchange.error else {}),
                **exchange.account.line(now),
                "duration": round(now - exchange.started, 4),
                **(exchange.account.texts() if config.log_prompts else {}),
            },
        )  # fmt: skip


def _accepted(method: str) -> tuple[str, ...]:
    return {"GET": ("GET", "HEAD"), "": _ANY_METHOD}.get(method, (method,))


def _request_id(scope: Scope) -> str:
    """The client's own X-Request-Id, if it is a tame one."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


async def _nothing(service: Service, exchange: Exchange) -> None:
    raise ApiError(404, f"there is nothing at {exchange.path}", code="not_found")


_NOTHING = Operation("", "unknown", _nothing, "Anything else", open=True)
_NOTHING_OF_OLLAMA = replace(_NOTHING, errors=write_ollama_error)
