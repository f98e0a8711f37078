"""Who may use the server: tenants and their API keys.

Of keys only hashes are kept: a key cannot be read back. They are in a TOML file (key_file.py) or in
a SQLite database (key_database.py), and read again when that changes. What cannot be read then
leaves the keys as they were, and the log says so.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec

from tidemill.server.config import ConfigError

log = logging.getLogger("tidemill.server")

_RECHECK_SECONDS = 1.0
_DIGEST = re.compile(r"[0-9a-f]{64}")
KEY_PREFIX = "tm-"

Quota = Annotated[int, msgspec.Meta(ge=1, le=10**15)]
QUOTAS = ("requests_per_minute", "tokens_per_minute", "tokens_per_day", "max_concurrent")


class Tenant(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Whoever has one of ``sha256``'s keys. ``models`` empty: all models. ``priority`` and
    ``weight``: see fairness.py. ``admin``: may change models. ``metrics``: sees what all tenants
    use, as those that are ``admin`` do. The rest are quotas, None where there is none: see
    quotas.py. The bursts are what may come at once, a minute's worth if they are not set."""

    name: str
    sha256: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    priority: Annotated[int, msgspec.Meta(ge=-1000, le=1000)] = 0
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    admin: bool = False
    metrics: bool = False
    requests_per_minute: Quota | None = None
    tokens_per_minute: Quota | None = None
    tokens_per_day: Quota | None = None
    max_concurrent: Quota | None = None
    burst_requests: Quota | None = None
    burst_tokens: Quota | None = None

    def __post_init__(self) -> None:
        for kind in ("requests", "tokens"):
            if getattr(self, f"burst_{kind}") and not getattr(self, f"{kind}_per_minute"):
                raise ValueError(
                    f"tenant {self.name!r}: burst_{kind} means nothing without {kind}_per_minute"
                )
        for digest in self.sha256:
            if not _DIGEST.fullmatch(digest):
                raise ValueError(
                    f"tenant {self.name!r}: sha256 has {digest[:12]!r}, which is no SHA-256 digest "
                    "of 64 hexadecimal digits"
                )

    @property
    def has_quotas(self) -> bool:
        return any(getattr(self, name) is not None for name in QUOTAS)

    def may_use(self, model: str) -> bool:
        return not self.models or model in self.models

    @property
    def sees_all(self) -> bool:
        """Whether what others use is its business."""
        return self.admin or self.metrics


ANYBODY = Tenant("anybody", admin=True)
"""Who everybody is where there are no keys."""

NOBODY = Tenant("nobody", models=("",))
"""Who asks without a key where there are some: no model has that name."""


Usage = dict[tuple[str, int], int]
"""Tokens, by tenant and day (since 1970, UTC)."""


class KeyStore(Protocol):
    """Where tenants and the hashes of their keys are kept. All methods raise ConfigError."""

    path: Path

    def changed(self) -> bool:
        """Whether there may be something that the last ``read`` did not give."""

    def read(self) -> list[Tenant]: ...

    def add_key(self, name: str, settings: Mapping[str, Any], digest: str) -> None:
        """Another key for the tenant, which is made with ``settings`` if there is none; if there
        is, these must be empty."""

    def revoke(self, name: str, prefix: str = "") -> int:
        """Withdraw the keys of the tenant whose digests begin with ``prefix``, and the tenant with
        the last one. How many keys there were."""

    def change(self, name: str, settings: Mapping[str, Any]) -> None:
        """Give a tenant other ``settings``; None for one stands for its default."""

    def add_usage(self, usage: Usage, day: int) -> Usage:
        """Add to the tokens that are kept of tenants. Gives what is kept in all of these days, and
        of ``day`` and later ones; nothing where nothing is kept."""


class Keys:
    """The tenants of a store, or ANYBODY without one."""

    def __init__(self, store: KeyStore | None) -> None:
        """Raises ConfigError if the store cannot be read."""
        self.store = store
        self._tenants: dict[str, Tenant] = {}
        self._checked = time.monotonic()
        self._trouble = ""
        """What the log has been told of last, so as to be told once."""
        if store is not None:
            self._tenants = by_digest(store.read())

    @property
    def needed(self) -> bool:
        return self.store is not None

    def tenant(self, key: str | None) -> Tenant | None:
        """Whose key that is; None if nobody's."""
        if self.store is None:
            return ANYBODY
        self._refresh(self.store)
        if key is None:
            return None
        return self._tenants.get(digest_of(key))

    def _refresh(self, store: KeyStore) -> None:
        now = time.monotonic()
        if now - self._checked < _RECHECK_SECONDS:
            return
        self._checked = now
        try:
            if store.changed():
                tenants = by_digest(store.read())
                if tenants != self._tenants:  # and not just what others have used
                    self._tenants = tenants
                    log.info("%s: %d keys", store.path, len(tenants))
            self._trouble = ""
        except ConfigError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.error("the keys stay as they were: %s", error)


def by_digest(tenants: list[Tenant]) -> dict[str, Tenant]:
    """The tenants by the digests of their keys. Raises ConfigError for two of one name, or with
    one key."""
    found: dict[str, Tenant] = {}
    names: set[str] = set()
    for tenant in tenants:
        if tenant.name in names:
            raise ConfigError(
                f"there are two tenants called {tenant.name!r}; give one all the keys"
            )
        names.add(tenant.name)
        for digest in tenant.sha256:
            if digest in found:
                raise ConfigError(
                    f"tenants {found[digest].name!r} and {tenant.name!r} have the same key"
                )
            found[digest] = tenant
    return found


def digest_of(key: str) -> str:
    # Keys are random and long: nothing could be guessed from a plain hash.
    return hashlib.sha256(key.encode()).hexdigest()


def new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)
