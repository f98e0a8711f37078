"""What the store hands out: records of stored models, progress events and errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from tidemill.records import dataclass


class StoreError(ValueError):
    """A model name could not be turned into a local model; the message says what to do."""


class InvalidNameError(StoreError):
    """The name is malformed, or names something that cannot be a model."""


class ModelNotFoundError(StoreError):
    """Nothing goes by this name: no such path, catalogue entry, repository, package or file."""


class AmbiguousModelError(StoreError):
    """The name fits several models; ``choices`` are the names that fit exactly one."""

    def __init__(self, message: str, choices: Sequence[str]) -> None:
        super().__init__(message + "".join(f"\n  {choice}" for choice in choices))
        self.choices = tuple(choices)


class OfflineError(StoreError):
    """The model is not in the store and the network must not be used."""


class DownloadError(StoreError):
    """The network or the server failed; what has arrived is kept and the next pull resumes."""


class IntegrityError(StoreError):
    """The content is not what was announced; it has been removed."""


class DiskFullError(StoreError):
    """There is not enough space for the model; nothing of it has been left behind."""


class MissingDependencyError(StoreError):
    """An optional package is needed for this kind of name; the message says how to install it."""


class CatalogueError(StoreError):
    """A catalogue file is malformed; the message names the file and the entry."""


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """One step of a pull.

    ``done`` and ``total`` are bytes of ``file``; ``total`` is None when it is not known.
    A resumed download starts with ``done`` at what is already there.
    """

    stage: Literal["wait", "download", "unpack", "join"]
    file: str
    done: int
    total: int | None


Progress = Callable[[ProgressEvent], None]


def ignore_progress(event: ProgressEvent) -> None:
    """The progress callback of callers that do not want to know."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of a stored model: ``name`` inside the model's folder, size, SHA-256 in hex."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in the store.

    ``path`` is what a loader opens: the GGUF file (the first one of a split set) or the folder in
    Hugging Face layout. ``source`` says where the model came from, ``revision`` which commit or
    version, ``installed_at`` when (ISO 8601, UTC).
    """

    name: str
    source: str
    path: Path
    files: tuple[FileRecord, ...]
    license: str | None
    revision: str | None
    installed_at: str

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def sha256(self) -> str | None:
        """The checksum of a model in one file; None for several (see ``files``)."""
        return self.files[0].sha256 if len(self.files) == 1 else None


def format_bytes(count: int) -> str:
    """A size for people, in decimal units: ``98.4 MB``."""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


_UNITS = {"": 1, "b": 1} | {
    f"{letter}{kind}b": base**power
    for power, letter in enumerate("kmgt", 1)
    for kind, base in (("", 1000), ("i", 1024))
}


def parse_size(size: int | str, name: str) -> int:
    """The bytes of a setting: ``20GB``, ``500 MB``, ``4GiB``, ``4096``; ``off`` is 0. Raises
    ValueError, which has its ``name``."""
    text = str(size).strip().lower()
    if text == "off":
        return 0
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]*)", text)
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{name}={size!r} is no size; write for instance 20GB, 4GiB or off")
    return int(float(match[1]) * _UNITS[match[2]])
