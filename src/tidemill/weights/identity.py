"""Which content a checkpoint has, told without reading all of it."""

from __future__ import annotations

import hashlib
import os
import time

from tidemill.weights.base import Checkpoint
from tidemill.weights.mapped import release_files

_SAMPLE_BYTES = 1024
# Times of change are as coarse as the file system's clock, two seconds at the worst: a file that
# changed just now may change again without a trace.
_SETTLED_NS = 2_000_000_000


def content_identity(checkpoint: Checkpoint, *, now_ns: int | None = None) -> str | None:
    """A name for the content of a checkpoint's files, None if they changed just now or are gone.

    Made of each file's size and times of modification and of change of status, of every tensor's
    name, type and shape, and of the first bytes of its data. The time of change of status (ctime)
    cannot be set by programs: whatever is written into a file, even if its size and modification
    time are put back, and whatever replaces it, makes another identity. So does a copy of the same
    content; an identity never answers for two contents, but a content may have several.

    Where files lie does not count, so that a model may be moved or mounted elsewhere. Reads a
    kilobyte per tensor.
    """
    now = time.time_ns() if now_ns is None else now_ns
    digest = hashlib.sha256()
    for path in checkpoint.files:
        try:
            status = os.stat(path)
        except OSError:
            return None
        if abs(now - status.st_ctime_ns) < _SETTLED_NS:
            return None
        digest.update(f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode())
    for name, tensor in checkpoint.tensors.items():
        digest.update(f"{name!r} {int(tensor.type)} {tensor.shape}\n".encode())
        digest.update(tensor.data[:_SAMPLE_BYTES].tobytes())
    release_files(tensor.data for tensor in checkpoint.tensors.values())
    return digest.hexdigest()
