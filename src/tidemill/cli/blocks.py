"""Reports and data on stdout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

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


def echo_json(data: object) -> None:
    import json

    click.echo(json.dumps(data, indent=2, ensure_ascii=False))
