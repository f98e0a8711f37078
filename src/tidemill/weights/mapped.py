"""Mapping a model file into memory, read-only."""

from __future__ import annotations

import mmap
import os
import stat
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


def release_pages(data: npt.NDArray[np.uint8]) -> None:
    """Give the whole pages of a view on a mapped file back to the kernel, which can read them
    again; memory of another kind is left alone."""
    owner: Any = data
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if not isinstance(owner, mmap.mmap) or data.size == 0 or not hasattr(mmap, "MADV_DONTNEED"):
        return
    whole = np.frombuffer(owner, dtype=np.uint8)
    begin = data.ctypes.data - whole.ctypes.data
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (begin + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        owner.madvise(mmap.MADV_DONTNEED, first, last - first)
