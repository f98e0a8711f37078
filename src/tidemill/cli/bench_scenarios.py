"""``tidemill bench run``, ``list``, ``show`` and ``selftest``: servers as their users see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidemill.cli.bench_options import (
    POSITIVE,
    SECONDS,
    Asked,
    measuring_options,
    trace_options,
)
from tidemill.cli.blocks import echo_json
from tidemill.cli.printable import printable

if TYPE_CHECKING:
    from tidemill.bench.result import Result
    from tidemill.bench.scenario import Scenario
    from tidemill.bench.traces import TraceFile


@click.command("run", short_help="Measure a server, or an engine that is started for it.")
@measuring_options
@click.option(
    "--scenario", "scenarios", multiple=True, metavar="NAME|FILE.toml|all",
    help="What is asked; see `tidemill bench list`. Repeatable.",
)  # fmt: skip
@click.option("--seconds", "window", type=SECONDS, help="Of measuring. [default: the scenario's]")
@click.option(
    "--rate", type=POSITIVE,
    help="Requests a second, in place of the scenario's load; of a trace as fast as that makes it.",
)  # fmt: skip
@click.option(
    "--concurrency", type=click.IntRange(1, 100_000), metavar="N",
    help="Requests at any time, in place of the scenario's load.",
)  # fmt: skip
@trace_options
@click.option("--speed", type=POSITIVE, help="How many times as fast a trace comes.")
def run(
    asked: Asked,
    scenarios: tuple[str, ...],
    window: float | None,
    rate: float | None,
    concurrency: int | None,
    recorded: TraceFile | None,
    speed: float | None,
) -> None:
    """Measure how a server answers, as its users see it.

    Engines are started on a free port of this machine, one for each scenario, and ended. The load
    comes from a process of its own. With several scenarios, one that cannot be run does not
    keep the others from it.
    """
    import msgspec

    from tidemill.bench import scenario as known

    if concurrency is not None and (rate is not None or recorded is not None):
        raise click.UsageError("--concurrency is not for a --rate or a --trace")
    if not scenarios and recorded is None:
        raise click.UsageError("what is asked? Give a --scenario, or a --trace")
    if speed is not None:
        if recorded is None or rate is not None:
            raise click.UsageError("--speed is for a --trace without --rate")
        recorded = msgspec.structs.replace(recorded, speed=speed)
    chosen: list[Scenario | None] = [
        known.load(one)
        for one in dict.fromkeys(
            one for given in scenarios for one in (known.names() if given == "all" else [given])
        )
    ]
    _measure_all(
        [
            asked.changed(_loaded(scenario, window, rate, concurrency, recorded))
            for scenario in chosen or [None]
        ],
        asked,
    )


def _loaded(
    scenario: Scenario | None, window: float | None, rate: float | None, concurrency: int | None,
    trace: TraceFile | None,
) -> Scenario:  # fmt: skip
    """A scenario with what options say otherwise of its load."""
    import msgspec

    from tidemill.bench.scenario import Starts, replay

    if trace is not None:
        scenario = replay(trace, scenario)
    assert scenario is not None
    scenario = scenario.loaded(rate, concurrency)
    if window is None or isinstance(scenario.load, Starts):
        return scenario
    return msgspec.structs.replace(scenario, seconds=window)


def _measure_all(scenarios: list[Scenario], asked: Asked) -> None:
    from tidemill.bench.engines import TargetError
    from tidemill.bench.report import text
    from tidemill.bench.result import measure
    from tidemill.bench.scenario import ScenarioError
    from tidemill.bench.trace_files import TraceError
    from tidemill.cli.bench_progress import BenchProgress
    from tidemill.cli.main import describe

    target, settings = asked.whom()
    asked.check_json()
    keeper = asked.keeper()
    results: list[Result] = []
    failed: list[str] = []
    try:
        for scenario in scenarios:
            try:
                with BenchProgress(scenario.name) as progress:
                    result, recording = measure(
                        scenario, target, settings, say=progress.step, on_progress=progress.run
                    )
            except (TargetError, ScenarioError, TraceError, OSError) as error:
                if len(scenarios) == 1:
                    raise
                failed.append(scenario.name)
                said = f"{scenario.name}: not measured: {describe(error)}\n"
                click.echo(printable(said), err=True)
                continue
            if keeper is not None:
                keeper.keep(result, recording)
            results.append(result)
            if result.summary is not None and not result.summary.good:
                failed.append(scenario.name)
            if asked.prints:
                click.echo(printable(text(result)) + "\n" * (len(scenarios) > 1))
                asked.write_json({"results": results})
    finally:  # Ctrl-C too leaves what was measured until then
        if results and not asked.prints:
            asked.write_json({"results": results})
    if failed:
        raise click.ClickException(
            f"{len(failed)} of {len(scenarios)} scenarios were not measured: {', '.join(failed)}"
        )


@click.command("list")
def list_scenarios() -> None:
    """List the scenarios."""
    from tidemill.bench import scenario as known
    from tidemill.bench.report import load_words

    for name in known.names():
        found = known.load(name)
        click.echo(f"{name:18} {found.summary:48} {load_words(found.load)}")


@click.command("show")
@click.argument("name", metavar="NAME|FILE.toml|ID")
@click.option("--toml", is_flag=True, help="The file itself, to make one of your own from.")
@click.option(
    "--definitions", "by_definitions", is_flag=True,
    help="A result's figures as vLLM, AIPerf and GuideLLM would give them.",
)  # fmt: skip
def show(name: str, toml: bool, by_definitions: bool) -> None:
    """Show what a scenario asks, how fast, and what counts as good; or a result that was kept."""
    from pathlib import Path

    from tidemill.bench import scenario as known
    from tidemill.bench.report import describe

    if by_definitions or not (toml or name.endswith(".toml") or name in known.names()):
        from tidemill.cli.bench_results import show_result

        show_result(name, by_definitions)
        return
    found = known.load(name)
    if toml:
        path = Path(name) if name.endswith(".toml") else known.FOLDER / f"{name}.toml"
        click.echo(path.read_text("utf-8"), nl=False)
    else:
        click.echo(printable(describe(found)))


@click.command("selftest")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def selftest(as_json: bool) -> None:
    """Show what the load generator itself adds to what it measures.

    Measures an endpoint whose times are known, for some seconds.
    """
    from tidemill.bench.run import BenchError
    from tidemill.bench.selftest import self_test

    try:
        found = self_test()
    except BenchError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        echo_json(found)
    else:
        click.echo(str(found))
