"""``tidemill size``: what it takes to meet limits under a load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidemill.cli.bench_options import SEED, Limits
from tidemill.cli.blocks import echo_blocks, echo_json
from tidemill.cli.options import Number, Numbers, front_end_option, price_option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidemill.bench.measures import Slo
    from tidemill.bench.scenario import Scenario
    from tidemill.simulate.sizing.goal import Load
    from tidemill.simulate.sizing.option import Option

_LEAST_RATE, _MOST_RATE = 1e-6, 1e9


_RATE = Number(min=_LEAST_RATE, max=_MOST_RATE)


@click.command()
@click.option(
    "--workload", required=True, metavar="NAME|FILE.toml",
    help="What is asked: a scenario of `tidemill bench list`, or a file like it.",
)  # fmt: skip
@click.option(
    "--model", required=True, metavar="SHAPE|MODEL|config.json",
    help="Whose shape: a name such as llama-3.1-8b, a model at hand, or a config.json.",
)  # fmt: skip
@click.option(
    "--slo", type=Limits(),
    help="Limits in seconds of ttft, tpot and e2e for 99 of 100. [default: the scenario's]",
)  # fmt: skip
@click.option("--rate", type=_RATE, metavar="R", help="The load: requests a second at the peak.")
@click.option(
    "--peak-concurrency", "at_once", type=click.IntRange(1, 10**9), metavar="N",
    help="The load: requests in flight at the peak.",
)  # fmt: skip
@click.option(
    "--requests-per-day", "per_day", type=Number(min=1, max=1e14), metavar="N",
    help="The load: see --peak.",
)  # fmt: skip
@click.option(
    "--peak", type=Number(min=1, max=1000), metavar="X",
    help="The peak over the mean of a day, for --requests-per-day. [default: 3]",
)  # fmt: skip
@click.option(
    "--spare", type=click.IntRange(0, 1000), metavar="N", default=1, show_default=True,
    help="Replicas that may be missing at the peak.",
)  # fmt: skip
@click.option(
    "--hardware", default="all", show_default=True, metavar="NAME,...|all",
    help="What it may run on: profiles, files of your own (NAME.toml), and local: what "
    "`tidemill calibrate` measured here.",
)  # fmt: skip
@click.option(
    "--bits", type=Numbers(click.Choice((4, 8, 16))), default="4,8,16", show_default=True,
    help="Of weights: 4, 8, 16, or several.",
)  # fmt: skip
@front_end_option
@price_option
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of the requests.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--markdown", is_flag=True, help="The report as Markdown.")
def size(
    workload: str,
    model: str,
    slo: Slo | None,
    rate: float | None,
    at_once: int | None,
    per_day: float | None,
    peak: float | None,
    spare: int,
    hardware: str,
    bits: tuple[int, ...],
    front_end: float | None,
    prices: tuple[tuple[str, float], ...],
    seed: int,
    as_json: bool,
    markdown: bool,
) -> None:
    """Find the cheapest deployment that meets limits under a load, by simulation.

    Without --rate, --peak-concurrency or --requests-per-day the scenario's own load is taken. Exits
    with 1 if nothing that was tried meets the limits; the report then says what is in the way.
    """
    if as_json and markdown:
        raise click.UsageError("--json or --markdown, not both")
    if sum(given is not None for given in (rate, at_once, per_day)) > 1:
        raise click.UsageError("--rate, --peak-concurrency or --requests-per-day: one of them")
    if peak is not None and per_day is None:
        raise click.UsageError("--peak is for --requests-per-day")
    from tidemill.bench import scenario as known
    from tidemill.bench.measures import Slo
    from tidemill.cli.progress import status_line
    from tidemill.simulate.sizing import report
    from tidemill.simulate.sizing.goal import PEAK, Goal, Load
    from tidemill.simulate.sizing.load import ScenarioLoad
    from tidemill.simulate.sizing.search import size as search

    scenario = known.load(workload)
    if rate is not None:
        load = Load.per_second(rate)
    elif at_once is not None:
        load = Load.at_once(at_once)
    elif per_day is not None:
        load = Load.per_day(per_day, PEAK if peak is None else peak)
    else:
        load = own_load(scenario)
    trials = ScenarioLoad(scenario, load.kind, seed)
    goal = Goal(slo or scenario.slo or Slo(), load, spare)
    options = options_of(
        hardware, model, trials.mix.context, tuple(dict.fromkeys(bits)), dict(prices)
    )
    if front_end is not None:
        options = [option.with_front_end(front_end / 1000) for option in options]
    with status_line() as rewrite:
        found = search(options, goal, trials.mix, trials, say=rewrite)
    if as_json:
        echo_json(report.as_data(found, model, scenario.name))
    else:
        echo_blocks(report.blocks(found, model, scenario.name), markdown=markdown)
    if found.winner is None:
        raise SystemExit(1)


def own_load(scenario: Scenario) -> Load:
    """The load that a scenario states."""
    from tidemill.bench.arrivals import Closed, Gamma
    from tidemill.simulate.sizing.goal import Load

    if isinstance(scenario.load, Gamma):
        return Load.per_second(scenario.load.rate)
    if isinstance(scenario.load, Closed):
        return Load.at_once(scenario.load.concurrency)
    raise click.UsageError(
        f"{scenario.name} states no load to size for: give --rate, --peak-concurrency or "
        "--requests-per-day"
    )


def options_of(
    hardware: str, model: str, context: int, bits: Sequence[int], prices: Mapping[str, float]
) -> list[Option]:
    """What may be used, by the names of ``--hardware``. Raises HardwareError, ShapeError,
    CalibrationError, UsageError."""
    import difflib

    from tidemill.simulate import calibration
    from tidemill.simulate.profiles import hardware_names, load_hardware
    from tidemill.simulate.shapes import load_shape
    from tidemill.simulate.sizing.options import of_calibration, of_hardware

    names = [name.strip() for name in hardware.split(",") if name.strip()]
    local = next((c for _, c in calibration.stored() if c.model == model), None)
    if "all" in names:
        names = [*hardware_names(), *(["local"] if local else []), *names]
    names = [name for name in dict.fromkeys(names) if name != "all"]
    if not names:
        raise click.UsageError("--hardware: no name in it")
    if "local" in names and local is None:
        raise calibration.CalibrationError(
            f"nothing was measured here with {model}: `tidemill calibrate {model}` does that"
        )
    profiles = [load_hardware(name) for name in names if name != "local"]
    known = [*(profile.id for profile in profiles), *(["local"] if "local" in names else [])]
    for name in prices:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise click.UsageError(f"--price: {name!r} is not among the hardware{hint}")
    options: list[Option] = []
    if "local" in names and local is not None:
        options.append(of_calibration(local, prices.get("local")))
    if profiles:
        options += of_hardware(profiles, load_shape(model), context, bits, prices)
    return options
