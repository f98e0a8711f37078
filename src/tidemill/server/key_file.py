"""Tenants in a TOML file, made to be edited by hand:

    [[tenants]]
    name = "editor"
    sha256 = ["3f1c…"]            # of each key; `tidemill key new` makes them
    models = ["assistant"]        # default: all
    priority = 0                  # class: smaller ones come first
    weight = 1.0                  # share beside other tenants of the same class
    admin = false                 # may load, unload and change models (/admin)
    metrics = false               # sees the figures of all tenants at /metrics
    requests_per_minute = 60      # quotas; default: none
    tokens_per_minute = 100000
    tokens_per_day = 2000000
    max_concurrent = 8

What is used of tokens_per_day is not kept in it, and begins anew with the server.
"""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tidemill.server.config import ConfigError
from tidemill.server.keys import Tenant, Usage, by_digest

_MOST_BYTES = 16 << 20
"""Tens of thousands of tenants. The server stands still while it reads them."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tenants: list[Tenant] = []


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it. Raises OSError for what is none: pipes and devices may let whoever
    reads them wait for ever, or have no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return open(descriptor, "rb")


class KeyFile:
    """See keys.KeyStore. It is only ever added to: whatever else is changed is somebody's text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._version: tuple[int, int, int] | None = None

    def changed(self) -> bool:
        return self._on_disk() != self._version

    def read(self) -> list[Tenant]:
        version = self._on_disk()
        try:
            with open_regular(self.path) as file:
                text = file.read(_MOST_BYTES + 1)
            if len(text) > _MOST_BYTES:
                raise ValueError(f"larger than {_MOST_BYTES} bytes")
            parsed = msgspec.convert(tomllib.loads(text.decode()), _File)
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from None
        except (ValueError, RecursionError, msgspec.ValidationError) as error:
            raise ConfigError(f"{self.path}: {error}") from None
        self._version = version
        return parsed.tenants

    def add_key(self, name: str, settings: Mapping[str, Any], digest: str) -> None:
        tenants = self.read() if self.path.exists() else []
        if any(tenant.name == name for tenant in tenants):
            raise ConfigError(
                f"{self.path} has a tenant {name!r} already; make the key for another name, and "
                "move its hash over"
            )
        by_digest([*tenants, msgspec.convert({**settings, "name": name}, Tenant)])
        fields = {"name": name, "sha256": [digest], **settings}
        lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in fields.items()]
        text = "\n".join(["[[tenants]]", *lines]) + "\n"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with open(descriptor, "ab", buffering=0) as file:
                before = file.tell()
                entry = ("\n" + text if before else text).encode()
                if file.write(entry) < len(entry):  # half of it would spoil the others
                    file.truncate(before)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from None

    def revoke(self, name: str, prefix: str = "") -> int:
        raise self._by_hand(f"delete what it has of tenant {name!r}")

    def change(self, name: str, settings: Mapping[str, Any]) -> None:
        raise self._by_hand(f"change tenant {name!r} in it")

    def add_usage(self, usage: Usage, day: int) -> Usage:
        return {}

    def _by_hand(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self.path} is a text to be edited by hand: {what}, and a server that runs reads it "
            "again; databases (keys.db) are changed by command"
        )

    def _on_disk(self) -> tuple[int, int, int]:
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from None
        return status.st_ino, status.st_mtime_ns, status.st_size
