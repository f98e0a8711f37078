"""``GET /v1/models`` and ``/v1/models/NAME`` as Anthropic's clients read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

from tidemill.engine.errors import RequestError
from tidemill.server.anthropic.errors import write_error
from tidemill.server.errors import ApiError, api_error
from tidemill.server.http import Exchange
from tidemill.server.models import Entry
from tidemill.server.service import Service

_PAGE, _LARGEST_PAGE = 20, 1000


def is_anthropic(exchange: Exchange) -> bool:
    """Whether a request to a path that two APIs share is from one of Anthropic's clients: all of
    them send this header."""
    return exchange.header(b"anthropic-version") is not None


async def list_models(service: Service, exchange: Exchange) -> None:
    data = [
        _describe(entry, name)
        for entry in service.visible(exchange.tenant)
        for name in (entry.config.name, *entry.config.aliases)
    ]
    try:
        await exchange.json(_page(data, exchange.scope["query_string"].decode("latin-1")))
    except RequestError as error:
        await _fail(exchange, error)


async def get_model(service: Service, exchange: Exchange) -> None:
    name = exchange.scope["path_params"]["model"]
    try:
        await exchange.json(_describe(service.entry(name, exchange.tenant), name))
    except ApiError as error:
        await _fail(exchange, error)


def _page(data: Sequence[dict[str, Any]], query: str) -> dict[str, Any]:
    """The part of ``data`` that ``limit``, ``after_id`` and ``before_id`` ask for."""
    given = {name: values[-1] for name, values in parse_qs(query).items()}
    limit = given.get("limit", str(_PAGE))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= _LARGEST_PAGE):
        raise RequestError(f"limit is a number from 1 to {_LARGEST_PAGE}", param="limit")
    size = int(limit)
    ids = [model["id"] for model in data]
    start, end = 0, len(data)
    for cursor in ("after_id", "before_id"):
        if (id := given.get(cursor)) is None:
            continue
        if id not in ids:
            raise RequestError(f"{cursor}: there is no model {id!r}", param=cursor)
        if cursor == "after_id":
            start = ids.index(id) + 1
        else:
            end = ids.index(id)
    backwards = "before_id" in given and "after_id" not in given
    page = data[max(start, end - size) : end] if backwards else data[start : min(end, start + size)]
    return {
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(page) < end - start,
    }


def _describe(entry: Entry, name: str) -> dict[str, Any]:
    model = entry.model
    context = model.prompting.max_context if model else entry.config.max_context
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(entry.created, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
    }


async def _fail(exchange: Exchange, error: Exception) -> None:
    """Told here, as the path's errors are written as in OpenAI's API."""
    known = api_error(error)
    assert known is not None
    status, body = write_error(known, exchange.id)
    await exchange.json(body, status)
