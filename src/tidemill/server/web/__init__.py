"""The web page at ``/``: static files, kept in memory, that use the API as any client does.

Only files of this folder and those of every page are served, by exact name: a path is looked up,
never opened. They are revalidated on every use, so that a page and its scripts are of one version.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import NamedTuple

from tidemill.presentation import pages
from tidemill.server.errors import ApiError
from tidemill.server.http import Exchange
from tidemill.server.service import Service

_HEADERS = {
    "cache-control": "no-cache",
    **pages.answer_headers("connect-src 'self'", "form-action 'none'"),
}


class _File(NamedTuple):
    content: bytes
    type: str
    etag: str


@cache
def _files() -> dict[str, _File]:
    return {
        name: _File(*file, f'"{hashlib.sha256(file.content).hexdigest()[:32]}"')
        for name, file in pages.files(__package__).items()
    }


async def page(service: Service, exchange: Exchange) -> None:
    """``GET /``."""
    await _send(exchange, _files()["index.html"])


async def docs(service: Service, exchange: Exchange) -> None:
    """``GET /docs``: the OpenAPI description to read."""
    await _send(exchange, _files()["docs.html"])


async def asset(service: Service, exchange: Exchange) -> None:
    """``GET /web/NAME``. Raises ApiError 404."""
    file = _files().get(exchange.scope["path_params"]["name"])
    if file is None:
        raise ApiError(404, f"there is nothing at {exchange.path}", code="not_found")
    await _send(exchange, file)


async def _send(exchange: Exchange, file: _File) -> None:
    headers = {**_HEADERS, "etag": file.etag}
    if _matches(exchange.header(b"if-none-match"), file.etag):
        await exchange.send_body(b"", file.type, 304, headers)
    else:
        await exchange.send_body(file.content, file.type, 200, headers)


def _matches(given: str | None, etag: str) -> bool:
    """``If-None-Match`` compares weakly: a proxy that compresses may have made the tag a weak
    one."""
    if given is None:
        return False
    tags = {tag.strip().removeprefix("W/") for tag in given.split(",")}
    return etag in tags or "*" in tags
