"""What the store does with model names: `pull`, `list_models`, `remove`, and `resolve` where a name
is no path."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from tidemill.records import dataclass
from tidemill.store import layout
from tidemill.store.base import (
    DiskFullError,
    IntegrityError,
    InvalidNameError,
    ModelNotFoundError,
    OfflineError,
    Progress,
    ProgressEvent,
    StoredModel,
    StoreError,
    ignore_progress,
)
from tidemill.store.catalogue import CatalogueEntry, load_catalogue
from tidemill.store.fetched import Expected, Fetched
from tidemill.store.kv import remove_kv
from tidemill.store.local import local_path
from tidemill.store.names import (
    FORMS,
    HubReference,
    PackageReference,
    Reference,
    UrlReference,
    as_text,
    folder_name,
    is_short_name,
    parse_reference,
)
from tidemill.store.packed import remove_packed
from tidemill.store.selection import is_gguf
from tidemill.store.transfer import CHUNK_BYTES, FileWriter, Workspace, full_disk_explained

_TRUE = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, slots=True)
class _Request:
    """What a name asks the store for. ``entry`` is set for names of the catalogue."""

    display: str
    folder: str
    parts: tuple[Reference, ...]
    entry: CatalogueEntry | None

    @property
    def source(self) -> str:
        return " + ".join(str(part) for part in self.parts)

    @property
    def needs_network(self) -> bool:
        from tidemill.store.urls import LOCAL_SCHEMES

        return not all(
            isinstance(part, UrlReference) and part.scheme in LOCAL_SCHEMES for part in self.parts
        )


def stored_or_pulled(text: str, *, offline: bool | None, progress: Progress | None) -> Path:
    """See ``resolve``."""
    catalogue = load_catalogue()
    if (path := local_path(text, catalogue)) is not None:
        return path
    request = _request(text, catalogue)
    if (model := _stored(request)) is not None:
        return model.path
    return _pull(request, offline=offline, progress=progress or ignore_progress).path


def pull(
    name: str,
    *,
    force: bool = False,
    offline: bool | None = None,
    progress: Progress | None = None,
) -> StoredModel:
    """Bring a model into the store, unless it is there.

    Args:
        name: a catalogue name or a URL form of `names.FORMS`; not a path.
        force: fetch again what is there; the old one is kept until the new one is complete.
        offline, progress: as in `resolution.resolve`.

    Raises:
        StoreError: a subclass that says what is wrong and what to do.
    """
    name = as_text(name)
    catalogue = load_catalogue()
    if (path := local_path(name, catalogue)) is not None:
        raise InvalidNameError(f"{path} is a local model already; there is nothing to pull")
    request = _request(name, catalogue)
    if not force and (model := _stored(request)) is not None:
        return model
    return _pull(request, force=force, offline=offline, progress=progress or ignore_progress)


def list_models() -> list[StoredModel]:
    """The complete models in the store, by name."""
    return sorted(layout.stored_models(), key=lambda model: model.name)


def list_unfinished() -> list[tuple[str, int]]:
    """Names and bytes of the downloads that have begun and not ended; `pull` continues them."""
    return [(name, layout.size_of(folder)) for name, folder in layout.unfinished_pulls()]


def remove(name: str) -> int:
    """Remove a model, what has been kept of it, and what an unfinished pull of it has left; gives
    the bytes freed.

    A program that has the model open keeps it until it ends, where the system allows that.

    Raises:
        ModelNotFoundError: there is nothing of this name in the store.
        StoreError: the system refuses, for instance because the model is in use.
    """
    name = as_text(name)
    folder = _folder_of(name)
    model_folder = layout.models_folder() / folder
    downloads = layout.download_folder(folder)
    if not model_folder.exists() and not downloads.exists():
        installed = [model.name for model in list_models()]
        raise ModelNotFoundError(
            f"no model {name!r} in {layout.home()}" + _suggestion(name, installed)
        )
    with _locked(folder, name, ignore_progress):
        freed = layout.size_of(model_folder) + layout.size_of(downloads)
        freed += remove_packed(model_folder) + remove_kv(model_folder)
        try:
            layout.discard(model_folder)
            layout.discard(downloads)
        except OSError as error:
            raise StoreError(f"cannot remove {name!r}: {error}. Is it in use?") from error
    return freed


def location(name: str) -> Path:
    """Where a model lies, or lay, by which what is kept of it is found: a name in the store, or a
    path.

    Raises:
        ModelNotFoundError: there is nothing of this name.
    """
    name = as_text(name)
    path = local_path(name, load_catalogue())
    return Path(os.path.abspath(path)) if path else layout.models_folder() / _folder_of(name)


def is_offline(offline: bool | None = None) -> bool:
    """Whether the network must not be used, as the caller says, else as the environment says."""
    if offline is not None:
        return offline
    return any(
        os.environ.get(variable, "").strip().lower() in _TRUE
        for variable in ("TIDEMILL_OFFLINE", "HF_HUB_OFFLINE")
    )


def _request(name: str, catalogue: dict[str, CatalogueEntry]) -> _Request:
    """
    Raises:
        ModelNotFoundError: a short name that the catalogue does not have.
    """
    if "://" in name:
        reference = parse_reference(name)
        display = str(reference)
        return _Request(display, folder_name(reference.canonical, display), (reference,), None)
    entry = catalogue.get(name.lower())
    if entry is None:
        stored = _stored_short(name.lower())
        if stored is not None:
            return stored
        known = [*catalogue, *(model.name for model in list_models())]
        raise ModelNotFoundError(
            f"there is no model {name!r}" + _suggestion(name, known) + f"\n{FORMS}"
        )
    return _Request(entry.name, folder_name(entry.name, entry.name), entry.parts, entry)


def _stored_short(name: str) -> _Request | None:
    """A short name that is in the store although no catalogue has it any more."""
    if not is_short_name(name) or layout.read_model(layout.models_folder() / name) is None:
        return None
    return _Request(name, name, (), None)


def _suggestion(name: str, known: list[str]) -> str:
    known = sorted(set(known))
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)
    did_you_mean = f"; did you mean {' or '.join(close)}?" if close else ""
    names = ", ".join(known)
    return f"{did_you_mean}\nKnown names: {names}" if names else did_you_mean


def _folder_of(name: str) -> str:
    """The store's folder for a name that may have left the catalogue since."""
    for model in layout.stored_models():
        if model.name == name:
            folder = (
                model.path if model.path.parent == layout.models_folder() else model.path.parent
            )
            return folder.name
    for display, folder in layout.unfinished_pulls():
        if display == name:
            return folder.name
    if "://" in name:
        reference = parse_reference(name)
        return folder_name(reference.canonical, str(reference))
    if is_short_name(name.lower()):
        return name.lower()
    raise ModelNotFoundError(
        f"no model {name!r} in {layout.home()}"
        + _suggestion(name, [model.name for model in list_models()])
    )


