"""Packed files: a model's weights as a backend lays them out, kept so that starts need not repack.

A packed file can always be made again from its model, so nothing here is precious: whatever is
unsound is removed, and what the disk refuses only costs the next start.

::

    $TIDEMILL_HOME/packed/<key>          0    magic, format u32, header bytes u32, CRC-32 u32
                                         20   header: JSON, zero bytes up to `_ALIGNMENT`
                                         ...  image: what the backend maps, to the end of the file
    $TIDEMILL_HOME/packed/<key>.part     one that is being written
    $TIDEMILL_HOME/packed/.lock          held while one is written: one at a time

A file is written under another name, synced and then renamed, so it is there whole or not at all.
The last act of writing it is to set its modification time to the one that the header has: a file
with that time has not been written to since (the *seal*), and its image need not be
read to be trusted. The access time is when it was last used, set by hand: file systems are often
mounted without.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tidemill.records import dataclass
from tidemill.store import layout
from tidemill.store.base import StoreError, parse_size

LIMIT_VARIABLE = "TIDEMILL_PACKED_LIMIT"

_MAGIC = b"TIDEPACK"
_FORMAT = 1
_PREAMBLE = struct.Struct("<8sIII")
_ALIGNMENT = 1 << 16  # the largest page size of the systems that we run on
_MAX_HEADER_BYTES = 1 << 24
_LOCK = ".lock"
_KEY = re.compile(r"[0-9a-f]{32}")
_CHUNK_BYTES = 4 << 20
# What reading a damaged or made-up header can raise.
_UNSOUND = (OSError, ValueError, KeyError, TypeError, RecursionError)

# Together packed files take at most this much, and this share of their disk, and leave this much.
_DEFAULT_LIMIT = 20 * 10**9
_DEFAULT_SHARE = 0.1
_KEEP_FREE = 10**9
# How stale the time of last use may get before it is written again.
_USED_NS = 600 * 10**9


@dataclass(frozen=True, slots=True)
class Header:
    """What a packed file says of itself. ``content`` is the backend's own."""

    key: str
    sources: tuple[str, ...]
    sealed_ns: int
    image_offset: int
    image_bytes: int
    content: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A packed file in the store; ``bytes`` is what it takes, ``used_ns`` when it was last used."""

    path: Path
    header: Header
    bytes: int
    used_ns: int


class Opened:
    """A packed file that is open for reading; a context manager."""

    def __init__(self, path: Path, descriptor: int, header: Header, mtime_ns: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.header = header
        self.sealed = mtime_ns == header.sealed_ns

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def seal(self) -> None:
        """Its image has been found sound: trust it from now on."""
        with contextlib.suppress(OSError):
            os.utime(self.descriptor, ns=(time.time_ns(), self.header.sealed_ns))
            self.sealed = True

    def mark_used(self) -> None:
        """Remember the time, for `make_room`."""
        with contextlib.suppress(OSError):
            status = os.fstat(self.descriptor)
            if abs(time.time_ns() - status.st_atime_ns) > _USED_NS:
                os.utime(self.descriptor, ns=(time.time_ns(), status.st_mtime_ns))


def packed_folder() -> Path:
    return layout.home() / "packed"


def path_of(key: str) -> Path:
    if not _KEY.fullmatch(key):
        raise ValueError(f"no key of a packed file: {key!r}")
    return packed_folder() / key


def packed_limit() -> int:
    """Most bytes of all packed files together; 0 means that none are kept.

    $TIDEMILL_PACKED_LIMIT, for instance ``50GB`` or ``off``; by default 20 GB, or a tenth of the
    disk if that is less. Raises StoreError for a value that is no size.
    """
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    if text:
        try:
            return parse_size(text, LIMIT_VARIABLE)
        except ValueError as error:
            raise StoreError(str(error)) from None
    try:
        total, _ = _disk()
    except OSError:
        return 0
    return min(_DEFAULT_LIMIT, int(_DEFAULT_SHARE * total))


def open_packed(key: str) -> Opened | None:
    """The packed file of that key; None, and the file is removed, if its frame is unsound.

    Checked are that it is a regular file and no link, magic, format, the header's checksum and
    key, and that the file is exactly as long as the header says. Close what is returned.
    """
    path = path_of(key)
    try:
        descriptor = _open_regular(path)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        header = _read_header(descriptor, status)
        if header.key != key:
            raise ValueError("another key")
    except _UNSOUND:
        os.close(descriptor)
        discard_packed(path)
        return None
    return Opened(path, descriptor, header, status.st_mtime_ns)


def _open_regular(path: Path) -> int:
    # A link could lead anywhere; opening a pipe would wait for its writer; looking at a file is no
    # use of it.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(PermissionError):  # for the owner alone
        return os.open(path, flags | getattr(os, "O_NOATIME", 0))
    return os.open(path, flags)


def _read_header(descriptor: int, status: os.stat_result) -> Header:
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("not a regular file")
    magic, number, length, crc = _PREAMBLE.unpack(_read_exactly(descriptor, _PREAMBLE.size, 0))
    if magic != _MAGIC or number != _FORMAT or length > _MAX_HEADER_BYTES:
        raise ValueError("not a packed file of this format")
    encoded = _read_exactly(descriptor, length, _PREAMBLE.size)
    if zlib.crc32(encoded) != crc:
        raise ValueError("the header is damaged")
    fields = json.loads(encoded)
    header = Header(
        key=str(fields["key"]),
        sources=tuple(str(source) for source in fields["sources"]),
        sealed_ns=int(fields["sealed_ns"]),
        image_offset=int(fields["image_offset"]),
        image_bytes=int(fields["image_bytes"]),
        content=dict(fields["content"]),
    )
    if (
        header.image_offset % _ALIGNMENT
        or header.image_offset < _PREAMBLE.size + length
        or header.image_bytes <= 0
        or header.image_offset + header.image_bytes != status.st_size
    ):
        raise ValueError("the file is not as long as its header says")
    return header


def _read_exactly(descriptor: int, size: int, offset: int) -> bytes:
    data = os.pread(descriptor, size, offset)
    if len(data) != size:
        raise ValueError("the file is cut off")
    return data


def write_packed(
    key: str,
    sources: tuple[str, ...],
    content: dict[str, Any],
    image: memoryview,
    *,
    cancelled: Callable[[], bool] = lambda: False,
) -> bool:
    """Put a packed file into the store, durably, and remove those that it replaces: files of the
    same sources.

    False if it is there already, another process is writing one, it was cancelled, or it is larger
    than `packed_limit`. Older files are removed to make room. Raises OSError (of errno ENOSPC if
    too little of the disk would be left free) and StoreError.
    """
    from filelock import FileLock, Timeout

    path = path_of(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(_LOCK))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    try:
        if os.path.lexists(path):
            return False
        _remove_leftovers()
        if not make_room(len(image) + _ALIGNMENT):
            return False
        part = path.with_name(f"{key}.part")
        try:
            if not _write(part, key, sources, content, image, cancelled):
                return False
            os.replace(part, path)
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        layout.sync_folder(path.parent)
        for other in list_packed():
            if other.header.sources == sources and other.header.key != key:
                discard_packed(other.path)
        return True
    finally:
        lock.release()


def _write(
    part: Path,
    key: str,
    sources: tuple[str, ...],
    content: dict[str, Any],
    image: memoryview,
    cancelled: Callable[[], bool],
) -> bool:
    now = time.time_ns()
    # Whole seconds: some file systems keep no finer times.
    sealed_ns = now // 10**9 * 10**9
    fields: dict[str, Any] = {
        "key": key,
        "sources": list(sources),
        "sealed_ns": sealed_ns,
        "image_bytes": len(image),
        "image_offset": 0,
        "content": content,
    }
    room = _PREAMBLE.size + len(json.dumps(fields)) + 20  # the offset's digits
    fields["image_offset"] = offset = -(-room // _ALIGNMENT) * _ALIGNMENT
    encoded = json.dumps(fields).encode()
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(part, flags, 0o644)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, offset + len(image))
        preamble = _PREAMBLE.pack(_MAGIC, _FORMAT, len(encoded), zlib.crc32(encoded))
        _write_all(descriptor, memoryview(preamble + encoded), 0)
        # In pieces that end where huge pages do: the page cache then keeps the file in such.
        for end in range(_CHUNK_BYTES - offset, len(image) + _CHUNK_BYTES, _CHUNK_BYTES):
            if cancelled():
                return False
            begin = max(0, end - _CHUNK_BYTES)
            _write_all(descriptor, image[begin:end], offset + begin)
        os.utime(descriptor, ns=(now, sealed_ns))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)


def list_packed() -> list[PackedFile]:
    """The packed files of the store whose frame is sound, the longest unused first."""
    found = []
    for path in _entries():
        if not _KEY.fullmatch(path.name):
            continue
        with contextlib.suppress(*_UNSOUND):
            descriptor = _open_regular(path)
            try:
                status = os.fstat(descriptor)
                header = _read_header(descriptor, status)
            finally:
                os.close(descriptor)
            found.append(PackedFile(path, header, status.st_size, status.st_atime_ns))
    return sorted(found, key=lambda file: file.used_ns)


def make_room(wanted: int) -> bool:
    """Remove the files that were not used for longest until ``wanted`` more bytes fit; whether
    they do. Raises OSError of errno ENOSPC, and removes nothing, if the disk is too full even so.
    """
    limit = packed_limit()
    if wanted > limit:
        return False
    files = list_packed()
    known = {file.path for file in files}
    for path in _entries():
        if _KEY.fullmatch(path.name) and path not in known:
            discard_packed(path)  # whatever is unsound has no place here
    total = sum(file.bytes for file in files)
    if _free() + total < wanted + _KEEP_FREE:
        raise OSError(
            errno.ENOSPC, f"less than {_KEEP_FREE / 1e9:g} GB of the disk would be left free"
        )
    for file in files:
        if total + wanted <= limit and _free() >= wanted + _KEEP_FREE:
            break
        discard_packed(file.path)
        total -= file.bytes
    return True


def remove_packed(folder: Path | None = None) -> int:
    """Remove the packed files of models that lie in ``folder`` (or are it), or all; gives the
    bytes freed. Programs that use one keep it until they end."""
    freed = 0
    for file in list_packed():
        if folder is None or is_source_in(file, folder):
            discard_packed(file.path)
            freed += file.bytes
    if folder is None:
        for path in _entries():  # what is left is unsound
            if _KEY.fullmatch(path.name):
                discard_packed(path)
    return freed


def is_source_in(file: PackedFile, folder: Path) -> bool:
    """Whether a packed file was made from something in ``folder`` (or from that file)."""
    return layout.any_within(file.header.sources, folder)


def discard_packed(path: Path) -> None:
    """Remove one file or link; what the system refuses stays."""
    with contextlib.suppress(OSError):
        path.unlink()


def _remove_leftovers() -> None:
    """Remove what writers that were killed have left. The lock must be held."""
    for path in _entries():
        if path.suffix == ".part":
            discard_packed(path)


def _entries() -> Iterator[Path]:
    try:
        yield from sorted(packed_folder().iterdir())
    except OSError:
        return


def _disk() -> tuple[int, int]:
    """Bytes of the disk that packed files are on: in all, and free for us."""
    status = os.statvfs(_existing(packed_folder()))
    return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail


def _free() -> int:
    return _disk()[1]


def _existing(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.parents) if parent.exists())
