"""Tenants in a SQLite database, changed by `tidemill key`, by several processes at a time.

A tenant's ``settings`` are JSON, with the fields of Tenant. ``usage`` is what all servers together
have given each, by day (since 1970, UTC).

As with any database of SQLite, no other file may be put in its place while a server has it open.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tidemill.server.config import ConfigError
from tidemill.server.keys import Tenant, Usage, by_digest

MAGIC = b"SQLite format 3\0"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS tenants (name TEXT PRIMARY KEY, settings TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS keys (
    sha256 TEXT PRIMARY KEY, tenant TEXT NOT NULL, created INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS usage (
    day INTEGER, tenant TEXT, tokens INTEGER NOT NULL, PRIMARY KEY (day, tenant));
"""


class KeyDatabase:
    """See keys.KeyStore. ``patience``: seconds to wait while another process writes."""

    def __init__(self, path: Path, *, patience: float = 10.0) -> None:
        self.path = path
        self._patience = patience
        self._open: sqlite3.Connection | None = None
        self._version: tuple[int, ...] | None = None

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def changed(self) -> bool:
        with self._telling():
            return self._now() != self._version

    def read(self) -> list[Tenant]:
        with self._telling():
            self.close()  # what it knows of a file that was broken, and is whole again, is wrong
            version = self._now()
            with self._transaction("DEFERRED") as database:
                tenants = self._read(database)
            self._version = version
            return tenants

    def add_key(self, name: str, settings: Mapping[str, Any], digest: str) -> None:
        self._create()
        with self._telling(), self._transaction() as database:
            known = {tenant.name for tenant in self._read(database)}
            if name in known and settings:
                raise ConfigError(f"{self.path} has a tenant {name!r} already; see `key set`")
            if name not in known:
                self._put(database, name, settings)
            database.execute("INSERT INTO keys VALUES (?, ?, ?)", (digest, name, int(time.time())))

    def revoke(self, name: str, prefix: str = "") -> int:
        with self._telling(), self._transaction() as database:
            self._settings(database, name)
            count = database.execute(
                "DELETE FROM keys WHERE tenant = ? AND substr(sha256, 1, ?) = ?",
                (name, len(prefix), prefix.lower()),
            ).rowcount
            if not count and prefix:
                raise ConfigError(f"tenant {name!r} has no key whose hash begins with {prefix!r}")
            if not database.execute("SELECT 1 FROM keys WHERE tenant = ?", (name,)).fetchone():
                database.execute("DELETE FROM tenants WHERE name = ?", (name,))
            return count

    def change(self, name: str, settings: Mapping[str, Any]) -> None:
        with self._telling(), self._transaction() as database:
            new = {**self._settings(database, name), **settings}
            self._put(database, name, {k: v for k, v in new.items() if v is not None})

    def add_usage(self, usage: Usage, day: int) -> Usage:
        since = min([day, *(day for _, day in usage)])
        # Read in the same transaction: if only the reading failed, the same would be added again.
        with self._telling(), self._transaction("IMMEDIATE" if usage else "DEFERRED") as database:
            database.executemany(
                "INSERT INTO usage VALUES (?, ?, ?) ON CONFLICT DO UPDATE "
                "SET tokens = tokens + excluded.tokens",
                [(day, name, tokens) for (name, day), tokens in usage.items()],
            )
            rows = database.execute("SELECT * FROM usage WHERE day >= ?", (since,))
            return {(name, day): tokens for day, name, tokens in rows}

    def _read(self, database: sqlite3.Connection) -> list[Tenant]:
        digests: dict[str, list[str]] = {}
        for digest, name in database.execute("SELECT sha256, tenant FROM keys ORDER BY created"):
            digests.setdefault(name, []).append(digest)
        tenants = [
            _tenant(name, msgspec.json.decode(settings), digests.get(name, []))
            for name, settings in database.execute("SELECT * FROM tenants ORDER BY name")
        ]
        by_digest(tenants)
        return tenants

    def _settings(self, database: sqlite3.Connection, name: str) -> dict[str, Any]:
        row = database.execute("SELECT settings FROM tenants WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise ConfigError(f"{self.path} has no tenant {name!r}")
        return dict(msgspec.json.decode(row[0]))

    @staticmethod
    def _put(database: sqlite3.Connection, name: str, settings: Mapping[str, Any]) -> None:
        _tenant(name, settings, [])  # or it could not be read
        database.execute(
            "INSERT OR REPLACE INTO tenants VALUES (?, ?)",
            (name, msgspec.json.encode(settings).decode()),
        )

    # ---- the connection

    def _create(self) -> None:
        """Make the database if it is not there, for its owner's eyes only."""
        with self._telling():
            if not self.path.exists():
                os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600))
            database = self._database()
            self._write_ahead(database)
            database.executescript(_SCHEMA)

    def _write_ahead(self, database: sqlite3.Connection) -> None:
        """Have readers wait for nobody. SQLite does not wait by itself where another process does
        the same just now."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                database.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _database(self) -> sqlite3.Connection:
        if self._open is None:
            self._open = sqlite3.connect(
                f"{self.path.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None,
                timeout=self._patience,
            )  # fmt: skip
        return self._open

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        database = self._database()
        database.execute(f"BEGIN {kind}")
        try:
            yield database
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Whatever goes wrong is a ConfigError; a connection that may be broken is given up."""
        try:
            yield
        except (sqlite3.Error, OSError, ValueError, msgspec.MsgspecError) as error:
            if isinstance(error, ConfigError):
                raise
            if isinstance(error, sqlite3.DatabaseError):
                self.close()
            what = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"{self.path}: {what}") from None

    def _now(self) -> tuple[int, ...]:
        """Other numbers when another connection has written, or something else into the file."""
        status = os.stat(self.path)
        (version,) = self._database().execute("PRAGMA data_version").fetchone()
        return version, status.st_ino, status.st_mtime_ns, status.st_size


def _tenant(name: str, settings: Mapping[str, Any], digests: list[str]) -> Tenant:
    return msgspec.convert({**settings, "name": name, "sha256": digests}, Tenant)
