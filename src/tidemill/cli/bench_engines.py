"""``tidemill bench engines``: which engines can be started here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tidemill.bench.engines import Engine


@click.command("engines")
def engines() -> None:
    """List the engines that `bench run` can start, and how to get those that are not here.

    Any other server with an OpenAI-compatible API can be started by hand and given by its URL.
    """
    from tidemill.bench.engines import ENGINES

    with ThreadPoolExecutor() as pool:  # some take seconds to say which version they are
        found = list(pool.map(_found, ENGINES.values()))
    for engine, (version, where) in zip(ENGINES.values(), found, strict=True):
        click.echo(f"{engine.name:13} {version or 'not found'}")
        click.echo(f"    {where if version else 'install: ' + engine.install}")
        click.echo(f"    {_abilities(engine)}")


def _found(engine: Engine) -> tuple[str | None, str]:
    """Its version and program, if it is there."""
    from tidemill.bench.engines import TargetError

    try:
        return engine.version(None), engine.find(None)
    except TargetError:
        return None, ""


def _abilities(engine: Engine) -> str:
    words = [f"takes a {' or '.join(engine.takes)}"]
    if not engine.full_length:
        words.append("cannot be made to answer at a given length")
    if not engine.takes_threads:
        words.append("chooses its number of threads itself")
    if engine.tenants:
        words.append("tells tenants apart")
    return "; ".join([*words, engine.proof])
