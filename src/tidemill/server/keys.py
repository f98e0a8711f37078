"""Who may use the server: tenants and their API keys.

Keys are in a TOML file, as hashes; a key cannot be read back from it:

    [[tenants]]
    name = "editor"
    sha256 = ["3f1c…"]            # of each key; `tidemill key new` makes them
    models = ["assistant"]        # default: all
    priority = 0                  # class: all of a smaller one is served first
    weight = 1.0                  # share beside other tenants of the same class
    admin = false                 # may load, unload and change models (/admin)

The file is read again when it changes. One that cannot be read then leaves the keys as they were,
and the log says so.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import time
import tomllib
from pathlib import Path
from typing import Annotated

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
    ``weight``: see fairness.py. The rest are quotas, None where there is none: see quotas.py. The
    bursts are what may come at once, a minute's worth if they are not set."""

    name: str
    sha256: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    priority: Annotated[int, msgspec.Meta(ge=-1000, le=1000)] = 0
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    admin: bool = False
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


ANYBODY = Tenant("anybody", admin=True)
"""Who everybody is where there are no keys."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tenants: list[Tenant]


class Keys:
    """The tenants of a file, or ANYBODY without one."""

    def __init__(self, file: Path | None) -> None:
        """Raises ConfigError if the file cannot be read."""
        self._file = file
        self._tenants: dict[str, Tenant] = {}
        self._version: tuple[int, int] | None = None
        self._checked = 0.0
        if file is not None:
            self._tenants, self._version = self._read(file)

    @property
    def needed(self) -> bool:
        return self._file is not None

    def tenant(self, key: str | None) -> Tenant | None:
        """Whose key that is; None if nobody's."""
        if self._file is None:
            return ANYBODY
        self._refresh(self._file)
        if key is None:
            return None
        return self._tenants.get(digest_of(key))

    def _refresh(self, file: Path) -> None:
        now = time.monotonic()
        if now - self._checked < _RECHECK_SECONDS:
            return
        self._checked = now
        try:
            if _version(file) == self._version:
                return
            self._tenants, self._version = self._read(file)
            log.info("%s: %d keys", file, len(self._tenants))
        except (ConfigError, OSError) as error:
            log.error("the keys stay as they were: %s", error)

    @staticmethod
    def _read(file: Path) -> tuple[dict[str, Tenant], tuple[int, int]]:
        try:
            version = _version(file)
            parsed = msgspec.convert(tomllib.loads(file.read_text("utf-8")), _File)
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}") from None
        except (ValueError, msgspec.ValidationError) as error:
            raise ConfigError(f"{file}: {error}") from None
        tenants: dict[str, Tenant] = {}
        for tenant in parsed.tenants:
            for digest in tenant.sha256:
                if digest in tenants:
                    raise ConfigError(
                        f"{file}: tenants {tenants[digest].name!r} and {tenant.name!r} have the "
                        "same key"
                    )
                tenants[digest] = tenant
        return tenants, version


def digest_of(key: str) -> str:
    # Keys are random and long: nothing could be guessed from a plain hash.
    return hashlib.sha256(key.encode()).hexdigest()


def new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def _version(file: Path) -> tuple[int, int]:
    status = os.stat(file)
    return status.st_mtime_ns, status.st_size
