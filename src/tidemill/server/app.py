"""The server as an ASGI application: routes, keys, errors, request ids, the log of requests."""

from __future__ import annotations

import logging
import math
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router

from tidemill import __version__
from tidemill.server import web
from tidemill.server.anthropic.errors import write_error as write_anthropic_error
from tidemill.server.anthropic.messages import count_tokens, messages
from tidemill.server.errors import ApiError, ErrorWriter, api_error
from tidemill.server.http import ClientGone, Exchange, Receive, Scope, Send
from tidemill.server.keys import ANYBODY, Keys, Tenant
from tidemill.server.ollama import catalogue as ollama_catalogue
from tidemill.server.ollama.errors import write_error as write_ollama_error
from tidemill.server.ollama.generate import chat as ollama_chat
from tidemill.server.ollama.generate import generate as ollama_generate
from tidemill.server.openai.answers import write_error
from tidemill.server.openai.catalogue import detokenize, get_model, list_models, tokenize
from tidemill.server.openai.chat import chat_completions
from tidemill.server.openai.completions import completions
from tidemill.server.service import Service

log = logging.getLogger("tidemill.server")
requests_log = logging.getLogger("tidemill.requests")

Handler = Callable[[Service, Exchange], Awaitable[None]]
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}")
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
                self._route("POST", "/v1/chat/completions", chat_completions),
                self._route("POST", "/v1/completions", completions),
                self._route("POST", "/v1/messages", messages, errors=write_anthropic_error),
                self._route(
                    "POST", "/v1/messages/count_tokens", count_tokens, errors=write_anthropic_error
                ),
                *self._ollama_routes(),
                self._route("GET", "/v1/models", list_models),
                self._route("GET", "/v1/models/{model:path}", get_model),
                self._route("POST", "/tokenize", tokenize),
                self._route("POST", "/detokenize", detokenize),
                self._route("GET", "/metrics", _metrics),
                self._route("GET", "/health", _ready, open=True),
                self._route("GET", "/health/live", _live, open=True),
                self._route("GET", "/health/ready", _ready, open=True),
                self._route("GET", "/version", _version, open=True),
                self._route("GET", "/", web.page, open=True),
                self._route("GET", "/web/{name:path}", web.asset, open=True),
            ],
            default=_Endpoint(self, "unknown", _unknown, open=True),
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

    def tenant(self, scope: Scope) -> Tenant:
        """Raises ApiError 401."""
        if not self._keys.needed:
            return ANYBODY
        headers = Headers(scope=scope)
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")
        tenant = self._keys.tenant(given)
        if tenant is None:
            raise ApiError(
                401,
                "this server needs an API key: Authorization: Bearer KEY"
                if not given
                else "this API key is not known here",
                code="invalid_api_key",
                kind="authentication_error",
            )
        return tenant

    def _ollama_routes(self) -> list[Route]:
        routes: list[tuple[str, str, Handler]] = [
            ("POST", "generate", ollama_generate),
            ("POST", "chat", ollama_chat),
            ("POST", "show", ollama_catalogue.show),
            ("GET", "tags", ollama_catalogue.tags),
            ("GET", "ps", ollama_catalogue.running),
        ]
        errors = write_ollama_error
        version, rest = ollama_catalogue.version, ollama_catalogue.unknown
        return [
            *(self._route(method, f"/api/{n}", h, errors=errors) for method, n, h in routes),
            self._route("GET", "/api/version", version, open=True, errors=errors),
            Route("/api/{rest:path}", _Endpoint(self, "unknown", rest, open=True, errors=errors)),
        ]

    def _route(
        self, method: str, path: str, handler: Handler, *, open: bool = False,
        errors: ErrorWriter = write_error,
    ) -> Route:  # fmt: skip
        endpoint = _Endpoint(self, path, handler, open=open, method=method, errors=errors)
        return Route(path, endpoint)


class _Endpoint:
    """One route as an ASGI application of its own. ``open``: without a key, and while draining.
    ``errors`` writes them in the form of the route's API."""

    def __init__(
        self, app: App, path: str, handler: Handler, *, open: bool, method: str | None = None,
        errors: ErrorWriter = write_error,
    ) -> None:  # fmt: skip
        self._app = app
        self._path = path
        self._handler = handler
        self._open = open
        self._method = method
        self._errors = errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app, service = self._app, self._app.service
        exchange = Exchange(
            scope, receive, send, id=_request_id(scope), tenant=ANYBODY,
            max_body=service.config.max_body_bytes, stall_seconds=service.config.stall_seconds,
        )  # fmt: skip
        app.active += not self._open
        try:
            if self._method and scope["method"] not in (self._method, _also(self._method)):
                raise ApiError(405, f"{self._path} takes {self._method}", code="method_not_allowed")
            if not self._open:
                exchange.tenant = app.tenant(scope)
                if service.draining:
                    raise ApiError(
                        503, "the server is shutting down", code="draining", retry_after=5
                    )
            await self._handler(service, exchange)
        except ClientGone:
            exchange.status = exchange.status or _CLIENT_CLOSED
        except Exception as error:
            await self._fail(exchange, error)
        finally:
            app.active -= not self._open
            self._record(exchange)

    async def _fail(self, exchange: Exchange, error: Exception) -> None:
        known = api_error(error)
        if known is None:
            log.error("request %s failed", exchange.id, exc_info=error)
            known = ApiError(
                500,
                f"an error of the server's own; its log has it under {exchange.id}",
                code="internal_error",
            )
        if exchange.status:  # the answer has begun: it can only be cut off
            log.error("request %s broke off: %s", exchange.id, known.message)
            raise error
        headers = {}
        if known.retry_after is not None:
            headers["retry-after"] = str(math.ceil(known.retry_after))
        if known.status == 401:
            headers["www-authenticate"] = "Bearer"
        if known.status == 405 and self._method:
            headers["allow"] = self._method
        try:
            status, body = self._errors(known, exchange.id)
            await exchange.json(body, status, headers)
        except ClientGone:
            exchange.status = _CLIENT_CLOSED

    def _record(self, exchange: Exchange) -> None:
        self._app.service.metrics.http.labels(self._path, str(exchange.status)).inc()
        if self._open:
            return
        requests_log.log(
            logging.DEBUG if self._path == "/metrics" else logging.INFO,
            "%s %s %d", exchange.scope["method"], exchange.path, exchange.status,
            extra={
                "request_id": exchange.id,
                "tenant": exchange.tenant.name,
                "seconds": round(time.monotonic() - exchange.started, 4),
                **exchange.note,
            },
        )  # fmt: skip


def _also(method: str) -> str:
    return "HEAD" if method == "GET" else method


def _request_id(scope: Scope) -> str:
    """The client's own X-Request-Id, if it is a tame one."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


async def _unknown(service: Service, exchange: Exchange) -> None:
    raise ApiError(404, f"there is nothing at {exchange.path}", code="not_found")


async def _live(service: Service, exchange: Exchange) -> None:
    await exchange.json({"status": "ok"})


async def _ready(service: Service, exchange: Exchange) -> None:
    models = {entry.config.name: entry.state for entry in service.models}
    if service.draining:
        await exchange.json({"status": "draining", "models": models}, 503)
    elif not service.models.ready:
        await exchange.json({"status": "loading", "models": models}, 503)
    else:
        await exchange.json({"status": "ok", "models": models})


async def _version(service: Service, exchange: Exchange) -> None:
    await exchange.json({"version": __version__})


async def _metrics(service: Service, exchange: Exchange) -> None:
    await exchange.send_body(service.metrics.text(), "text/plain; version=0.0.4; charset=utf-8")
