"""Bringing one file onto the disk: resumed, verified, and in place only when it is whole.

A pull works in a `Workspace`: what is growing lies in ``partial/``, what is whole in ``files/``,
and moving from one to the other is a rename that follows an fsync and the checks.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tidemill.records import dataclass
from tidemill.store.base import (
    DiskFullError,
    DownloadError,
    FileRecord,
    IntegrityError,
    Progress,
    ProgressEvent,
    format_bytes,
)
from tidemill.store.layout import write_durably

CHUNK_BYTES = 1 << 20
# Left free for everybody else on the disk.
SPARE_BYTES = 64 << 20
# Tries in a row that bring nothing new, and what is waited before each further one.
MAX_FRUITLESS_TRIES = 5
RETRY_DELAYS_SECONDS = (1.0, 2.0, 4.0, 8.0)

_STATE = ".state.json"  # what is known of a file that is being written
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class TransientError(DownloadError):
    """A failure that may pass: a dropped connection, a server that is busy."""


class StaleContentError(TransientError):
    """What is here belongs to another version than the source has now: start over."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Content from a source. ``start`` is the offset of the first chunk: what was asked for, or
    0 where the source cannot continue; ``total`` the size of the whole, if known.
    ``validator`` names this version of the content, for the next try to ask for the same.
    """

    start: int
    total: int | None
    validator: str | None
    chunks: Iterator[bytes]


class ByteSource(Protocol):
    def open(self, offset: int, validator: str | None) -> AbstractContextManager[Stream]:
        """Read from ``offset`` if the content is still the one of ``validator``, else from 0.

        Raises:
            TransientError: trying again may help.
            StoreError: it will not.
        """


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file to fetch. ``name`` is where it goes, without folders.

    ``identity`` tells this content from others that may have gone by the same name: only what has
    the same identity is resumed or kept. ``git_sha1`` is the checksum of Git blobs.
    """

    name: str
    source: ByteSource
    identity: str
    bytes: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None