def _stored(request: _Request) -> StoredModel | None:
    """The stored model that answers the request: whole, and what the catalogue says it is."""
    model = layout.read_model(layout.models_folder() / request.folder)
    if model is None or request.entry is None:
        return model
    entry = request.entry
    if entry.sha256 is not None:
        return model if model.sha256 == entry.sha256 else None
    return model if model.source == entry.source else None


def _pull(
    request: _Request,
    *,
    force: bool = False,
    offline: bool | None,
    progress: Progress,
) -> StoredModel:
    if not request.parts:
        raise ModelNotFoundError(
            f"{request.display} is in the store but in no catalogue any more, so it is not known "
            "where to fetch it from"
        )
    if is_offline(offline) and request.needs_network:
        raise OfflineError(
            f"{request.display} is not in {layout.home()} and the network must not be used "
            "(offline=True, TIDEMILL_OFFLINE or HF_HUB_OFFLINE). Run "
            f"`tidemill pull {request.display}` where there is a network, and copy "
            f"{layout.models_folder() / request.folder} here if that is another machine"
        )
    workspace = Workspace(layout.download_folder(request.folder))
    with _locked(request.folder, request.display, progress):
        # Another process may have brought it while this one waited.
        if not force and (model := _stored(request)) is not None:
            return model
        try:
            with full_disk_explained(workspace.folder):
                workspace.create()
                layout.write_owner(workspace.folder, request.display)
                fetched = _fetch(request, workspace, progress)
                _check_magic(workspace, fetched)
                workspace.keep_only(fetched.files)
                return _publish(request, workspace, fetched)
        except BaseException as error:
            with contextlib.suppress(OSError):
                if isinstance(error, DiskFullError) or not workspace.has_content():
                    layout.discard(workspace.folder)
            if isinstance(error, OSError):
                raise _cannot_write(error) from error
            raise


