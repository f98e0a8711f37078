"""Which kind of store a file of keys is."""

from __future__ import annotations

from pathlib import Path

from tidemill.server.config import ConfigError
from tidemill.server.key_database import MAGIC, KeyDatabase
from tidemill.server.key_file import KeyFile, open_regular
from tidemill.server.keys import KeyStore

_DATABASES = (".db", ".sqlite", ".sqlite3")


def open_key_store(path: Path, *, patience: float = 10.0) -> KeyStore:
    """By what the file holds; by its name where it is empty or not there yet. ``patience``: see
    KeyDatabase. Raises ConfigError if it cannot be read."""
    try:
        with open_regular(path) as file:
            head = file.read(len(MAGIC))
    except FileNotFoundError:
        head = b""
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if head == MAGIC or (not head and path.suffix.lower() in _DATABASES):
        return KeyDatabase(path, patience=patience)
    return KeyFile(path)
