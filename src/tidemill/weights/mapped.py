"""Mapping a model file into memory, read-only."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.weights.base import CheckpointError

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def map_file(path: Path) -> npt.NDArray[np.uint8]:
    """The bytes of a regular file as a read-only view on its mapping.

    Pages are read when they are touched. The mapping lives as long as any view on it; the file
    must not be truncated meanwhile. CheckpointError if it cannot be read, is empty or is a
    Git LFS pointer.
    """
    try:
        # Before opening: opening a named pipe would wait for its writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise CheckpointError(f"{path}: not a regular file")
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise CheckpointError(f"{path}: the file is empty; download it again")
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name, or shrunk meanwhile
        if isinstance(error, CheckpointError):
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(f"{path}: cannot be read: {reason}") from error
    if mapping[: len(_LFS_POINTER)] == _LFS_POINTER:
        raise CheckpointError(
            f"{path}: this is a Git LFS pointer, not the model; run `git lfs pull` in its folder"
        )
    return np.frombuffer(mapping, dtype=np.uint8)


def release_files(views: Iterable[npt.NDArray[np.uint8]]) -> None:
    """Give all pages of the mapped files that ``views`` look at back to the kernel, which can
    read them again; memory of another kind is left alone.

    Whole files, because reading a few bytes here and there makes their neighbourhoods resident.
    """
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    for owner in {id(owner): owner for owner in map(_owner, views)}.values():
        if isinstance(owner, mmap.mmap):
            owner.madvise(mmap.MADV_DONTNEED)


def _owner(data: Any) -> Any:
    """What the memory behind a view belongs to."""
    while isinstance(data, np.ndarray | memoryview):
        data = data.base if isinstance(data, np.ndarray) else data.obj
    return data
