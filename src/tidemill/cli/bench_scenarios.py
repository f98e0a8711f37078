"""``tidemill bench run``, ``list``, ``show`` and ``selftest``: servers as their users see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.bench_engines import prices_options
from tidemill.cli.options import Number, threads_option

if TYPE_CHECKING:
    from tidemill.bench.measures import Slo
    from tidemill.bench.resources import Prices
    from tidemill.bench.result import Result, Settings
    from tidemill.bench.run import Progress
    from tidemill.bench.scenario import Scenario
    from tidemill.bench.targets import Target


class Limits(click.ParamType["Slo"]):
    """``ttft=0.5,tpot=0.05``: seconds."""

    name = "NAME=SECONDS,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Slo:
        from tidemill.bench.measures import Slo

        if isinstance(value, Slo):
            return value
        limits: dict[str, float] = {}
        for part in str(value).split(","):
            name, _, number = part.strip().partition("=")
            try:
                if name not in Slo.__struct_fields__ or name in limits:
                    raise ValueError
                limits[name] = float(number)
            except ValueError:
                self.fail(
                    f"{value!r} is not like ttft=0.5,tpot=0.05 (ttft, tpot and e2e, in seconds)",
                    param, ctx,
                )  # fmt: skip
        try:
            return Slo(**limits)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class TenantKey(click.ParamType[tuple[str, str]]):
    name = "TENANT=KEY"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        tenant, equals, key = str(value).partition("=")
        if not tenant or not equals or not key:
            self.fail(f"{value!r} is not like TENANT=KEY", param, ctx)
        return tenant, key


_POSITIVE = Number(min=0, min_open=True, max=1e6)


@click.command("run", short_help="Measure a server, or an engine that is started for it.")
@click.option(
    "--target", required=True, metavar="URL|ENGINE[:MODEL]",
    help="An OpenAI-compatible endpoint, or what is started: tidemill[:MODEL], llama.cpp:MODEL ... "
    "(see `tidemill bench engines`).",
)  # fmt: skip
@click.option(
    "--scenario", "scenarios", required=True, multiple=True, metavar="NAME|FILE.toml|all",
    help="What is asked; see `tidemill bench list`. Repeatable.",
)  # fmt: skip
@click.option(
    "--slo",
    type=Limits(),
    help="Limits in seconds of ttft, tpot and e2e. [default: the scenario's]",
)
@click.option(
    "--json", "json_file", metavar="FILE",
    help="Write results, settings and machine there too (-: to stdout, and no table).",
)  # fmt: skip
@click.option("--model", help="What an endpoint calls the model. [default: the only one it has]")
@click.option("--seconds", "window", type=_POSITIVE, help="Of measuring. [default: the scenario's]")
@click.option("--rate", type=_POSITIVE, help="Requests a second, in place of the scenario's load.")
@click.option(
    "--concurrency", type=click.IntRange(1, 100_000), metavar="N",
    help="Requests at any time, in place of the scenario's load.",
)  # fmt: skip
@click.option(
    "--scale", type=Number(min=0.001, max=1000), default=1.0, show_default=True,
    help="Factor of the lengths of prompts and answers.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the prompts."
)
@click.option("--timeout", type=_POSITIVE, help="Seconds for a request. [default: the scenario's]")
@click.option(
    "--api-key", envvar="TIDEMILL_BENCH_KEY", metavar="KEY", help="Of an endpoint that wants one."
)
@click.option(
    "--tenant-key", "tenant_keys", type=TenantKey(), multiple=True,
    help="The key of one of a scenario's tenants; repeatable.",
)  # fmt: skip
@threads_option
@click.option(
    "--binary", "--python", metavar="FILE",
    help="The engine's program (llama-server, vllm ...), or the interpreter that has its package.",
)  # fmt: skip
@click.option("--engine-args", default="", metavar="TEXT", help="More arguments for the engine.")
@prices_options
@click.option("--name", help="What to call the results; runs of one name are repeats.")
@click.option("--no-keep", is_flag=True, help="Do not keep results (see `tidemill bench results`).")
@click.option("--keep-text", is_flag=True, help="Keep the answers' text, too.")
def run(
    target: str,
    scenarios: tuple[str, ...],
    slo: Slo | None,
    json_file: str | None,
    model: str | None,
    window: float | None,
    rate: float | None,
    concurrency: int | None,
    scale: float,
    seed: int,
    timeout: float | None,
    api_key: str | None,
    tenant_keys: tuple[tuple[str, str], ...],
    threads: int | None,
    binary: str | None,
    engine_args: str,
    prices: Prices,
    name: str | None,
    no_keep: bool,
    keep_text: bool,
) -> None:
    """Measure how a server answers, as its users see it.

    Engines are started on a free port of this machine, one for each scenario, and ended. The load
    comes from a process of its own. With several scenarios, one that cannot be run does not
    keep the others from it.
    """
    if rate is not None and concurrency is not None:
        raise click.UsageError("--rate or --concurrency, not both")
    import shlex

    from tidemill.bench import scenario as known
    from tidemill.bench import targets
    from tidemill.bench.result import Settings
    from tidemill.hardware import usable_cores

    names = [one for given in scenarios for one in (known.names() if given == "all" else [given])]
    chosen = [
        _changed(known.load(one), window, rate, concurrency, scale, timeout)
        for one in dict.fromkeys(names)
    ]
    try:
        arguments = tuple(shlex.split(engine_args))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--engine-args") from None
    settings = Settings(
        slo=slo, seed=seed, api_key=api_key, keys=dict(tenant_keys),
        threads=threads or usable_cores(), binary=binary, arguments=arguments,
        prices=prices, name=name, keep_text=keep_text,
    )  # fmt: skip
    who, settings = _whom(targets.parse(target), model, settings)
    _measure_all(chosen, who, settings, json_file, keep=not no_keep)


def _changed(
    scenario: Scenario, window: float | None, rate: float | None, concurrency: int | None,
    scale: float, timeout: float | None,
) -> Scenario:  # fmt: skip
    """A scenario with what options say otherwise."""
    import msgspec

    from tidemill.bench.arrivals import Closed, Gamma
    from tidemill.bench.scenario import Starts

    changes: dict[str, Any] = {}
    if not isinstance(scenario.load, Starts):
        if rate is not None:
            bursts = scenario.load.burstiness if isinstance(scenario.load, Gamma) else 1.0
            changes["load"] = Gamma(rate, bursts)
        if concurrency is not None:
            changes["load"] = Closed(concurrency)
        if window is not None:
            changes["seconds"] = window
    if timeout is not None:
        changes["timeout"] = timeout
    return msgspec.structs.replace(scenario if scale == 1 else scenario.scaled(scale), **changes)


def _whom(target: Target, model: str | None, settings: Settings) -> tuple[Target, Settings]:
    """With the model that an engine is to be started with at hand."""
    import msgspec

    if target.engine is None:
        if settings.binary is not None or settings.arguments:
            raise click.UsageError("--binary and --engine-args are for engines, not for a URL")
        return msgspec.structs.replace(target, model=model), settings
    if model is not None:
        raise click.UsageError(f"give the model as --target {target.engine.name}:MODEL")
    if settings.api_key is not None or settings.keys:
        raise click.UsageError("keys are for a URL; an engine gets its own")
    target.engine.version(settings.binary)  # is it there at all?

    from tidemill.cli.progress import DownloadProgress
    from tidemill.store import resolve

    progress = DownloadProgress()
    try:
        path = resolve(target.model or "", progress=progress)
    finally:
        progress.close()
    target.engine.check(path)
    return target, msgspec.structs.replace(settings, path=path)


def _measure_all(
    scenarios: list[Scenario], target: Target, settings: Settings, json_file: str | None, *,
    keep: bool,
) -> None:  # fmt: skip
    from tidemill.bench.engines import TargetError
    from tidemill.bench.report import text
    from tidemill.bench.result import measure
    from tidemill.cli.bench_results import Keeper

    if json_file is not None and json_file != "-":
        with open(json_file, "ab"):  # can it be written? Better known now than in an hour
            pass
    keeper = Keeper() if keep else None
    results: list[Result] = []
    failures = 0
    for scenario in scenarios:
        try:
            with _progress(scenario.name) as (say, on_progress):
                result, recording = measure(
                    scenario, target, settings, say=say, on_progress=on_progress
                )
        except TargetError as error:
            if len(scenarios) == 1:
                raise
            failures += 1
            click.echo(f"{scenario.name}: not measured: {error}\n", err=True)
            continue
        if keeper is not None:
            keeper.keep(result, recording)
        results.append(result)
        if json_file != "-":
            click.echo(text(result) + "\n" * (len(scenarios) > 1))
        if json_file is not None and json_file != "-":
            with open(json_file, "wb") as file:
                file.write(_as_json(results))
    if json_file == "-":
        click.echo(_as_json(results).decode(), nl=False)
    if failures:
        raise click.ClickException(f"{failures} of {len(scenarios)} scenarios were not measured")


def _as_json(results: list[Result]) -> bytes:
    import msgspec

    return msgspec.json.format(msgspec.json.encode({"results": results}), indent=2) + b"\n"


@contextmanager
def _progress(name: str) -> Iterator[tuple[Callable[[str], None], Callable[[Progress], None]]]:
    """How far a scenario is, in a line of the terminal that is rewritten."""
    from tidemill.cli.progress import status_line

    def on_progress(progress: Progress) -> None:
        failed = f", {progress.failed} failed" if progress.failed else ""
        rewrite(
            f"{name}: {progress.phase}, {progress.seconds:.0f} s: {progress.ended} answers"
            f"{failed}, {progress.sent - progress.ended} in flight"
        )

    with status_line() as rewrite:
        yield lambda words: rewrite(f"{name}: {words}"), on_progress


@click.command("list")
def list_scenarios() -> None:
    """List the scenarios."""
    from tidemill.bench import scenario as known
    from tidemill.bench.report import load_words

    for name in known.names():
        found = known.load(name)
        click.echo(f"{name:18} {found.summary:48} {load_words(found.load)}")


@click.command("show")
@click.argument("name", metavar="NAME|FILE.toml")
@click.option("--toml", is_flag=True, help="The file itself, to make one of your own from.")
def show(name: str, toml: bool) -> None:
    """Show what a scenario asks, how fast, and what counts as good."""
    from pathlib import Path

    from tidemill.bench import scenario as known
    from tidemill.bench.report import describe

    found = known.load(name)
    if toml:
        path = Path(name) if name.endswith(".toml") else known.FOLDER / f"{name}.toml"
        click.echo(path.read_text("utf-8"), nl=False)
    else:
        click.echo(describe(found))


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
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        click.echo(str(found))
