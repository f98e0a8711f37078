"""The report of ``tidemill bench``: results side by side, with pictures, for who has to choose.

``report(runs)`` makes a ``Document`` of runs (``content.py``), and ``files.py`` puts it into files
as HTML (``page.py``) and Markdown (``markdown.py``). The same runs give the same bytes. Pictures
are drawn by matplotlib, of the extra ``bench``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.bench.reporting.document import Document
    from tidemill.bench.result import Measurement


class ReportError(ValueError):
    """There can be no report: the message says why, and what to do."""


def report(runs: Sequence[Measurement]) -> Document:
    """Raises ReportError where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ReportError(
            "a report's pictures are drawn with matplotlib: pip install 'tidemill[bench]'"
        ) from None
    from tidemill.bench.reporting.content import document

    return document(runs)
