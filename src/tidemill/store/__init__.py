"""Model names to verified local files.

>>> from tidemill import store
>>> store.resolve("smollm2")  # downloaded on first use, then local
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from tidemill.store.kv import KeptKV, list_kv, remove_kv
    from tidemill.store.layout import home
    from tidemill.store.operations import (
        is_offline,
        list_models,
        list_unfinished,
        location,
        pull,
        remove,
    )
    from tidemill.store.packed import PackedFile, list_packed, packed_limit, remove_packed
    from tidemill.store.resolution import resolve

_HOMES = {
    "AmbiguousModelError": "base",
    "CatalogueEntry": "catalogue",
    "CatalogueError": "base",
    "DEFAULT_MODEL": "catalogue",
    "DiskFullError": "base",
    "DownloadError": "base",
    "FileRecord": "base",
    "IntegrityError": "base",
    "InvalidNameError": "base",
    "KeptKV": "kv",
    "MissingDependencyError": "base",
    "ModelNotFoundError": "base",
    "OfflineError": "base",
    "PackedFile": "packed",
    "Progress": "base",
    "ProgressEvent": "base",
    "StoreError": "base",
    "StoredModel": "base",
    "format_bytes": "base",
    "home": "layout",
    "is_offline": "operations",
    "list_kv": "kv",
    "list_models": "operations",
    "list_packed": "packed",
    "list_unfinished": "operations",
    "load_catalogue": "catalogue",
    "location": "operations",
    "packed_limit": "packed",
    "pull": "operations",
    "remove": "operations",
    "remove_kv": "kv",
    "remove_packed": "packed",
    "resolve": "resolution",
}
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
    "KeptKV",
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
    "list_kv",
    "list_models",
    "list_packed",
    "list_unfinished",
    "load_catalogue",
    "location",
    "packed_limit",
    "pull",
    "remove",
    "remove_kv",
    "remove_packed",
    "resolve",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: to open a file that is here, nothing of downloads is needed.
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
