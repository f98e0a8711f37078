"""What the kinds of sources give back to `pull`, and the rules they share."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.records import dataclass
from tidemill.store.base import FileRecord, InvalidNameError
from tidemill.store.layout import MANIFEST
from tidemill.store.names import check_relative


@dataclass(frozen=True, slots=True)
class Expected:
    """What the catalogue or the name says about a model in one file."""

    bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """The files that now lie in the workspace. ``entry`` is the one to open; "" for the folder."""

    files: tuple[FileRecord, ...]
    entry: str
    license: str | None = None
    revision: str | None = None


def place_names(paths: Iterable[str], where: str) -> dict[str, str]:
    """The local file name of each remote path: its last part.

    Raises:
        InvalidNameError: a path could leave the folder, or two would meet in one file.
    """
    names: dict[str, str] = {}
    taken: set[str] = {MANIFEST}
    for path in paths:
        name = check_relative(path).rpartition("/")[2]
        if name.lower() in taken:
            raise InvalidNameError(f"{where}: the file name {name!r} cannot be used here")
        taken.add(name.lower())
        names[path] = name
    return names