def _fetch(request: _Request, workspace: Workspace, progress: Progress) -> Fetched:
    entry = request.entry
    expected = Expected(entry.bytes, entry.sha256) if entry else Expected()
    if len(request.parts) == 1:
        return _fetch_one(request.parts[0], workspace, expected, progress)
    assert entry is not None
    assert entry.file is not None
    identity = f"{request.source}@{entry.sha256 or ''}"
    if record := workspace.finished(entry.file, identity):
        return Fetched(files=(record,), entry=entry.file)
    workspace.require_space(2 * (entry.bytes or 0) - layout.size_of(workspace.folder))
    pieces: list[Path] = []
    for index, reference in enumerate(request.parts):
        part = workspace.part(index)
        fetched = _fetch_one(reference, part, Expected(), progress)
        if len(fetched.files) != 1:
            raise InvalidNameError(f"{reference} is {len(fetched.files)} files; a part is one")
        pieces.append(part.files / fetched.files[0].name)
    return _join(pieces, entry, identity, workspace, progress)


def _join(
    pieces: list[Path],
    entry: CatalogueEntry,
    identity: str,
    workspace: Workspace,
    progress: Progress,
) -> Fetched:
    assert entry.file is not None
    total = sum(piece.stat().st_size for piece in pieces)
    workspace.require_space(total)
    with FileWriter(workspace, entry.file, identity) as writer:
        for piece in pieces:
            with open(piece, "rb") as content:
                while chunk := content.read(CHUNK_BYTES):
                    writer.write(chunk)
                    progress(ProgressEvent("join", entry.file, writer.written, total))
        try:
            record = writer.finish(size=entry.bytes, sha256=entry.sha256)
        except IntegrityError:
            # Which part is wrong is not known, so none of them is worth keeping.
            layout.discard(workspace.folder)
            raise
    return Fetched(files=(record,), entry=entry.file)


def _fetch_one(
    reference: Reference, workspace: Workspace, expected: Expected, progress: Progress
) -> Fetched:
    # Imported when needed: the clients behind some of these take long to import.
    match reference:
        case HubReference():
            from tidemill.store import hub

            return hub.fetch(reference, workspace, expected, progress)
        case PackageReference():
            from tidemill.store import pypi

            return pypi.fetch(reference, workspace, expected, progress)
        case UrlReference():
            from tidemill.store import urls

            return urls.fetch(reference, workspace, expected, progress)


def _check_magic(workspace: Workspace, fetched: Fetched) -> None:
    """Refuse what is no model at all, such as the login page of a network saved as model.gguf.

    Raises:
        InvalidNameError: the name led to a file of another kind.
        IntegrityError: a file named .gguf is none.
    """
    if fetched.entry and not is_gguf(fetched.entry):
        layout.discard(workspace.folder)
        raise InvalidNameError(f"{fetched.entry!r} is no .gguf file, so it cannot be loaded")
    for record in fetched.files:
        if not is_gguf(record.name):
            continue
        with open(workspace.files / record.name, "rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            (workspace.files / record.name).unlink()
            raise IntegrityError(
                f"{record.name} is no GGUF file: it starts with {magic!r}. It was removed; check "
                "the address, and whether the network asks for a login"
            )


def _publish(request: _Request, workspace: Workspace, fetched: Fetched) -> StoredModel:
    model = StoredModel(
        name=request.display,
        source=request.source,
        path=workspace.files / fetched.entry if fetched.entry else workspace.files,
        files=fetched.files,
        license=(request.entry.license if request.entry else None) or fetched.license,
        revision=fetched.revision,
        installed_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    layout.write_manifest(workspace.files, model)
    try:
        target = layout.publish(workspace.files, request.folder)
    except OSError as error:
        raise StoreError(
            f"cannot put {request.display} in place: {error}. Is the old one in use?"
        ) from error
    layout.discard(workspace.folder)
    stored = layout.read_model(target)
    if stored is None:
        raise StoreError(f"{target} was changed by another program while it was put in place")
    return stored


@contextlib.contextmanager
def _locked(folder: str, display: str, progress: Progress) -> Iterator[None]:
    """Hold the model's lock, across processes; the system frees it when a holder is killed."""
    from filelock import FileLock, Timeout

    path = layout.lock_file(folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(ProgressEvent("wait", display, 0, None))
            lock.acquire()
    except OSError as error:
        raise _cannot_write(error) from error
    try:
        yield
    finally:
        lock.release()


def _cannot_write(error: OSError) -> StoreError:
    return StoreError(
        f"cannot write to the store {layout.home()}: {error}; set TIDEMILL_HOME to a folder "
        "that you can write to"
    )
