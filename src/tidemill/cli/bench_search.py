"""``tidemill bench search`` and ``curve``: the same scenario at several rates of requests."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tidemill.cli.bench_options import (
    POSITIVE,
    SECONDS,
    Asked,
    measuring_options,
    trace_options,
)
from tidemill.cli.options import Number, Numbers

if TYPE_CHECKING:
    from tidemill.bench.arrivals import Closed, Gamma
    from tidemill.bench.records import Recording
    from tidemill.bench.result import Result, Server, Settings
    from tidemill.bench.scenario import Scenario
    from tidemill.bench.traces import TraceFile
    from tidemill.cli.bench_progress import BenchProgress
    from tidemill.cli.bench_results import Keeper


class _Points:
    """Runs of one scenario at several loads, on a target that is up for all of them."""

    def __init__(
        self, server: Server, scenario: Scenario, settings: Settings, progress: BenchProgress,
        keeper: Keeper | None,
    ) -> None:  # fmt: skip
        self._server = server
        self._scenario = scenario
        self._settings = settings
        self._keeper = keeper
        self._series = secrets.token_hex(4)
        self.progress = progress
        self.results: list[Result] = []

    def measure(
        self, load: Closed | Gamma | TraceFile, seconds: float, warmup: float, timeout: float
    ) -> Recording:
        import msgspec

        from tidemill.bench.arrivals import Closed
        from tidemill.bench.scenario import prepare_under

        # Closed and open loops are two curves; and prompts that came before might be in a cache.
        kind = "closed" if isinstance(load, Closed) else "open"
        settings = msgspec.structs.replace(
            self._settings,
            seed=self._settings.seed + len(self.results),
            series=f"{self._series}-{kind}",
        )
        scenario = msgspec.structs.replace(
            self._scenario, timeout=min(timeout, self._scenario.timeout), requests=0
        )
        prepared = prepare_under(scenario, load, seconds, warmup, settings.seed)
        result, recording = self._server.measure(prepared, settings, self.progress.run)
        assert recording is not None
        if self._keeper is not None:
            self._keeper.keep(result, recording)
        self.results.append(result)
        return recording


@contextmanager
def _points(
    asked: Asked, scenario: Scenario, load: Closed | Gamma | TraceFile
) -> Iterator[_Points]:
    """An engine is started once, and holds what ``scenario`` needs under that load."""
    from tidemill.bench.result import serving
    from tidemill.bench.scenario import prepare_under
    from tidemill.cli.bench_progress import BenchProgress

    target, settings = asked.whom()
    asked.check_json()
    prepared = prepare_under(scenario, load, 1.0, 0.0, 0)
    points: _Points | None = None
    try:
        with (
            BenchProgress(scenario.name) as progress,
            serving(prepared, target, settings, progress.step) as server,
        ):
            points = _Points(server, scenario, settings, progress, asked.keeper())
            yield points
    except BaseException:  # Ctrl-C too leaves what was measured until then
        if points is not None and points.results:
            click.echo(f"broken off after {len(points.results)} runs:", err=True)
            _tell(points.results, asked)
        raise


def _tell(results: list[Result], asked: Asked) -> None:
    """The points of a curve."""
    from tidemill.bench.curve import table

    asked.write_json({"results": results})
    if asked.prints:
        click.echo(table(results))


def _chosen(asked: Asked, name: str | None, recorded: TraceFile | None) -> tuple[Scenario, int]:
    """What ``--scenario`` and ``--trace`` name, and how many requests a trace has. Raises
    ScenarioError, TraceError, OSError."""
    from tidemill.bench import scenario as known
    from tidemill.bench import traces

    if name is None and recorded is None:
        raise click.UsageError("what is asked? Give a --scenario, or a --trace")
    scenario = None if name is None else known.load(name)
    if recorded is not None:
        scenario = known.replay(recorded, scenario)
    assert scenario is not None
    scenario = asked.changed(scenario)
    load = scenario.load
    if isinstance(load, known.Starts):
        raise known.ScenarioError(f"{scenario.name} measures starts, which have no other rates")
    n = len(traces.read(load).timestamps) if isinstance(load, traces.TraceFile) else 0
    return scenario, n


@click.command("search", short_help="The highest rate of requests that meets an SLO.")
@measuring_options
@click.option("--scenario", metavar="NAME|FILE.toml", help="What is asked.")
@trace_options
@click.option(
    "--attain", type=Number(min=0.5, max=0.999), default=0.99, show_default=True,
    help="Share of the requests that must meet the SLO.",
)  # fmt: skip
@click.option(
    "--tolerance", type=Number(min=0.01, max=1), default=0.05, show_default=True,
    help="How far the lowest rate that is missed may be above the highest that is met.",
)  # fmt: skip
@click.option(
    "--seconds", "trial", type=SECONDS, default=60, show_default=True,
    help="Of measuring a rate for the first time, at most.",
)  # fmt: skip
@click.option(
    "--minutes", type=POSITIVE, default=20, show_default=True, help="Of the search, at most."
)
@click.option(
    "--max-rate", type=POSITIVE, default=1e5, help="Requests a second that are tried at most."
)
def search(
    asked: Asked, scenario: str | None, recorded: TraceFile | None, attain: float,
    tolerance: float, trial: float, minutes: float, max_rate: float,
) -> None:  # fmt: skip
    """Find the highest rate of requests at which an SLO is met.

    The rate is doubled until the SLO is missed, and then narrowed down. The two ends are measured
    again, and longer, until they are sure. A trace is replayed from end to end at each rate, its
    time compressed or stretched. An engine is started once for all. Each run is kept as a result of
    its own.
    """
    from tidemill.bench.curve import table
    from tidemill.bench.search import Aim, conclusion
    from tidemill.bench.search import search as find

    chosen, requests = _chosen(asked, scenario, recorded)
    slo = asked.slo or chosen.slo
    if slo is None:
        raise click.UsageError(f"{chosen.name} has no SLO: give --slo ttft=SECONDS,tpot=SECONDS")
    aim = Aim(slo, attain, tolerance, trial, 60 * minutes, max_rate, chosen.arrivals, requests)
    if aim.replays and not aim.bounds_waiting:
        raise click.UsageError(
            "--slo: a trace ends before a queue could grow without end, so that only a limit for "
            "ttft or e2e says how long requests may wait"
        )
    with _points(asked, chosen, chosen.arrivals) as points:
        found = find(points.measure, aim, points.progress.note)
    asked.write_json({"found": found, "results": points.results})
    if asked.prints:
        click.echo(f"{table(points.results)}\n\n{conclusion(found, aim)}")
    if found.met is None:
        raise click.ClickException(f"no rate was found at which {slo} is met")


@click.command("curve", short_help="Latency and throughput at several rates of requests.")
@measuring_options
@click.option("--scenario", metavar="NAME|FILE.toml", help="What is asked.")
@trace_options
@click.option(
    "--points", "count", type=click.IntRange(2, 50), default=6, show_default=True,
    help="Rates, up to a tenth more than can be done, which is found first.",
)  # fmt: skip
@click.option(
    "--rates", type=Numbers(Number(min=1e-6, max=1e5)),
    help="Requests a second, instead.",
)  # fmt: skip
@click.option(
    "--concurrency", type=Numbers(click.IntRange(1, 100_000)),
    help="Requests at a time (closed loop), instead.",
)  # fmt: skip
@click.option(
    "--seconds", "trial", type=SECONDS, default=30, show_default=True,
    help="Of measuring each point.",
)  # fmt: skip
def curve(
    asked: Asked, scenario: str | None, recorded: TraceFile | None, count: int,
    rates: tuple[float, ...] | None, concurrency: tuple[int, ...] | None, trial: float,
) -> None:  # fmt: skip
    """Measure latency and throughput at several loads.

    A trace is replayed from end to end at each rate, its time compressed or stretched. An engine is
    started once for all. Each point is kept as a result of its own, and those of a curve have one
    series, of which `tidemill bench report` makes pictures.
    """
    from tidemill.bench.arrivals import Closed
    from tidemill.bench.curve import enough, saturate, spread

    if rates and concurrency:
        raise click.UsageError("--rates or --concurrency, not both")
    chosen, requests = _chosen(asked, scenario, recorded)
    arrivals = chosen.arrivals
    loads: list[Closed | Gamma | TraceFile] = [arrivals.at(rate) for rate in rates or ()]
    loads += [Closed(number) for number in concurrency or ()]
    with _points(asked, chosen, Closed(max(concurrency)) if concurrency else arrivals) as points:
        if not loads:
            most = saturate(points.measure, trial / 3, points.progress.note)
            if not most.rate:
                raise click.ClickException(
                    "no request was done in time: a curve needs longer --seconds"
                )
            loads += [arrivals.at(rate) for rate in spread(most.rate, count)]
        warmup = min(chosen.warmup, trial)
        times = [enough(load, trial, requests) for load in loads]
        minutes = (sum(times) + len(loads) * warmup) / 60
        points.progress.note(f"{len(loads)} points in {minutes:.1f} minutes, and what comes late")
        for load, seconds in zip(loads, times, strict=True):
            points.measure(load, seconds, warmup, math.inf)
    _tell(points.results, asked)
