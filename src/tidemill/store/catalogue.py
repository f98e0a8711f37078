"""The catalogue: short names and exactly what each of them is."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemill.records import dataclass
from tidemill.store.base import CatalogueError, InvalidNameError
from tidemill.store.layout import home
from tidemill.store.names import Reference, check_relative, is_short_name, parse_reference

DEFAULT_MODEL = "smollm2"

_KEYS = frozenset({"title", "license", "source", "parts", "file", "bytes", "sha256"})


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One short name. ``parts`` are joined in order when there are several.

    ``file`` is the name of the joined file; ``bytes`` and ``sha256`` describe the model file.
    """

    name: str
    title: str
    license: str | None
    parts: tuple[Reference, ...]
    file: str | None
    bytes: int | None
    sha256: str | None

    @property
    def source(self) -> str:
        return " + ".join(str(part) for part in self.parts)


def load_catalogue() -> dict[str, CatalogueEntry]:
    """All entries by name: the package's, then the user's own, later ones replacing earlier ones.

    Raises:
        CatalogueError: a catalogue file is unreadable or malformed.
    """
    packaged = Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8")
    entries = parse_catalogue(packaged, "the packaged catalogue.toml")
    config = Path(os.path.expanduser(os.environ.get("XDG_CONFIG_HOME") or "~/.config"))
    for path in (config / "tidemill" / "catalogue.toml", home() / "catalogue.toml"):
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise CatalogueError(f"{path}: cannot be read: {error}") from error
        entries.update(parse_catalogue(text, str(path)))
    return entries


def parse_catalogue(text: str, where: str) -> dict[str, CatalogueEntry]:
    """Read the TOML ``text``; ``where`` names the file in errors.

    Raises:
        CatalogueError: no TOML, an unknown key, a wrong type or a malformed name.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogueError(f"{where}: {error}") from error
    return {name: _parse_entry(name, table, where) for name, table in tables.items()}


def _parse_entry(name: str, table: Any, where: str) -> CatalogueEntry:
    def fail(what: str) -> CatalogueError:
        return CatalogueError(f"{where}: [{name}]: {what}")

    if not is_short_name(name):
        raise fail("a name is lower-case letters, digits, '.', '_' and '-', at most 64 of them")
    if not isinstance(table, Mapping):
        raise fail("is not a table")
    if unknown := sorted(set(table) - _KEYS):
        raise fail(f"unknown key {unknown[0]!r}; known are {', '.join(sorted(_KEYS))}")

    def text(key: str) -> str | None:
        value = table.get(key)
        if value is not None and not isinstance(value, str):
            raise fail(f"{key} must be a string, not {value!r}")
        return value

    sources = [text("source")] if "source" in table else table.get("parts")
    if ("source" in table) == ("parts" in table) or not isinstance(sources, list) or not sources:
        raise fail("needs either source = \"...\" or parts = [\"...\", ...]")  # fmt: skip
    try:
        parts = tuple(parse_reference(str(source)) for source in sources)
        file = text("file")
        if file is not None and "/" in check_relative(file):
            raise InvalidNameError(f"file = {file!r} must be a plain file name")
    except InvalidNameError as error:
        raise fail(str(error)) from error
    if (file is None) != (len(parts) == 1):
        raise fail("file = \"...\" belongs to parts, and only to those")  # fmt: skip
    size = table.get("bytes")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size <= 0):
        raise fail(f"bytes must be a positive integer, not {size!r}")
    sha256 = text("sha256")
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise fail(f"sha256 must be 64 hex digits, not {sha256!r}")
    return CatalogueEntry(
        name=name,
        title=text("title") or name,
        license=text("license"),
        parts=parts,
        file=file,
        bytes=size,
        sha256=sha256.lower() if sha256 else None,
    )
