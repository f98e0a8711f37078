"""``tidemill bench results`` and ``rm``: what was measured before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tidemill.cli.table import table

if TYPE_CHECKING:
    from tidemill.bench.records import Recording
    from tidemill.bench.result import Result
    from tidemill.bench.store import Store


def open_store() -> Store:
    """The user's results; on stderr it says which files in its folder it cannot read."""
    from tidemill.bench.store import Store

    return Store(say=lambda message: click.echo(f"tidemill: {message}", err=True))


class Keeper:
    """Keeps results as they come; what keeps it from that is said, and nothing more comes of it."""

    def __init__(self) -> None:
        self._store: Store | None = open_store()

    def keep(self, result: Result, recording: Recording | None) -> None:
        from tidemill.bench.store import MissingDuckDB, StoreError

        if self._store is None:
            return
        try:
            self._store.put(result, recording)
        except StoreError as error:
            click.echo(f"tidemill: not kept: {error}", err=True)
            if isinstance(error, MissingDuckDB):
                self._store = None  # said once is enough


@click.command("results")
@click.option("--scenario", help="Only of this scenario.")
@click.option("--target", metavar="URL|ENGINE[:MODEL]", help="Only of this engine or address.")
@click.option("--name", help="Only those of this name.")
@click.option("--json", "as_json", is_flag=True, help="The results themselves, as JSON.")
def results(scenario: str | None, target: str | None, name: str | None, as_json: bool) -> None:
    """List what was measured and kept, newest first."""
    found = open_store().results(scenario=scenario, target=target, name=name)
    if as_json:
        import msgspec

        data = msgspec.json.format(msgspec.json.encode({"results": found}), indent=2)
        click.echo(data.decode())
        return
    if not found:
        click.echo("nothing was kept yet, or nothing that fits")
        return
    click.echo(table(("ID", "NAME", "MEASURED", "LOAD", "FIGURES"), [_row(r) for r in found]))


def _row(result: Result) -> tuple[str, ...]:
    from datetime import datetime

    from tidemill.bench.report import load_words

    when = datetime.fromisoformat(result.when).astimezone()
    load = load_words(result.scenario.load)
    return (
        result.id, result.name or "-", f"{when:%Y-%m-%d %H:%M}", load, ", ".join(_figures(result))
    )  # fmt: skip


def _figures(result: Result) -> Iterator[str]:
    """The few that tell one result from another."""
    from tidemill.bench.report import seconds
    from tidemill.bench.starts import medians

    if result.starts:
        for kind, cold in (("cold", True), ("warm", False)):
            if first := medians(result.starts, cold=cold).get("first_token"):
                yield f"first token {kind} {seconds(first)}"
    summary = result.summary
    if summary is None:
        return
    yield f"{summary.output_rate:.1f} tokens/s"
    for name in ("ttft", "tpot"):
        if found := summary.latency.get(name):
            yield f"{name.upper()} p50 {seconds(found['p50'].value)}"
    if summary.attained is not None:
        yield f"SLO {summary.attained:.0%}"
    if summary.errors:
        yield f"{sum(summary.errors.values())} errors"
    if summary.invalid:
        yield "INVALID"


@click.command("rm")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
def rm(ids: tuple[str, ...]) -> None:
    """Remove results. The beginning of an ID will do, if no other begins so."""
    store = open_store()
    for found in [store.find(id) for id in ids]:  # all are there, or none is removed
        click.echo(f"{store.remove(found)}: removed")
