"""From a model name to a verified local file.

What only downloads need is loaded when there is one: most starts have their model at hand.
"""

from __future__ import annotations

import os
from pathlib import Path

from tidemill.store.base import Progress
from tidemill.store.local import local_path
from tidemill.store.names import as_text, is_short_name


def resolve(
    name: str | os.PathLike[str],
    *,
    offline: bool | None = None,
    progress: Progress | None = None,
) -> Path:
    """The local GGUF file or Hugging Face folder of a model, downloaded if it is not here yet.

    Of a split GGUF it is the first file. A bare word is a catalogue name if the catalogue has it,
    else a path; write ``./word`` for a path that has the name of a catalogue entry.

    Args:
        name: any form of `names.FORMS`.
        offline: never use the network. None asks TIDEMILL_OFFLINE and HF_HUB_OFFLINE.
        progress: called with a `ProgressEvent` now and then during a download.

    Raises:
        StoreError: a subclass that says what is wrong and what to do.
    """
    text = as_text(name)
    if not is_short_name(text.lower()) and (path := local_path(text, ())) is not None:
        return path
    from tidemill.store.operations import stored_or_pulled

    return stored_or_pulled(text, offline=offline, progress=progress)
