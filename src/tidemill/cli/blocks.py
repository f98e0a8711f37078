"""Reports and data on stdout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from tidemill.presentation.document import Block


def echo_blocks(blocks: Iterable[Block], *, markdown: bool) -> None:
    """As Markdown, or as text that is as wide as the terminal, within reason."""
    import shutil

    from tidemill.presentation.document import as_markdown, as_text

    if markdown:
        click.echo(as_markdown(blocks), nl=False)
        return
    width = min(110, max(60, shutil.get_terminal_size((88, 24)).columns))
    click.echo(as_text(blocks, width), nl=False)


def echo_json(data: object, file: TextIO | None = None) -> None:
    """What msgspec can encode, indented; ``file`` is in place of stdout."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(data), indent=2).decode(), file)
