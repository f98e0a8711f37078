"""``tidemill bench search`` and ``curve``: the same scenario at several rates of requests."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.bench_options import POSITIVE, Subject, subject_options
from tidemill.cli.options import Number

if TYPE_CHECKING:
    from tidemill.bench.arrivals import Closed, Gamma
    from tidemill.bench.records import Recording
    from tidemill.bench.result import Result, Served, Settings
    from tidemill.bench.scenario import Scenario
    from tidemill.bench.search import Found
    from tidemill.cli.bench_progress import BenchProgress
    from tidemill.cli.bench_results import Keeper


class Numbers(click.ParamType[tuple[float, ...]]):
    """Numbers above 0, with commas between."""

    name = "N,N,..."

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(float(part) for part in str(value).split(","))
        except ValueError:
            numbers = ()
        if not numbers or not all(0 < n <= 1e5 and (n.is_integer() or not self._whole)
                                  for n in numbers):  # fmt: skip
            kind = "whole numbers" if self._whole else "numbers"
            self.fail(f"{value!r} is no list of {kind} above 0, such as 1,2,4", param, ctx)
        return numbers


class _Points:
    """Runs of one scenario at several loads, on a target that is up for all of them."""

    def __init__(
        self, server: Served, scenario: Scenario, settings: Settings, progress: BenchProgress,
        keeper: Keeper | None,
    ) -> None:  # fmt: skip
        self._server = server
        self._scenario = scenario
        self._settings = settings
        self._progress = progress
        self._keeper = keeper
        self._series = secrets.token_hex(4)
        self._made = 0
        self.results: list[Result] = []

    def measure(self, load: Closed | Gamma, seconds: float, warmup: float) -> Recording:
        import msgspec

        from tidemill.bench.arrivals import Closed

        scenario = msgspec.structs.replace(
            self._scenario, load=load, seconds=seconds, warmup=warmup, requests=0
        )
        # Closed and open loops are two curves; and prompts that came before might be in a cache.
        kind = "closed" if isinstance(load, Closed) else "open"
        settings = msgspec.structs.replace(
            self._settings, seed=self._settings.seed + self._made, series=f"{self._series}-{kind}"
        )
        self._made += 1
        result, recording = self._server.measure(scenario, settings, self._progress.run)
        if self._keeper is not None:
            self._keeper.keep(result, recording)
        self.results.append(result)
        return recording


@click.command("search", short_help="The highest rate of requests that meets an SLO.")
@subject_options
@click.option("--scenario", required=True, metavar="NAME|FILE.toml", help="What is asked.")
@click.option(
    "--attain", type=Number(min=0.5, max=0.999), default=0.99, show_default=True,
    help="Share of the requests that must meet the SLO.",
)  # fmt: skip
@click.option(
    "--tolerance", type=Number(min=0.01, max=1), default=0.05, show_default=True,
    help="How far the lowest rate that is missed may be above the highest that is met.",
)  # fmt: skip
@click.option(
    "--seconds", "trial", type=POSITIVE, default=60, show_default=True,
    help="Of measuring a rate for the first time, at most.",
)  # fmt: skip
@click.option(
    "--minutes", type=POSITIVE, default=20, show_default=True, help="Of the search, at most."
)
@click.option("--max-rate", type=POSITIVE, default=1e5, help="Requests a second to try at most.")
def search(
    subject: Subject, scenario: str, attain: float, tolerance: float, trial: float, minutes: float,
    max_rate: float,
) -> None:  # fmt: skip
    """Find the highest rate of requests that meets an SLO.

    The rate is doubled until the SLO is missed and then narrowed down; the ends are measured again
    until they are sure. An engine is started once. Each point is kept as a result of its own.
    """
    from tidemill.bench.arrivals import Gamma
    from tidemill.bench.curve import table
    from tidemill.bench.search import Aim
    from tidemill.bench.search import search as find

    asked = _open_loop(subject, scenario)
    slo = subject.slo or asked.slo
    if slo is None:
        raise click.UsageError(f"{asked.name} has no SLO: give --slo ttft=SECONDS,tpot=SECONDS")
    aim = Aim(
        slo, attain, tolerance, trial, 60 * minutes, max_rate,
        asked.load.burstiness if isinstance(asked.load, Gamma) else 1.0,
    )  # fmt: skip
    with subject.points(asked, _Points) as (points, progress):
        found = find(points.measure, aim, progress.note)
    if subject.json_file is not None:
        subject.write_json({"found": found, "results": points.results})
    if subject.prints:
        click.echo(table(points.results[1:]) + "\n")
        click.echo(_verdict(found, aim))
    if found.met is None:
        raise click.ClickException(f"no rate was found at which {slo} is met: {found.stopped}")
