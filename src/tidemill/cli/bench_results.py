"""``tidemill bench results``, ``compare`` and ``rm``: what was measured before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.blocks import echo_json
from tidemill.cli.printable import printable
from tidemill.cli.table import table

if TYPE_CHECKING:
    from tidemill.bench.compare import Comparison
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


def show_result(id: str, by_definitions: bool) -> None:
    """What ``bench show`` does with an id. Raises ScenarioError if nothing is called so."""
    from tidemill.bench import definitions, report
    from tidemill.bench import scenario as known
    from tidemill.bench.store import UnknownResult

    store = open_store()
    try:
        result = store.get(id)
    except UnknownResult:
        raise known.ScenarioError(
            f"there is no scenario {id!r}, and no result; scenarios are {', '.join(known.names())};"
            " `tidemill bench results` lists results"
        ) from None
    if not by_definitions:
        click.echo(printable(report.text(result)))
        return
    recording = store.recording(id)
    if recording is None:
        raise click.ClickException(f"{result.id} has no requests, only starts")
    click.echo(definitions.text(definitions.definitions(recording, result.slo)))


@click.command("results")
@click.option("--scenario", help="Only of this scenario.")
@click.option("--target", metavar="URL|ENGINE[:MODEL]", help="Only of this engine or address.")
@click.option("--name", help="Only those of this name.")
@click.option("--json", "as_json", is_flag=True, help="The results themselves, as JSON.")
def results(scenario: str | None, target: str | None, name: str | None, as_json: bool) -> None:
    """List what was measured and kept, newest first."""
    from tidemill.bench import targets

    if target is not None and "://" in target:
        target = targets.shown(targets.parse(target).url or "")  # as it is kept
    found = open_store().results(scenario=scenario, target=target, name=name)
    if as_json:
        echo_json({"results": found})
        return
    if not found:
        click.echo("nothing was kept yet, or nothing that fits")
        return
    header = ("ID", "NAME", "MEASURED", "LOAD", "FIGURES")
    click.echo(table(header, [tuple(map(printable, _row(result))) for result in found]))


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
    from tidemill.bench.report import percent, seconds
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
        yield f"SLO {percent(summary.attained, 0)}"
    if summary.errors:
        yield f"{sum(summary.errors.values())} errors"
    if summary.invalid:
        yield "INVALID"


@click.command("rm")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
def rm(ids: tuple[str, ...]) -> None:
    """Remove results. The beginning of an ID will do, if no other begins so."""
    store = open_store()
    for found in dict.fromkeys([store.find(id) for id in ids]):  # all are there, or none is removed
        click.echo(f"{store.remove(found)}: removed")


@click.command("compare", short_help="Say whether one result is better than another.")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--scenario", help="Only this one of several that both have.")
@click.option("--force", is_flag=True, help="Compare even if they were not asked the same.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--markdown", "as_markdown", is_flag=True, help="As Markdown.")
def compare(
    a: str, b: str, scenario: str | None, force: bool, as_json: bool, as_markdown: bool
) -> None:
    """Say of every figure whether B is better or worse than A, or not to be told from it.

    A and B are IDs of results (`tidemill bench results`), names given by `bench run --name`, of
    which all runs are taken together as repeats, or files of `bench run --json`.
    """
    if as_json and as_markdown:
        raise click.UsageError("--json or --markdown, not both")
    from tidemill.bench import compare as comparing
    from tidemill.bench.compare import words
    from tidemill.bench.compare.sides import pairs

    found = [
        comparing.compare(one, other, force=force)
        for one, other in pairs(a, b, open_store(), scenario)
    ]
    if as_json:
        echo_json({"comparisons": [_bare(comparison) for comparison in found]})
        return
    as_words = words.markdown if as_markdown else words.text
    click.echo(printable("\n\n".join(map(as_words, found))))


def _bare(comparison: Comparison) -> dict[str, Any]:
    """Without the results themselves, but their ids."""
    import msgspec

    sides = {
        name: {
            "label": side.label,
            "target": side.first.target,
            "results": [result.id for result in side.results],
        }
        for name, side in (("a", comparison.a), ("b", comparison.b))
    }
    return msgspec.structs.asdict(comparison) | sides
