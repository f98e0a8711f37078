"""``/admin/models``: models loaded, unloaded, added, replaced and removed while others are served.

For tenants that are ``admin`` in the key file; without keys, for whoever can reach the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from tidemill.server.config import ModelConfig
from tidemill.server.errors import ApiError, ModelUnavailable
from tidemill.server.http import Exchange
from tidemill.server.models import Entry
from tidemill.server.service import Service


class Pin(msgspec.Struct, forbid_unknown_fields=True):
    pinned: bool


async def list_all(service: Service, exchange: Exchange) -> None:
    """``GET /admin/models``."""
    check_admin(exchange)
    await exchange.json({"models": [_describe(entry) for entry in service.models]})


async def show(service: Service, exchange: Exchange) -> None:
    """``GET /admin/models/NAME``."""
    await exchange.json(_describe(_entry(service, exchange)))


async def add(service: Service, exchange: Exchange) -> None:
    """``POST /admin/models`` with a ModelConfig: serve another model, once it is loaded."""
    check_admin(exchange)
    config = await exchange.read(ModelConfig)
    with _loading():
        await exchange.while_connected(service.models.add(config))
    await exchange.json(_describe(service.models.entry(config.name)), 201)


async def replace(service: Service, exchange: Exchange) -> None:
    """``PUT /admin/models/NAME`` with a ModelConfig: requests go to the new model once it is
    loaded; those that have begun end on the old one. If it cannot be loaded nothing changes."""
    entry = _entry(service, exchange)
    config = await exchange.read(ModelConfig)
    with _loading():
        await exchange.while_connected(service.models.replace(entry.config.name, config))
    await exchange.json(_describe(entry))


async def remove(service: Service, exchange: Exchange) -> None:
    """``DELETE /admin/models/NAME``: no longer served, once its requests have ended."""
    entry = _entry(service, exchange)
    await service.models.remove(entry.config.name)
    await exchange.json(_describe(entry))


async def load(service: Service, exchange: Exchange) -> None:
    """``POST /admin/models/NAME/load``: the answer comes when it is loaded."""
    entry = _entry(service, exchange)
    await exchange.body()
    await exchange.while_connected(service.models.get(entry.config.name))
    await exchange.json(_describe(entry))


async def unload(service: Service, exchange: Exchange) -> None:
    """``POST /admin/models/NAME/unload``: the answer comes when its memory is free, after the
    requests that use it have ended."""
    entry = _entry(service, exchange)
    await exchange.body()
    await service.models.unload(entry.config.name)
    await exchange.json(_describe(entry))


async def pin(service: Service, exchange: Exchange) -> None:
    """``POST /admin/models/NAME/pin`` with {"pinned": true or false}."""
    entry = _entry(service, exchange)
    entry.config.pinned = (await exchange.read(Pin)).pinned
    await exchange.json(_describe(entry))


@contextmanager
def _loading() -> Iterator[None]:
    """What cannot be loaded is the fault of the request that asks for it."""
    try:
        yield
    except ModelUnavailable as error:
        raise ApiError(400, str(error), param="source", code="cannot_be_loaded") from None


def check_admin(exchange: Exchange) -> None:
    """Raises ApiError 403 for a key that may not change models."""
    if not exchange.tenant.admin:
        raise ApiError(
            403, "this key may not change models; `admin = true` in the key file allows it",
            code="not_admin", kind="permission_error",
        )  # fmt: skip


def _entry(service: Service, exchange: Exchange) -> Entry:
    check_admin(exchange)
    return service.models.entry(exchange.scope["path_params"]["model"])


def _describe(entry: Entry) -> dict[str, Any]:
    model = entry.model
    about: dict[str, Any] = {
        "name": entry.config.name,
        "aliases": entry.config.aliases,
        "source": entry.config.source,
        "state": entry.state,
        "pinned": entry.config.pinned,
        "error": entry.error,
    }
    if model is not None:
        about |= {
            "process": model.worker.pid,
            "loaded_at": int(model.loaded_at),
            "requests": model.users,
            "waiting": model.admission.waiting,
            **{
                name: model.worker.info[name]
                for name in ("max_context", "kv_blocks", "kv_block_size", "memory_bytes")
            },
        }
    return about
