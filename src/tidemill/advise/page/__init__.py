"""The interview as a page of this machine: ``tidemill advise --page``.

Everything is a ``GET`` whose query has the answers, so that there is nothing to forge, an answered
form can be kept as a bookmark, and reloading asks nothing. It works without JavaScript. Only this
machine's own browser is answered: it listens on the loopback interface, by that name alone (a page
elsewhere whose name leads here, DNS rebinding, is turned away), and asked by no other page.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Mapping

import uvicorn
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemill.advise.answers import Answers, write
from tidemill.advise.page.form import Form, filled, read
from tidemill.advise.questions import QUESTIONS, SECTIONS
from tidemill.advise.scores import DIMENSIONS, Dimension
from tidemill.presentation import pages
from tidemill.presentation.document import Block, as_html, as_markdown

Report = Callable[[Answers, Mapping[Dimension, float]], list[Block]]
"""The advice for answers and weights."""

_HEADERS = {"cache-control": "no-store", **pages.answer_headers("form-action 'self'")}


def application(
    answers: Answers, weights: Mapping[Dimension, float], engines: Iterable[str], report: Report
) -> Starlette:
    """The page, filled in with ``answers`` and ``weights`` at first. engines: the ids that
    ``case.current`` may name."""
    known = tuple(engines)
    sections = {question.section: SECTIONS[question.section] for question in QUESTIONS}
    templates = Environment(
        loader=PackageLoader("tidemill.advise", "page"), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip

    def form_page(form: Form) -> Response:
        html = templates.get_template("form.html").render(
            form=form, sections=sections, questions=QUESTIONS, dimensions=DIMENSIONS, engines=known
        )
        return HTMLResponse(html, 422 if form.errors else 200)

    def asked(request: Request) -> Form:
        return read(request.query_params.multi_items(), known)

    def interview(request: Request) -> Response:
        return form_page(asked(request) if request.url.query else filled(answers, weights))

    def advice(request: Request) -> Response:
        form = asked(request)
        if form.answers is None:
            return form_page(form)
        blocks = report(form.answers, form.shares)
        html = templates.get_template("advice.html").render(
            report=as_html(blocks), query=request.url.query
        )
        return HTMLResponse(html)

    def answers_file(request: Request) -> Response:
        form = asked(request)
        if form.answers is None:
            return form_page(form)
        return _download(write(form.answers), "answers.toml", "application/toml")

    def advice_file(request: Request) -> Response:
        form = asked(request)
        if form.answers is None:
            return form_page(form)
        text = as_markdown(report(form.answers, form.shares))
        return _download(text, "advice.md", "text/markdown")

    routes = [
        Route("/", interview),
        Route("/advice", advice),
        Route("/answers.toml", answers_file),
        Route("/advice.md", advice_file),
        *(Route(f"/{name}", _asset(file)) for name, file in _assets().items()),
    ]
    guards = [
        Middleware(_Guard),
        Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"]),
    ]
    return Starlette(routes=routes, middleware=guards)


def serve(app: Starlette, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve on the loopback interface until Ctrl-C; port 0 is any free one. Raises OSError."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, lifespan="off",
            ws="none", timeout_graceful_shutdown=1,
        )  # fmt: skip
        on_ready(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


class _Guard:
    """Headers for everything; and nothing for pages of other origins."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        app = self._app
        if pages.is_foreign(Request(scope).headers):
            app = PlainTextResponse(
                "This address is not for links from other pages: type or paste it.\n", 403
            )
        await app(scope, receive, send_guarded)


def _assets() -> dict[str, pages.File]:
    """What the pages bring along; the HTML of this folder is templates."""
    found = pages.files(__package__)
    return {name: file for name, file in found.items() if not name.endswith(".html")}


def _asset(file: pages.File) -> Callable[[Request], Response]:
    return lambda _: Response(file.content, media_type=file.type)


def _download(text: str, name: str, media_type: str) -> Response:
    return Response(
        text, media_type=f"{media_type}; charset=utf-8",
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )  # fmt: skip
