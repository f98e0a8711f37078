"""Files of KV blocks: what beginnings of prompts came to, kept so as not to be computed again.

::

    $TIDEMILL_HOME/kv/.lock                  held while files are opened or removed
    $TIDEMILL_HOME/kv/<key>.<n>/about.json   what all blocks in it depend on, and the model's files
                               /lock         held by the process that uses it; others take another n
                               /index        an entry for each slot: name, checksum, time of use
                               /blocks       the slots, of one size

A block takes one slot. Where none is free, the block that was not used for longest is overwritten.
Nothing is synced, and no entry is taken back: a block is sound if its bytes have the checksum that
stands beside its name, so what a crash has left half written, or a disk changed, is found when it
is read. It is then computed again, as it is without such a file: nothing here is precious. That
goes for the order of use as well, which is written at the end: what a process that was killed has
left is in the order in which it was written.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill import _native
from tidemill.records import dataclass
from tidemill.store import layout

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from filelock import BaseFileLock

_FORMAT = 1
_ENTRY = struct.Struct("<32sQQ16x")
_NO_NAME = bytes(32)
_FOLDER = re.compile(r"([0-9a-f]{32})\.\d{1,2}")
_MOST_FILES = 16  # of one key
_MOST_ABOUT_BYTES = 1 << 20
_PAGE = 4096
_KEEP_FREE = 10**9  # bytes of the disk
_LOCK_SECONDS = 10.0
_UNUSED_SECONDS = 7 * 86400.0  # after which a file is removed
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class KeptKV:
    """The KV blocks that are kept of one model; ``bytes`` is what they take."""

    path: Path
    sources: tuple[str, ...]
    bytes: int


class KVFile:
    """Blocks by name, on disk: made by ``open_kv_file``.

    One thread reads and writes; any other may ask what there is meanwhile.
    """

    def __init__(self, folder: Path, lock: BaseFileLock, block_bytes: int, limit: int) -> None:
        self._lock = lock
        self._block_bytes = block_bytes
        self._stride = -(-block_bytes // _PAGE) * _PAGE
        self._capacity = limit // (self._stride + _ENTRY.size)
        self._books = threading.Lock()
        self._slots: OrderedDict[bytes, int] = OrderedDict()  # the least recently used first
        self._checksums: dict[bytes, int] = {}
        self._writes = 0
        self._n_slots = 0
        self._free: list[int] = []
        with contextlib.ExitStack() as opened:
            self._index = _open_own(folder / "index")
            opened.callback(os.close, self._index)
            self._blocks = _open_own(folder / "blocks")
            opened.callback(os.close, self._blocks)
            self._load()
            self._descriptors = opened.pop_all()

    def __contains__(self, name: bytes) -> bool:
        return name in self._slots

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def size(self) -> int:
        """Bytes of the blocks."""
        return len(self._slots) * self._stride

    def use(self, names: Sequence[bytes]) -> None:
        """Blocks that follow each other have been used: the last of them makes room first."""
        with self._books:
            for name in reversed(names):
                if name in self._slots:
                    self._slots.move_to_end(name)

    def read(self, name: bytes, data: npt.NDArray[np.uint8]) -> bool:
        """Read a block into ``data`` (block_bytes,); False if it is not there. One that is damaged
        is forgotten, and then a ValueError or an OSError."""
        with self._books:
            slot = self._slots.get(name)
            if slot is None:
                return False
            checksum = self._checksums[name]
        try:
            count = os.preadv(self._blocks, [data.data], slot * self._stride)
            if count != self._block_bytes or _checksum(name, data) != checksum:
                raise ValueError("a block has not the bytes that were written")
        except (OSError, ValueError):
            with self._books:
                self._forget(name)
            raise
        return True

    def write(self, name: bytes, data: npt.NDArray[np.uint8]) -> None:
        """Keep a block that is not there, in the place of another if need be. Raises OSError."""
        checksum = _checksum(name, data)
        slot = self._take_slot()
        try:
            _write_all(self._blocks, data.data, slot * self._stride)
            self._writes += 1
            entry = _ENTRY.pack(name, checksum, self._writes)
            _write_all(self._index, memoryview(entry), slot * _ENTRY.size)
        except OSError as error:
            if slot == self._n_slots:
                self._capacity = slot  # what there is has to do
            elif error.errno in _FULL:
                # Some file systems need room to overwrite. There may be some again later.
                self._free.append(slot)
            raise  # or the disk is bad there: without this slot from now on
        with self._books:
            self._n_slots = max(self._n_slots, slot + 1)
            self._slots[name] = slot
            self._checksums[name] = checksum

    def close(self) -> None:
        """Note which blocks were used last, and let other processes have the file; idempotent."""
        with self._books, contextlib.suppress(OSError), self._descriptors:
            entries = bytearray(self._n_slots * _ENTRY.size)
            for used, (name, slot) in enumerate(self._slots.items(), 1):
                at = slot * _ENTRY.size
                _ENTRY.pack_into(entries, at, name, self._checksums[name], used)
            if self._slots:
                _write_all(self._index, memoryview(entries), 0)
            self._slots.clear()
        self._lock.release()

    def _load(self) -> None:
        """Read the index, as far as there are slots for it."""
        sizes = [os.fstat(descriptor).st_size for descriptor in (self._index, self._blocks)]
        n = min(sizes[0] // _ENTRY.size, -(-sizes[1] // self._stride), self._capacity)
        os.ftruncate(self._index, n * _ENTRY.size)
        os.ftruncate(self._blocks, min(sizes[1], n * self._stride))
        index = os.pread(self._index, n * _ENTRY.size, 0)
        entries = sorted(
            (used, slot, name, checksum)
            for slot, (name, checksum, used) in enumerate(_ENTRY.iter_unpack(index))
            if name != _NO_NAME
        )
        for used, slot, name, checksum in entries:
            self._slots[name] = slot
            self._slots.move_to_end(name)
            self._checksums[name] = checksum
            self._writes = used % 2**63
        self._n_slots = n
        self._free = sorted(set(range(n)) - set(self._slots.values()), reverse=True)

    def _take_slot(self) -> int:
        """A slot that nothing is in; behind the last one, if there is room."""
        with self._books:
            if self._free:
                return self._free.pop()
            if self._n_slots < self._capacity and self._disk_has_room():
                return self._n_slots
            if not self._slots:
                raise OSError(errno.ENOSPC, "too little of the disk would be left free")
            self._forget(next(iter(self._slots)))
            return self._free.pop()

    def _forget(self, name: bytes) -> None:
        self._free.append(self._slots.pop(name))
        del self._checksums[name]

    def _disk_has_room(self) -> bool:
        status = os.fstatvfs(self._blocks)
        return status.f_frsize * status.f_bavail >= _KEEP_FREE + self._stride


def kv_folder() -> Path:
    return layout.home() / "kv"


def open_kv_file(
    identity: Mapping[str, str], sources: Sequence[str], *, block_bytes: int, limit: int
) -> KVFile | None:
    """The file of blocks that depend on ``identity`` (and nothing else but their names), which this
    process then has to itself; None if there are _MOST_FILES of them in use already.

    Blocks have ``block_bytes`` bytes, the file at most ``limit``. Files of the same ``sources`` (a
    model's files) that depend on something else are removed, and any that were not used for a week,
    such as those of processes that ran beside each other once; not those in use. Raises OSError.
    """
    identity = {**identity, "block_bytes": str(block_bytes), "format": str(_FORMAT)}
    encoded = json.dumps(identity, sort_keys=True)
    key = hashlib.sha256(encoded.encode()).hexdigest()[:32]
    with _locked_store():
        for path, about in _entries():
            outdated = not path.name.startswith(key) and about.get("sources") in (
                None, list(sources)
            )  # fmt: skip
            if outdated or time.time() - _last_used(path) > _UNUSED_SECONDS:
                _discard_unused(path)
        for number in range(_MOST_FILES):
            folder = kv_folder() / f"{key}.{number}"
            folder.mkdir(mode=0o700, exist_ok=True)
            lock = _lock_of(folder)
            if lock is None:
                continue
            try:
                if _read_about(folder).get("identity") != identity:
                    for name in ("index", "blocks"):
                        (folder / name).unlink(missing_ok=True)
                about = {"identity": identity, "sources": list(sources)}
                layout.write_durably(folder / "about.json", json.dumps(about))
                return KVFile(folder, lock, block_bytes, limit)
            except BaseException:
                lock.release()
                raise
    return None


def list_kv() -> list[KeptKV]:
    """The kept KV blocks of all models."""
    return [
        KeptKV(path, tuple(map(str, about.get("sources", ()))), layout.size_of(path))
        for path, about in _entries()
    ]


def remove_kv(folder: Path | None = None) -> int:
    """Remove the kept KV blocks of models that lie in ``folder`` (or are it), or all; gives the
    bytes freed. Programs that use them keep them until they end. Raises OSError."""
    freed = 0
    if kv_folder().is_dir():
        with _locked_store():
            for kept in list_kv():
                if folder is None or layout.any_within(kept.sources, folder):
                    layout.discard(kept.path)
                    freed += kept.bytes
    return freed


@contextlib.contextmanager
def _locked_store() -> Iterator[None]:
    from filelock import FileLock, Timeout

    kv_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with FileLock(kv_folder() / ".lock", timeout=_LOCK_SECONDS):
            yield
    except Timeout as error:
        raise OSError(errno.EBUSY, "another process holds the lock", str(kv_folder())) from error


def _lock_of(folder: Path) -> BaseFileLock | None:
    """Its lock, held, unless somebody else has it."""
    from filelock import FileLock, Timeout

    # Whatever thread closes the file lets go of it.
    lock = FileLock(folder / "lock", timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock


def _last_used(folder: Path) -> float:
    """When a process last wrote to it, or ended: seconds since 1970; now if that is not known."""
    try:
        return (folder / "index").stat().st_mtime
    except OSError:
        return time.time()


def _discard_unused(folder: Path) -> None:
    with contextlib.suppress(OSError):
        lock = _lock_of(folder)
        if lock is not None:
            layout.discard(folder)
            lock.release()


def _entries() -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folders there are, with what they say of themselves."""
    with contextlib.suppress(OSError):
        for path in sorted(kv_folder().iterdir()):
            if _FOLDER.fullmatch(path.name):
                yield path, _read_about(path)


def _read_about(folder: Path) -> dict[str, Any]:
    """What stands in about.json; nothing if that is unsound."""
    path = folder / "about.json"
    try:
        if not path.is_file():
            return {}
        with open(path, encoding="utf-8") as file:
            about = json.loads(file.read(_MOST_ABOUT_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    sound = isinstance(about, dict) and isinstance(about.get("sources"), list)
    return about if sound else {}


def _open_own(path: Path) -> int:
    """Open a regular file of our own for reading and writing; whatever else is there is removed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.unlink()
    descriptor = os.open(path, flags, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _checksum(name: bytes, data: npt.NDArray[np.uint8]) -> int:
    """Of a block under its name, so that no other block is taken for it."""
    return int(_native.checksum(data)) ^ int.from_bytes(name[:8], "little")


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)
