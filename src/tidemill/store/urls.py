"""URLs: HTTP with ranges, everything else (``s3://``, ``gs://``, ``file://`` ...) by fsspec."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from tidemill.store.base import (
    DownloadError,
    InvalidNameError,
    MissingDependencyError,
    ModelNotFoundError,
    Progress,
    StoreError,
)
from tidemill.store.fetched import Expected, Fetched, place_names
from tidemill.store.http import HttpSource
from tidemill.store.names import UrlReference
from tidemill.store.selection import Selection, is_gguf, select, split_set
from tidemill.store.transfer import (
    CHUNK_BYTES,
    RemoteFile,
    StaleContentError,
    Stream,
    TransientError,
    Workspace,
    download_all,
)

# Schemes that never leave this machine.
LOCAL_SCHEMES = frozenset({"file", "local", "memory"})
# What to install for a scheme whose packages are an extra of ours.
_EXTRAS = {"s3": "tidemill[fsspec]", "s3a": "tidemill[fsspec]"}


def fetch(
    reference: UrlReference, workspace: Workspace, expected: Expected, progress: Progress
) -> Fetched:
    """Fetch the model behind a URL.

    Raises:
        MissingDependencyError: the packages for this scheme are not installed.
        ModelNotFoundError, AmbiguousModelError: see `selection.select`.
        DownloadError, IntegrityError, DiskFullError: see `transfer.download`.
    """
    if reference.scheme in ("http", "https"):
        remotes, entry = _http_files(reference)
    else:
        remotes, entry = _filesystem_files(reference)
    if reference.sha256 or expected != Expected():
        if len(remotes) > 1:
            raise InvalidNameError(
                f"{reference} is a model of {len(remotes)} files; one checksum cannot verify them"
            )
        (remote,) = remotes
        size = expected.bytes if expected.bytes is not None else remote.bytes
        sha256 = expected.sha256 or reference.sha256
        remotes = [dataclasses.replace(remote, bytes=size, sha256=sha256)]
    return Fetched(files=download_all(remotes, workspace, progress), entry=entry)


def _http_files(reference: UrlReference) -> tuple[list[RemoteFile], str]:
    parts = urlsplit(reference.url)
    folder, slash, name = parts.path.rpartition("/")
    name = unquote(name)
    if not is_gguf(name):
        raise InvalidNameError(
            f"{reference} does not end in .gguf. Over HTTP a model is a GGUF file; for a folder "
            "in Hugging Face layout use hf://, s3:// or a local copy"
        )
    remotes = []
    names = place_names(split_set(name), str(reference))
    for local in names.values():
        url = urlunsplit(parts._replace(path=folder + slash + quote(local), fragment=""))
        label = str(UrlReference(url))
        remotes.append(RemoteFile(local, HttpSource(url, label=label), identity=_digest(url)))
    return remotes, remotes[0].name


def _filesystem_files(reference: UrlReference) -> tuple[list[RemoteFile], str]:
    filesystem, root = _open_filesystem(reference)
    label = str(reference)
    with _filesystem_errors(label):
        info = filesystem.info(root)
        if info["type"] == "directory":
            base, name = root.rstrip("/"), None
            found = filesystem.find(root, maxdepth=2, detail=True)
        else:
            base, _, name = root.rpartition("/")
            others = (f"{base}/{part}" for part in split_set(name) if part != name)
            found = {root: info, **{path: filesystem.info(path) for path in others}}
    listing = {path[len(base) :].lstrip("/"): (path, detail) for path, detail in found.items()}
    selection = select(
        listing, where=label, path=name, choice=lambda file: f"{label.rstrip('/')}/{file}"
    )
    return _remotes(filesystem, listing, selection, label)


def _remotes(
    filesystem: Any, listing: dict[str, tuple[str, Any]], selection: Selection, label: str
) -> tuple[list[RemoteFile], str]:
    names = place_names(selection.files, label)
    remotes = []
    for path, name in names.items():
        full, detail = listing[path]
        size = detail.get("size")
        remotes.append(
            RemoteFile(
                name=name,
                source=FilesystemSource(filesystem, full, label=f"{label} ({name})"),
                identity=_version(filesystem, full, detail),
                bytes=size if isinstance(size, int) else None,
            )
        )
    return remotes, names[selection.entry] if selection.entry else ""


class FilesystemSource:
    """One file of an fsspec file system."""

    def __init__(self, filesystem: Any, path: str, *, label: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self._label = label

    @contextlib.contextmanager
    def open(self, offset: int, validator: str | None) -> Iterator[Stream]:
        with contextlib.ExitStack() as stack:
            with _filesystem_errors(self._label):
                info = self._filesystem.info(self._path)
                version = _version(self._filesystem, self._path, info)
                if validator not in (None, version):
                    raise StaleContentError(f"{self._label}: changed at the source")
                file = stack.enter_context(self._filesystem.open(self._path, "rb"))
                file.seek(offset)
            yield Stream(offset, info.get("size"), version, self._chunks(file))

    def _chunks(self, file: Any) -> Iterator[bytes]:
        while True:
            with _filesystem_errors(self._label):
                chunk = file.read(CHUNK_BYTES)
            if not chunk:
                return
            yield chunk


def _version(filesystem: Any, path: str, info: dict[str, Any]) -> str:
    """What changes when the file does: its entity tag where there is one, else size and times."""
    telling = ("etag", "ETag", "md5Hash", "crc32c", "mtime", "LastModified", "updated", "created")
    known = {key: str(info[key]) for key in ("size", *telling) if info.get(key) is not None}
    return _digest(repr((filesystem.protocol, path, sorted(known.items()))))


def _digest(text: str) -> str:
    """What is kept on disk in the place of ``text``, which may hold a secret."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _open_filesystem(reference: UrlReference) -> tuple[Any, str]:
    scheme = reference.scheme
    try:
        import fsspec
    except ImportError as error:
        raise MissingDependencyError(
            f"{scheme}:// needs fsspec: pip install 'tidemill[fsspec]'"
        ) from error
    if scheme not in fsspec.available_protocols():
        raise InvalidNameError(
            f"{scheme}:// is no kind of model name that is known; fsspec offers "
            f"{', '.join(sorted(fsspec.available_protocols()))}"
        )
    try:
        filesystem, path = fsspec.url_to_fs(reference.url)
    except ImportError as error:
        # fsspec raises advice of its own from the error that names the module.
        missing = error.name or getattr(error.__cause__, "name", None)
        if scheme in _EXTRAS:
            hint = f"pip install '{_EXTRAS[scheme]}'"
        else:
            hint = f"pip install {missing}" if missing else str(error)
        raise MissingDependencyError(
            f"{scheme}:// needs {missing or 'a package'}, which is not installed: {hint}"
        ) from error
    except ValueError as error:
        raise InvalidNameError(f"{reference}: {error}") from error
    except OSError as error:  # some connect at once
        raise DownloadError(f"{reference}: {error}") from error
    return filesystem, str(path)


@contextlib.contextmanager
def _filesystem_errors(label: str) -> Iterator[None]:
    """Turn what a file system raises into errors of the store."""
    try:
        yield
    except StoreError:
        raise
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{label}: not found ({error})") from error
    except PermissionError as error:
        raise DownloadError(f"{label}: access denied: {error}") from error
    except OSError as error:
        raise TransientError(f"{label}: {error}") from error
    except Exception as error:
        # The cloud clients behind fsspec have error classes of their own.
        raise DownloadError(f"{label}: {type(error).__name__}: {error}") from error
