"""Where the store lies on disk, and the manifest that makes a folder a stored model.

::

    $TIDEMILL_HOME/                  default: $XDG_CACHE_HOME/tidemill, else ~/.cache/tidemill
        catalogue.toml               the user's own catalogue entries
        models/<folder>/             complete, verified models: model.json and the model's files
        downloads/<folder>/          what a pull has so far; never looked at by `resolve`
        packed/                      packed weights (see `tidemill.store.packed`)
        kv/                          KV blocks (see `tidemill.store.kv`)
        bench/                       results (see `tidemill.bench.store`)
        calibrations/                step times (see `tidemill.simulate.calibration`)
        locks/<folder>.lock          held while a model is pulled or removed

A model appears in ``models`` by one rename of a finished folder, so it is there whole or not at
all.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tidemill.store.base import FileRecord, InvalidNameError, StoredModel
from tidemill.store.names import check_relative

MANIFEST = "model.json"
_OWNER = "pull.json"
_FORMAT = 1


def home() -> Path:
    """The store's folder; it need not exist yet."""
    if configured := os.environ.get("TIDEMILL_HOME"):
        return Path(os.path.expanduser(configured)).absolute()
    cache = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(cache).absolute() / "tidemill"


def models_folder() -> Path:
    return home() / "models"


def download_folder(folder: str) -> Path:
    return home() / "downloads" / folder


def lock_file(folder: str) -> Path:
    return home() / "locks" / f"{folder}.lock"


def write_manifest(folder: Path, model: StoredModel) -> None:
    """Write ``model.json`` into ``folder``, durably. ``model.path`` must lie inside ``folder``."""
    content = {
        "format": _FORMAT,
        "name": model.name,
        "source": model.source,
        "license": model.license,
        "revision": model.revision,
        "installed_at": model.installed_at,
        "entry": model.path.relative_to(folder).as_posix(),
        "files": [
            {"name": file.name, "bytes": file.bytes, "sha256": file.sha256} for file in model.files
        ],
    }
    write_durably(folder / MANIFEST, json.dumps(content, indent=2) + "\n")


def read_model(folder: Path) -> StoredModel | None:
    """The model in ``folder``; None unless its manifest is sound and all its files are whole.

    Only sizes are looked at: checksums were verified before the folder was put in place.
    """
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        model = _parse_manifest(folder, content)
        for file in model.files:
            if (folder / file.name).stat().st_size != file.bytes:
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return model


def _parse_manifest(folder: Path, content: Any) -> StoredModel:
    if content["format"] != _FORMAT:
        raise ValueError(f"manifest format {content['format']!r}")
    files = tuple(
        FileRecord(check_relative(str(file["name"])), int(file["bytes"]), str(file["sha256"]))
        for file in content["files"]
    )
    entry = str(content["entry"])
    if entry != "." and entry not in {file.name for file in files}:
        raise InvalidNameError(f"entry {entry!r} is none of the files")
    return StoredModel(
        name=str(content["name"]),
        source=str(content["source"]),
        path=folder if entry == "." else folder / entry,
        files=files,
        license=content["license"],
        revision=content["revision"],
        installed_at=str(content["installed_at"]),
    )


def stored_models() -> Iterator[StoredModel]:
    """The models in the store, ordered by folder name."""
    try:
        folders = sorted(models_folder().iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for folder in folders:
        if (model := read_model(folder)) is not None:
            yield model


def write_owner(workspace: Path, name: str) -> None:
    """Say in the folder of an unfinished pull which model it is for."""
    write_durably(workspace / _OWNER, json.dumps({"name": name}))


def unfinished_pulls() -> Iterator[tuple[str, Path]]:
    """Name and folder of every pull that has begun and not ended, running or not."""
    for path in sorted((home() / "downloads").glob(f"*/{_OWNER}")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            yield str(json.loads(path.read_text(encoding="utf-8"))["name"]), path.parent


def size_of(folder: Path) -> int:
    """Bytes of all files under ``folder``; 0 if there is none."""
    total = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, file)).st_size
    return total


def any_within(files: Iterable[str], folder: Path) -> bool:
    """Whether one of ``files`` lies in ``folder``, or is it."""
    return any(folder in (path, *path.parents) for path in map(Path, files))


def publish(finished: Path, folder: str) -> Path:
    """Move the ``finished`` folder into ``models``, in the place of any earlier one."""
    target = models_folder() / folder
    target.parent.mkdir(parents=True, exist_ok=True)
    sync_folder(finished)
    discard(target)
    os.replace(finished, target)
    sync_folder(target.parent)
    return target


def discard(folder: Path) -> None:
    """Remove ``folder`` so that it is never seen half removed: renamed first, then deleted."""
    import shutil
    import uuid

    trash = home() / "downloads" / f".trash-{uuid.uuid4().hex}"
    trash.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.replace(folder, trash)
    for leftover in trash.parent.glob(".trash-*"):  # ours, and those of processes that were killed
        shutil.rmtree(leftover, ignore_errors=True)


def write_durably(path: Path, text: str) -> None:
    """Replace ``path`` with ``text``: a reader sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` survive a power loss, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
