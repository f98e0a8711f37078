"""``hf://``: repositories of the Hugging Face Hub, or of any endpoint that speaks its protocol.

`huggingface_hub` finds out what there is (and brings tokens, endpoint and client); the content is
fetched here, because its own downloads do not continue after the process was killed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tidemill.store.base import (
    DownloadError,
    InvalidNameError,
    ModelNotFoundError,
    OfflineError,
    Progress,
)
from tidemill.store.fetched import Expected, Fetched, place_names
from tidemill.store.http import HttpSource, status_error, transport_errors
from tidemill.store.names import HubReference
from tidemill.store.selection import select
from tidemill.store.transfer import (
    RETRY_DELAYS_SECONDS,
    RemoteFile,
    TransientError,
    Workspace,
    download_all,
)

if TYPE_CHECKING:
    from huggingface_hub.hf_api import HfApi, ModelInfo, RepoSibling

_API_TIMEOUT_SECONDS = 30.0
_T = TypeVar("_T")


def fetch(
    reference: HubReference, workspace: Workspace, expected: Expected, progress: Progress
) -> Fetched:
    """Fetch the model that ``reference`` names, at the commit that its revision has now.

    Raises:
        ModelNotFoundError, AmbiguousModelError: see `selection.select`.
        DownloadError, IntegrityError, DiskFullError: see `transfer.download`.
    """
    from huggingface_hub import HfApi

    from tidemill import __version__

    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or None
    api = HfApi(endpoint=endpoint, library_name="tidemill", library_version=__version__)
    where = f"hf://{reference.repo}"
    info = _retrying(where, lambda: _model_info(api, reference))
    commit = info.sha or reference.revision or "main"
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    pin = f"@{reference.revision}" if reference.revision else ""
    selection = select(
        siblings,
        where=where,
        path=reference.path,
        quantisation=reference.quantisation,
        choice=lambda file: f"hf://{reference.repo}{pin}/{file}",
    )
    names = place_names(selection.files, where)
    only = expected if len(names) == 1 else Expected()
    remotes = [
        _remote_file(api, reference.repo, commit, siblings[path], name, only)
        for path, name in names.items()
    ]
    return Fetched(
        files=download_all(remotes, workspace, progress),
        entry=names[selection.entry] if selection.entry else "",
        license=_license(info),
        revision=commit,
    )


def _remote_file(
    api: HfApi, repo: str, commit: str, sibling: RepoSibling, name: str, expected: Expected
) -> RemoteFile:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    from tidemill import __version__

    label = f"hf://{repo}/{sibling.rfilename}"
    url = hf_hub_url(repo, sibling.rfilename, revision=commit, endpoint=api.endpoint)
    size = sibling.lfs.size if sibling.lfs else sibling.size
    checksum = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    if size is None or checksum is None:
        # Some mirrors list names only; then the file's own headers tell.
        metadata = _retrying(label, lambda: get_hf_file_metadata(url, timeout=_API_TIMEOUT_SECONDS))
        size, checksum = metadata.size, metadata.etag
    checksum = checksum or ""
    # The Hub's entity tags are SHA-256 for large files and Git's blob hash for small ones.
    blob = size is not None and re.fullmatch(r"[0-9a-f]{40}", checksum) is not None
    return RemoteFile(
        name=name,
        source=HttpSource(
            url,
            label=label,
            headers=build_hf_headers(library_name="tidemill", library_version=__version__),
            # The commit is part of the URL.
            immutable=re.fullmatch(r"[0-9a-f]{40}", commit) is not None,
        ),
        identity=f"{label}@{checksum or commit}",
        bytes=expected.bytes if expected.bytes is not None else size,
        sha256=expected.sha256 or (checksum if re.fullmatch(r"[0-9a-f]{64}", checksum) else None),
        git_sha1=checksum if blob else None,
    )


def _model_info(api: HfApi, reference: HubReference) -> ModelInfo:
    return api.model_info(
        reference.repo,
        revision=reference.revision,
        files_metadata=True,
        timeout=_API_TIMEOUT_SECONDS,
    )


def _retrying(label: str, call: Callable[[], _T]) -> _T:
    """Call the Hub's API, again after failures that may pass."""
    for delay in (*RETRY_DELAYS_SECONDS[:3], None):
        try:
            return _explaining(label, call)
        except TransientError as error:
            if delay is None:
                raise DownloadError(f"{error}; gave up. Pull again later") from error
            time.sleep(delay)
    raise AssertionError("unreachable")


def _explaining(label: str, call: Callable[[], _T]) -> _T:
    """Turn the errors of huggingface_hub into those of the store."""
    from huggingface_hub import errors

    token = "Set HF_TOKEN, or log in with `hf auth login`"
    try:
        with transport_errors(label):
            return call()
    except errors.GatedRepoError as error:
        raise DownloadError(
            f"{label} is gated: accept its terms on its web page first. {token}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"{label}: no such model repository, or a private one. {token} if it is private"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelNotFoundError(f"{label}: no such revision") from error
    except errors.RemoteEntryNotFoundError as error:
        raise ModelNotFoundError(f"{label}: no such file") from error
    except errors.HfHubHTTPError as error:
        raise status_error(error.response.status_code, label) from error
    except errors.OfflineModeIsEnabled as error:
        raise OfflineError(f"{label}: HF_HUB_OFFLINE is set") from error
    except errors.HFValidationError as error:
        raise InvalidNameError(f"{label}: {error}") from error


def _license(info: ModelInfo) -> str | None:
    """The licence as the repository's card states it."""
    if info.card_data is None:
        return None
    for value in (info.card_data.get("license_name"), info.card_data.get("license")):
        if isinstance(value, str):
            return value
    return None
