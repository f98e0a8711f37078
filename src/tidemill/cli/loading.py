"""A model loaded for one conversation, as quickly as can be."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidemill.cli.options import ENGINE, SPECULATION, pick
from tidemill.cli.progress import LoadProgress

if TYPE_CHECKING:
    from tidemill.llm import LLM


def load(model: str, options: dict[str, Any], *, prefix_caching: bool) -> LLM:
    """The model of ``run`` and ``chat`` by its name and their options, with progress on stderr."""
    if options["backend"] == "cpu":
        # NumPy's BLAS starts its threads as it is loaded, for products that the kernels compute.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with _no_garbage():
        from tidemill.llm import LLM

        with LoadProgress(model, quiet=options["quiet"]) as progress:
            return LLM(
                model,
                **pick(options, ENGINE + SPECULATION),
                max_sequences=1,
                prefix_caching=prefix_caching,
                offline=options["offline"] or None,
                progress=progress.on_download,
                on_stage=progress.on_stage,
            )


@contextmanager
def _no_garbage() -> Iterator[None]:
    """What a load imports and makes stays. Looking through it for garbage, time and again and once
    more at the end, takes a tenth of a short run."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