class Workspace:
    """The folder of one pull."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = folder / "files"
        self.partial = folder / "partial"

    def create(self) -> None:
        self.files.mkdir(parents=True, exist_ok=True)
        self.partial.mkdir(parents=True, exist_ok=True)

    def part(self, index: int) -> Workspace:
        """The workspace of one of several parts, inside this one."""
        part = Workspace(self.folder / "parts" / str(index))
        part.create()
        return part

    def finished(self, name: str, identity: str) -> FileRecord | None:
        """The record of ``files/<name>`` if an earlier pull finished exactly this content."""
        state = self._read_state(name)
        path = self.files / name
        try:
            if state["identity"] == identity and path.stat().st_size == state["bytes"]:
                return FileRecord(name, int(state["bytes"]), str(state["sha256"]))
        except (KeyError, OSError, TypeError, ValueError):
            pass
        return None

    def bytes_present(self, name: str, identity: str) -> int:
        """How much of the file is here already, whole or partial."""
        if self._read_state(name).get("identity") != identity:
            return 0
        for path in (self.files / name, self.partial / name):
            with contextlib.suppress(OSError):
                return path.stat().st_size
        return 0

    def has_content(self) -> bool:
        """Whether there is anything here that a later pull could continue."""
        folders = (self.files, self.partial, *self.folder.glob("parts/*/*/"))
        return any(
            path.stat().st_size > 0
            for folder in folders if folder.is_dir()
            for path in folder.iterdir()
            if path.is_file() and not path.name.endswith(_STATE)
        )  # fmt: skip

    def keep_only(self, records: tuple[FileRecord, ...]) -> None:
        """Remove everything from ``files/`` that is none of these: leftovers of other versions."""
        wanted = {record.name for record in records}
        for path in self.files.iterdir():
            if path.name not in wanted:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def require_space(self, count: int) -> None:
        """Refuse before anything is written if ``count`` more bytes do not fit.

        Raises:
            DiskFullError
        """
        free = shutil.disk_usage(self.folder).free
        if count > 0 and free < count + SPARE_BYTES:
            raise DiskFullError(
                f"not enough space in {self.folder}: {format_bytes(count)} are needed and "
                f"{format_bytes(max(0, free - SPARE_BYTES))} are free (beyond a reserve of "
                f"{format_bytes(SPARE_BYTES)}); free some, or set TIDEMILL_HOME to another disk"
            )

    def _state_path(self, name: str) -> Path:
        return self.partial / f"{name}{_STATE}"

    def _read_state(self, name: str) -> dict[str, Any]:
        try:
            state = json.loads(self._state_path(name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def _write_state(self, name: str, state: dict[str, Any]) -> None:
        write_durably(self._state_path(name), json.dumps(state))


class FileWriter:
    """Writes ``files/<name>``, through ``partial/<name>``, keeping the checksums as it goes.

    With ``resume`` it continues what an earlier process left of the same identity.
    """

    def __init__(
        self,
        workspace: Workspace,
        name: str,
        identity: str,
        *,
        resume: bool = False,
        size_for_git: int | None = None,
    ) -> None:
        self._workspace = workspace
        self._name = name
        self._identity = identity
        self._size_for_git = size_for_git
        self._path = workspace.partial / name
        state = workspace._read_state(name)
        continues = resume and state.get("identity") == identity and self._path.exists()
        validator = state.get("validator") if continues else None
        self.validator: str | None = validator if isinstance(validator, str) else None
        (workspace.files / name).unlink(missing_ok=True)
        if not continues:
            self._path.unlink(missing_ok=True)
            workspace._write_state(name, {"identity": identity, "validator": None})
        self._file = open(self._path, "r+b" if continues else "w+b")  # noqa: SIM115
        self._hash_what_is_there()

    def _hash_what_is_there(self) -> None:
        self._sha256 = hashlib.sha256()
        self._git_sha1 = hashlib.sha1(usedforsecurity=False)
        if self._size_for_git is not None:
            self._git_sha1.update(b"blob %d\0" % self._size_for_git)
        self.written = 0
        self._file.seek(0)
        while chunk := self._file.read(CHUNK_BYTES):
            self._account(chunk)

    def _account(self, chunk: bytes) -> None:
        self._sha256.update(chunk)
        if self._size_for_git is not None:
            self._git_sha1.update(chunk)
        self.written += len(chunk)

    def start_version(self, validator: str | None) -> None:
        """Remember which version of the content is being written, for later tries."""
        if validator != self.validator:
            self.validator = validator
            self._workspace._write_state(
                self._name, {"identity": self._identity, "validator": validator}
            )

    def restart(self) -> None:
        """Forget what has been written, and of which version it was."""
        self.start_version(None)
        self._file.seek(0)
        self._file.truncate()
        self._hash_what_is_there()

    def write(self, chunk: bytes) -> None:
        with full_disk_explained(self._path):
            self._file.write(chunk)
        self._account(chunk)

    def finish(
        self, *, size: int | None = None, sha256: str | None = None, git_sha1: str | None = None
    ) -> FileRecord:
        """Verify, make durable and put in place.

        Raises:
            IntegrityError: the content differs from the size or checksums given; it is removed.
        """
        record = FileRecord(self._name, self.written, self._sha256.hexdigest())
        problem = None
        if size is not None and size != record.bytes:
            problem = f"{size} bytes expected, {record.bytes} received"
        elif sha256 is not None and sha256 != record.sha256:
            problem = f"sha256 {sha256} expected, {record.sha256} received"
        elif git_sha1 is not None and git_sha1 != self._git_sha1.hexdigest():
            problem = f"Git blob {git_sha1} expected, {self._git_sha1.hexdigest()} received"
        if problem:
            self.abandon()
            raise IntegrityError(
                f"{self._name} is not what was announced: {problem}. It was removed; pull again, "
                "and if that repeats, the source has changed or the connection alters content"
            )
        with full_disk_explained(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._workspace._write_state(
                self._name,
                {"identity": self._identity, "bytes": record.bytes, "sha256": record.sha256},
            )
        os.replace(self._path, self._workspace.files / self._name)
        return record

    def abandon(self) -> None:
        """Remove what has been written."""
        self._file.close()
        self._path.unlink(missing_ok=True)
        self._workspace._state_path(self._name).unlink(missing_ok=True)

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Closing writes what is buffered, which fails too when that is what failed.
        with contextlib.suppress(OSError):
            self._file.close()


@contextlib.contextmanager
def full_disk_explained(path: Path) -> Iterator[None]:
    """Turn the system's errors about space into a DiskFullError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFullError(
                f"the disk is full ({error.strerror}) while writing {path}; free some space, or "
                "set TIDEMILL_HOME to another disk, and pull again"
            ) from error
        raise


