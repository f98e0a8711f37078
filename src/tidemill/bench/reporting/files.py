"""Reports as files."""

from __future__ import annotations

from pathlib import Path

from tidemill.bench.reporting.document import Document
from tidemill.bench.reporting.markdown import markdown, pictures
from tidemill.bench.reporting.page import html
from tidemill.bench.reporting.svg import as_file


def write_html(document: Document, path: Path) -> None:
    """One file. Raises OSError."""
    path.write_text(html(document), "utf-8")


def write_markdown(document: Document, path: Path) -> Path:
    """A file, and a folder beside it with the pictures, which is returned. Raises OSError."""
    folder = path.with_name(f"{path.stem}-pictures")
    folder.mkdir(exist_ok=True)
    for picture in pictures(document.blocks):
        (folder / f"{picture.name}.svg").write_text(as_file(picture.svg), "utf-8")
    path.write_text(markdown(document, folder.name), "utf-8")
    return folder
