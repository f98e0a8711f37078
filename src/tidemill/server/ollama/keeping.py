"""``keep_alive``: how long a model stays in memory. That is one thing for all who use the model, so
that where there are keys it is for those of ``admin`` tenants to say."""

from __future__ import annotations

from tidemill.server.admin import check_admin
from tidemill.server.http import Exchange
from tidemill.server.service import Service


def keep_alive(service: Service, exchange: Exchange, name: str, seconds: float | None) -> None:
    """What a request beside its question asks for. Others' changes nothing, as many clients send
    it with every question."""
    if seconds is not None and exchange.tenant.admin:
        service.models.keep_alive(name, seconds)


def unload(service: Service, exchange: Exchange, name: str) -> None:
    """What a request asks for that has no question. Raises ApiError 403."""
    check_admin(exchange)
    service.models.keep_alive(name, 0)
