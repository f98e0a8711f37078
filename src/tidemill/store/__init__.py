"""Model names to verified local files.

>>> from tidemill import store
>>> store.resolve("smollm2")  # downloaded on first use, then local
"""

from tidemill.store.base import (
    AmbiguousModelError,
    CatalogueError,
    DiskFullError,
    DownloadError,
    FileRecord,
    IntegrityError,
    InvalidNameError,
    MissingDependencyError,
    ModelNotFoundError,
    OfflineError,
    Progress,
    ProgressEvent,
    StoredModel,
    StoreError,
    format_bytes,
)
from tidemill.store.catalogue import DEFAULT_MODEL, CatalogueEntry, load_catalogue
from tidemill.store.layout import home
from tidemill.store.operations import (
    is_offline,
    list_models,
    list_unfinished,
    pull,
    remove,
    remove_packed_of,
    resolve,
)
from tidemill.store.packed import PackedFile, list_packed, packed_limit, remove_packed

__all__ = [
    "DEFAULT_MODEL",
    "AmbiguousModelError",
    "CatalogueEntry",
    "CatalogueError",
    "DiskFullError",
    "DownloadError",
    "FileRecord",
    "IntegrityError",
    "InvalidNameError",
    "MissingDependencyError",
    "ModelNotFoundError",
    "OfflineError",
    "PackedFile",
    "Progress",
    "ProgressEvent",
    "StoreError",
    "StoredModel",
    "format_bytes",
    "home",
    "is_offline",
    "list_models",
    "list_packed",
    "list_unfinished",
    "load_catalogue",
    "packed_limit",
    "pull",
    "remove",
    "remove_packed",
    "remove_packed_of",
    "resolve",
]
