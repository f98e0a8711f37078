"""``tidemill simulate``: what a deployment would do, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.bench_options import POSITIVE, SECONDS, SEED, Limits
from tidemill.cli.blocks import echo_json
from tidemill.cli.options import Number, front_end_option, named_numbers
from tidemill.cli.printable import printable
from tidemill.simulate.routing import POLICIES

if TYPE_CHECKING:
    from tidemill.bench.measures import Slo
    from tidemill.bench.scenario import Prepared, Scenario
    from tidemill.simulate.base import ReplicaSpec
    from tidemill.simulate.changes import Failures
    from tidemill.simulate.predict import Prediction
    from tidemill.simulate.proof import Proof
    from tidemill.simulate.traffic import Profile, Template

_MOST_REPLICAS = 100_000


class Span(click.ParamType[tuple[int, int]]):
    name = "MIN:MAX"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        low, _, high = str(value).partition(":")
        try:
            least, most = int(low), int(high)
        except ValueError:
            least, most = 0, 0
        if not 1 <= least <= most <= _MOST_REPLICAS:
            self.fail(f"{value!r} is not like 2:10, numbers from 1 to {_MOST_REPLICAS}", param, ctx)
        return least, most


class Repairs(click.ParamType["Failures"]):
    """``mtbf=86400,mttr=600,start=30,retries=1``."""

    name = "mtbf=S,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Failures:
        from tidemill.simulate.changes import Failures

        if isinstance(value, Failures):
            return value
        try:
            fields: dict[str, Any] = named_numbers(
                value, {"mtbf": float, "mttr": float, "start": float, "retries": int}
            )
        except ValueError:
            self.fail(
                f"{value!r} is not like mtbf=86400,mttr=600,start=30,retries=1 (seconds)",
                param, ctx,
            )  # fmt: skip
        if "mtbf" not in fields:
            self.fail(
                "mtbf, the mean seconds between failures of a replica, is missing", param, ctx
            )
        try:
            return Failures(**fields)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Factors(click.ParamType["Profile"]):
    """``0=1,3600=3,7200=1``, and with ``/86400`` behind it again every 86400 s."""

    name = "SECONDS=FACTOR,...[/PERIOD]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Profile:
        from tidemill.simulate.traffic import Profile

        if isinstance(value, Profile):
            return value
        told, _, period = str(value).partition("/")
        try:
            points = [part.split("=") for part in told.split(",")]
            numbers = tuple((float(at), float(factor)) for at, factor in points)
            every = float(period) if period else None
        except ValueError:
            self.fail(f"{value!r} is not like 0=1,3600=3,7200=1/86400", param, ctx)
        try:
            return Profile(numbers, every)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command("simulate")
@click.option(
    "--scenario", "name", default="short-chat", show_default=True, metavar="NAME|FILE.toml",
    help="What is asked; see `tidemill bench list`.",
)  # fmt: skip
@click.option(
    "--calibration", "calibration_file", type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE", help="Of `tidemill calibrate`. [default: the newest in the store]",
)  # fmt: skip
@click.option(
    "--hardware", metavar="NAME", help="From data sheets instead: a profile, or NAME.toml."
)
@click.option("--model", metavar="SHAPE", help="With --hardware: which model.")
@click.option(
    "--bits", type=click.Choice(["4", "8", "16"]), default="16", show_default=True,
    help="With --hardware: of a weight.",
)  # fmt: skip
@click.option(
    "--tp", type=click.IntRange(1, 1024), default=1, show_default=True,
    help="With --hardware: devices that share each layer.",
)  # fmt: skip
@click.option(
    "--pp", type=click.IntRange(1, 1024), default=1, show_default=True,
    help="With --hardware: stages that share the layers.",
)  # fmt: skip
@click.option(
    "--replicas", type=click.IntRange(1, _MOST_REPLICAS), metavar="N",
    help="[default: 1, or the least of --autoscale]",
)  # fmt: skip
@click.option(
    "--max-sequences", type=click.IntRange(1, 65_536), metavar="N",
    help="Requests that a replica computes at once. [default: as `bench run` would start it; with "
    "--hardware, what is usual]",
)  # fmt: skip
@click.option(
    "--policy", type=click.Choice(list(POLICIES)), default="least-outstanding", show_default=True,
    help="How requests find their replica.",
)  # fmt: skip
@front_end_option
@click.option("--rate", type=POSITIVE, help="Requests a second, in place of the scenario's load.")
@click.option(
    "--concurrency", type=click.IntRange(1, 100_000), metavar="N",
    help="Requests at any time, in place of the scenario's load.",
)  # fmt: skip
@click.option(
    "--load-profile", "profile", type=Factors(),
    help="How the rate changes: factors from these seconds on.",
)  # fmt: skip
@click.option("--seconds", type=SECONDS, help="Of measuring. [default: the scenario's]")
@click.option(
    "--requests", type=click.IntRange(1, 100_000_000), metavar="N",
    help="As long as it takes for so many, in place of --seconds.",
)  # fmt: skip
@click.option("--autoscale", type=Span(), help="As many replicas as the load needs.")
@click.option(
    "--scale-start", type=Number(min=0, max=1e6), default=60.0, show_default=True,
    help="With --autoscale: seconds until a new replica is there.",
)  # fmt: skip
@click.option(
    "--failures", type=Repairs(),
    help="Replicas die and come back: mean seconds between, of repair and of a start; how often "
    "requests are tried again.",
)  # fmt: skip
@click.option(
    "--slo", type=Limits(),
    help="Limits in seconds of ttft, tpot and e2e. [default: the scenario's]",
)  # fmt: skip
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of all that is drawn.")
@click.option("--no-bands", is_flag=True, help="A third of the time, and no error bands.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def simulate(
    name: str,
    calibration_file: Path | None,
    hardware: str | None,
    model: str | None,
    bits: str,
    tp: int,
    pp: int,
    replicas: int | None,
    max_sequences: int | None,
    policy: str,
    front_end: float | None,
    rate: float | None,
    concurrency: int | None,
    profile: Profile | None,
    seconds: float | None,
    requests: int | None,
    autoscale: tuple[int, int] | None,
    scale_start: float,
    failures: Failures | None,
    slo: Slo | None,
    seed: int,
    no_bands: bool,
    as_json: bool,
) -> None:
    """Play a scenario on a deployment, with the engine's own scheduler, in virtual time.

    How long steps take comes from a calibration of this machine, or from data sheets. It is played
    three times, with steps as long as they are thought to be, and shorter and longer by how far
    that may be off.
    """
    if rate is not None and concurrency is not None:
        raise click.UsageError("--rate or --concurrency, not both")
    if seconds is not None and requests is not None:
        raise click.UsageError("--seconds or --requests, not both")
    if hardware is None and model is not None:
        raise click.UsageError("--model is for --hardware; a calibration has its model")
    if hardware is not None and (calibration_file is not None or model is None):
        raise click.UsageError("--hardware needs a --model, and no --calibration")
    from tidemill.bench import scenario as known
    from tidemill.cli.progress import status_line
    from tidemill.simulate.changes import Autoscale
    from tidemill.simulate.deploy import with_front_end
    from tidemill.simulate.play import Deployment
    from tidemill.simulate.predict import predict

    scenario = _changed(known.load(name), rate, concurrency, seconds, requests)
    scaling = None
    if autoscale is not None:
        scaling = Autoscale(*autoscale, start=scale_start)
    prepared = known.prepare(scenario)
    if hardware is None or model is None:
        spec, template, proof = _of_calibration(calibration_file, prepared, max_sequences)
    else:
        spec = _of_hardware(hardware, model, bits, tp, pp, prepared.context, max_sequences)
        template = proof = None
    if front_end is not None:
        spec = with_front_end(spec, front_end / 1000)
    count = replicas or (autoscale[0] if autoscale else 1)
    deployment = Deployment(
        (spec,) * count, policy=policy, failures=failures, autoscale=scaling, template=template
    )
    with status_line(quiet=as_json) as say:
        say("simulating")
        try:
            found = predict(
                scenario, deployment, slo=slo, seed=seed, profile=profile, proof=proof,
                bands=not no_bands,
            )  # fmt: skip
        except ValueError as error:
            raise click.ClickException(str(error)) from None
    if as_json:
        echo_json({"scenario": scenario, "prediction": found})
    else:
        _echo(found, scenario, spec, policy, slo or scenario.slo)


def _changed(
    scenario: Scenario, rate: float | None, concurrency: int | None, seconds: float | None,
    requests: int | None,
) -> Scenario:  # fmt: skip
    """A scenario with what options say otherwise."""
    import msgspec

    from tidemill.bench.arrivals import Closed, Gamma
    from tidemill.bench.scenario import Starts

    scenario = scenario.loaded(rate, concurrency)
    load = scenario.load
    if isinstance(load, Starts):
        return scenario  # which is refused later
    if seconds is not None:
        return msgspec.structs.replace(scenario, seconds=seconds)
    if requests is None:
        return scenario
    if isinstance(load, Closed):
        return msgspec.structs.replace(scenario, requests=min(requests, 1_000_000), seconds=1e-3)
    if not isinstance(load, Gamma):
        raise click.UsageError("--requests is for a rate or a concurrency; a trace has its own")
    weights = sum(shape.weight for shape in scenario.shapes)
    turns = sum(shape.weight * shape.turns for shape in scenario.shapes) / weights
    lasting = requests / turns / load.rate
    if lasting > 1e6:
        raise click.UsageError(
            f"--requests {requests} at {load.rate:g} requests/s are {lasting:.0f} s, and a million "
            "are the most: give a higher --rate"
        )
    return msgspec.structs.replace(scenario, seconds=lasting)


def _of_calibration(
    path: Path | None, prepared: Prepared, max_sequences: int | None
) -> tuple[ReplicaSpec, Template | None, Proof | None]:
    from tidemill.simulate import calibration as files
    from tidemill.simulate.deploy import benched
    from tidemill.simulate.proof import proof_beside

    if path is None:
        found = next(files.stored(), None)
        if found is None:
            raise click.UsageError(
                "nothing has been measured here: `tidemill calibrate` does that; or give "
                "--hardware and --model for step times from data sheets"
            )
        path, calibration = found
    else:
        calibration = files.load(path)
    spec = benched(files.calibrated(calibration), prepared, max_sequences)
    return spec, _template(calibration.model), proof_beside(path)


def _template(model: str) -> Template | None:
    """Of a model that is at hand."""
    from tidemill.llm.loading import open_model
    from tidemill.simulate.templates import template_of

    try:
        return template_of(open_model(model, offline=True).tokenizer)
    except (OSError, ValueError) as error:
        click.echo(
            f"note: {model} is not at hand, so that what its chat template adds to prompts is left "
            f"out ({error})",
            err=True,
        )
        return None


def _of_hardware(
    name: str, model: str, bits: str, tp: int, pp: int, context: int, max_sequences: int | None,
) -> ReplicaSpec:  # fmt: skip
    from tidemill.simulate.analytic import analytic, format_of
    from tidemill.simulate.profiles import load_hardware
    from tidemill.simulate.shapes import load_shape

    hardware = load_hardware(name)
    try:
        return analytic(
            hardware, load_shape(model), weights=format_of(hardware, int(bits)), tensor_parallel=tp,
            pipeline_parallel=pp, max_context=context, max_sequences=max_sequences,
        )  # fmt: skip
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def _echo(
    found: Prediction, scenario: Scenario, spec: ReplicaSpec, policy: str, slo: Slo | None
) -> None:
    from tidemill.bench.report import load_words
    from tidemill.simulate.report import text

    count = f"{found.replicas} x " if found.replicas > 1 else ""
    behind = f", {policy}" if found.most_replicas > 1 else ""
    title = f"{scenario.name} · {count}{spec.name}, {spec.max_sequences} places{behind}"
    load = f"  load: {load_words(scenario.load)}, {found.summary.seconds:.0f} s"
    click.echo(printable(f"{title}\n{load}\n{text(found, slo)}"))
    if scenario.checked:
        click.echo(
            "  note: answers are taken to be as long as they may be, and tasks to have a token for "
            "4 characters: a model ends them itself"
        )
    if len(scenario.tenants) > 1:
        click.echo("  note: tenants are served in order of arrival; fair shares are not simulated")