def download_all(
    remotes: Sequence[RemoteFile], workspace: Workspace, progress: Progress
) -> tuple[FileRecord, ...]:
    """Fetch every file, once it is known that what is missing of them fits.

    Raises:
        DownloadError, IntegrityError, DiskFullError: see `download`.
    """
    present = sum(workspace.bytes_present(remote.name, remote.identity) for remote in remotes)
    workspace.require_space(sum(remote.bytes or 0 for remote in remotes) - present)
    return tuple(download(remote, workspace, progress) for remote in remotes)


def download(remote: RemoteFile, workspace: Workspace, progress: Progress) -> FileRecord:
    """Fetch ``remote`` into the workspace, continuing where an earlier try or process stopped.

    Raises:
        DownloadError: too many tries in a row brought nothing new.
        IntegrityError, DiskFullError: as they say.
    """
    if record := workspace.finished(remote.name, remote.identity):
        return record
    with FileWriter(
        workspace,
        remote.name,
        remote.identity,
        resume=True,
        size_for_git=remote.bytes if remote.git_sha1 else None,
    ) as writer:
        fruitless = 0
        furthest = writer.written
        while True:
            try:
                _receive(remote, writer, workspace, progress)
                break
            except TransientError as error:
                fruitless = 0 if writer.written > furthest else fruitless + 1
                furthest = max(furthest, writer.written)
                if isinstance(error, StaleContentError):
                    writer.restart()
                if fruitless >= MAX_FRUITLESS_TRIES:
                    kept = f"; {format_bytes(writer.written)} are kept" if writer.written else ""
                    raise DownloadError(
                        f"{error}; gave up after {fruitless} tries{kept}. Pull again to continue"
                    ) from error
                time.sleep(RETRY_DELAYS_SECONDS[max(0, fruitless - 1)])
        return writer.finish(size=remote.bytes, sha256=remote.sha256, git_sha1=remote.git_sha1)


def _receive(
    remote: RemoteFile, writer: FileWriter, workspace: Workspace, progress: Progress
) -> None:
    """One try; writes until the content ends."""
    if remote.bytes is not None and writer.written > remote.bytes:
        writer.restart()
    if remote.bytes is not None and writer.written == remote.bytes:
        return
    with remote.source.open(writer.written, writer.validator) as stream:
        if stream.start != writer.written:
            writer.restart()
        writer.start_version(stream.validator)
        total = remote.bytes if remote.bytes is not None else stream.total
        if total is not None:
            workspace.require_space(total - writer.written)
        progress(ProgressEvent("download", remote.name, writer.written, total))
        for chunk in stream.chunks:
            if total is not None and writer.written + len(chunk) > total:
                writer.abandon()
                raise IntegrityError(
                    f"{remote.name} is longer than the {total} bytes announced; it was removed"
                )
            writer.write(chunk)
            progress(ProgressEvent("download", remote.name, writer.written, total))
    if total is not None and writer.written < total:
        raise TransientError(
            f"the connection ended after {writer.written} of {total} bytes of {remote.name}"
        )
