"""Model names that are paths on this machine."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path

from tidemill.store.base import InvalidNameError, ModelNotFoundError
from tidemill.store.selection import is_gguf, select, split_set


def local_path(name: str, short_names: Container[str]) -> Path | None:
    """What a loader opens for the path ``name``; None if it is a name of another form.

    A bare word among ``short_names`` is no path; ``./word`` always is one.

    Raises:
        ModelNotFoundError, InvalidNameError, AmbiguousModelError: a path without a model.
    """
    if "://" in name or name.lower() in short_names:
        return None
    # Not Path.expanduser, which raises where there is no such home.
    path = Path(os.path.expanduser(name))
    try:
        if path.is_dir():
            return _folder(path)
        if path.is_file():
            return _file(path)
    except OSError as error:
        raise ModelNotFoundError(f"{name!r} cannot be looked at: {error.strerror}") from error
    if not (is_gguf(name) or name.startswith("~") or "/" in name or os.sep in name):
        return None
    hint = ""
    if name.count("/") == 1 and name[0] not in "./~" and not is_gguf(name):
        hint = f"; the Hugging Face repository of that name is hf://{name}"
    raise ModelNotFoundError(f"there is no file or folder {name!r}{hint}")


def _file(path: Path) -> Path:
    if not is_gguf(path.name):
        # Says more of files that are part of a model, or of a kind that is never loaded.
        select([path.name], where=str(path.parent), path=path.name)
        raise InvalidNameError(f"{path} is no .gguf file; that or a folder can be loaded")
    parts = [path.with_name(part) for part in split_set(path.name)]
    for part in parts:
        if not part.is_file():
            raise ModelNotFoundError(f"{path} is one of {len(parts)} files; {part} is missing")
    return parts[0]


def _folder(path: Path) -> Path:
    listing = [file.name for file in path.iterdir() if file.is_file()]
    if "config.json" in listing and any(name.endswith(".safetensors") for name in listing):
        return path
    selection = select(listing, where=str(path), choice=lambda name: str(path / name))
    return path / selection.entry if selection.entry else path
