"""``tidemill bench engines``: which engines can be started here; options of what they cost."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.options import Number

if TYPE_CHECKING:
    from tidemill.bench.engines import Engine

_PRICE = Number(min=0, max=1e9)


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


def prices_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that make ``prices`` (``bench.resources.Prices``)."""

    @click.option(
        "--price-per-hour", type=_PRICE, metavar="PRICE",
        help="Of the machine, in any currency: then costs of a million tokens are told.",
    )  # fmt: skip
    @click.option("--power-price", type=_PRICE, metavar="PRICE", help="Of a kWh.")
    @click.option(
        "--people-per-hour", type=_PRICE, metavar="PRICE", help="Of those who run the machine."
    )
    @click.option(
        "--watts", type=Number(min=0, min_open=True, max=1e6),
        help="The machine's power under load, for an estimate where there is no meter.",
    )  # fmt: skip
    @functools.wraps(command)
    def with_prices(
        *args: Any, price_per_hour: float | None, power_price: float | None,
        people_per_hour: float | None, watts: float | None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        from tidemill.bench.resources import Prices

        prices = Prices(hour=price_per_hour, kwh=power_price, people=people_per_hour, watts=watts)
        return command(*args, prices=prices, **kwargs)

    return with_prices
