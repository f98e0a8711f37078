"""Options that ``bench run``, ``search`` and ``curve`` share: whom to measure, and what to do with
the results."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.blocks import echo_json
from tidemill.cli.options import Number, Text, named_numbers, threads_option

if TYPE_CHECKING:
    from tidemill.bench.measures import Slo
    from tidemill.bench.resources import Prices
    from tidemill.bench.result import Settings
    from tidemill.bench.scenario import Scenario
    from tidemill.bench.targets import Target
    from tidemill.bench.traces import TraceFile
    from tidemill.cli.bench_results import Keeper

POSITIVE = Number(min=1e-6, max=1e6)
SECONDS = Number(min=0.001, max=1e6)
SEED = click.IntRange(0, 2**32 - 1)
_TIME = Number(min=0, max=1e12)
_PRICE = Number(min=0, max=1e9)


class Limits(click.ParamType["Slo"]):
    """``ttft=0.5,tpot=0.05``: seconds."""

    name = "NAME=SECONDS,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Slo:
        from tidemill.bench.measures import Slo

        if isinstance(value, Slo):
            return value
        try:
            limits = named_numbers(value, dict.fromkeys(Slo.__struct_fields__, float))
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """What these options say."""

    target: str
    slo: Slo | None
    json_file: str | None
    model: str | None
    scale: float
    seed: int
    timeout: float | None
    api_key: str | None
    tenant_keys: tuple[tuple[str, str], ...]
    threads: int | None
    binary: str | None
    engine_args: str
    prices: Prices
    name: str | None
    no_keep: bool
    keep_text: bool

    def changed(self, scenario: Scenario) -> Scenario:
        """With the lengths and the time limit that were asked for."""
        import msgspec

        if self.scale != 1:
            scenario = scenario.scaled(self.scale)
        if self.timeout is not None:
            scenario = msgspec.structs.replace(scenario, timeout=self.timeout)
        return scenario

    def whom(self) -> tuple[Target, Settings]:
        """The target, with the model that an engine is to be started with at hand."""
        import shlex

        from tidemill.bench import targets
        from tidemill.bench.result import Settings
        from tidemill.hardware import usable_cores

        try:
            arguments = tuple(shlex.split(self.engine_args))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--engine-args") from None
        settings = Settings(
            slo=self.slo, seed=self.seed, api_key=self.api_key, keys=dict(self.tenant_keys),
            threads=self.threads or usable_cores(), binary=self.binary, arguments=arguments,
            prices=self.prices, name=self.name, keep_text=self.keep_text,
        )  # fmt: skip
        return _at_hand(targets.parse(self.target), self.model, settings)

    def keeper(self) -> Keeper | None:
        from tidemill.cli.bench_results import Keeper

        return None if self.no_keep else Keeper()

    @property
    def prints(self) -> bool:
        """Whether there is to be text on stdout, where else only JSON is."""
        return self.json_file != "-"

    def check_json(self) -> None:
        """Can it be written? Better known now than in an hour."""
        if self.json_file not in (None, "-"):
            with open(str(self.json_file), "ab"):
                pass

    def write_json(self, value: Any) -> None:
        """Where it was asked for, if it was."""
        if self.json_file == "-":
            echo_json(value)
        elif self.json_file is not None:
            with open(self.json_file, "w", encoding="utf-8") as file:
                echo_json(value, file)


def _prices_options(command: Callable[..., Any]) -> Callable[..., Any]:
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


_OPTIONS: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [
    click.option(
        "--target", required=True, type=Text(), metavar="URL|ENGINE[:MODEL]",
        help="An OpenAI-compatible endpoint, or what is started: tidemill[:MODEL], llama.cpp:MODEL "
        "... (see `tidemill bench engines`).",
    ),
    click.option(
        "--slo", type=Limits(),
        help="Limits in seconds of ttft, tpot and e2e. [default: the scenario's]",
    ),
    click.option(
        "--json", "json_file", metavar="FILE",
        help="Write results, settings and machine there too (-: to stdout, and no table).",
    ),
    click.option(
        "--model", type=Text(),
        help="What an endpoint calls the model. [default: the only one it has]",
    ),
    click.option(
        "--scale", type=Number(min=0.001, max=1000), default=1.0, show_default=True,
        help="Factor of the lengths of prompts and answers.",
    ),
    click.option(
        "--seed", type=SEED, default=0, show_default=True, help="Of the prompts."
    ),
    click.option(
        "--timeout", type=SECONDS, help="Seconds for a request. [default: the scenario's]"
    ),
    click.option(
        "--api-key", envvar="TIDEMILL_BENCH_KEY", metavar="KEY",
        help="Of an endpoint that wants one.",
    ),
    click.option(
        "--tenant-key", "tenant_keys", type=TenantKey(), multiple=True,
        help="The key of one of a scenario's tenants; repeatable.",
    ),
    threads_option,
    click.option(
        "--binary", "--python", type=Text(), metavar="FILE",
        help="The engine's program (llama-server, vllm ...), or the interpreter that has its "
        "package.",
    ),
    click.option(
        "--engine-args", type=Text(), default="", metavar="TEXT",
        help="More arguments for the engine.",
    ),
    _prices_options,
    click.option(
        "--name", type=Text(), help="What to call the results; runs of one name are repeats."
    ),
    click.option(
        "--no-keep", is_flag=True, help="Do not keep results (see `tidemill bench results`)."
    ),
    click.option("--keep-text", is_flag=True, help="Keep the answers' text, too."),
]  # fmt: skip


def measuring_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that make ``asked`` (``Asked``)."""

    @functools.wraps(command)
    def with_asked(*args: Any, **kwargs: Any) -> Any:
        fields = {field.name: kwargs.pop(field.name) for field in dataclasses.fields(Asked)}
        return command(*args, asked=Asked(**fields), **kwargs)

    decorated: Callable[..., Any] = with_asked
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


_TRACE_OPTIONS: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [
    click.option(
        "--trace", type=Text(), metavar="FILE",
        help="Requests as they once came (CSV with Azure's, BurstGPT's or our columns, or "
        "Mooncake's JSON lines), in place of the scenario's load and lengths.",
    ),
    click.option("--limit", type=click.IntRange(1, 10**9), help="Requests of a trace, at most."),
    click.option(
        "--from", "start", type=_TIME, help="Second of a trace from which on it is replayed."
    ),
    click.option("--to", "end", type=_TIME, help="Second of a trace up to which it is replayed."),
    click.option(
        "--context", type=click.IntRange(513, 2_000_000), metavar="TOKENS",
        help="What the model holds: longer requests of a trace are shortened to that.",
    ),
]  # fmt: skip


def trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that make ``recorded`` (a ``TraceFile``, or None)."""

    @functools.wraps(command)
    def with_trace(*args: Any, trace: str | None, **kwargs: Any) -> Any:
        names = {"start": "--from", "end": "--to", "limit": "--limit", "context": "--context"}
        part = {name: value for name in names if (value := kwargs.pop(name)) is not None}
        if trace is None and part:
            raise click.UsageError(f"{names[next(iter(part))]} is for a --trace")
        recorded = None if trace is None else _trace(trace, part)
        return command(*args, recorded=recorded, **kwargs)

    decorated: Callable[..., Any] = with_trace
    for option in reversed(_TRACE_OPTIONS):
        decorated = option(decorated)
    return decorated


def _trace(file: str, part: dict[str, Any]) -> TraceFile:
    from tidemill.bench.traces import TraceFile

    try:
        return TraceFile(file, **part)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _at_hand(target: Target, model: str | None, settings: Settings) -> tuple[Target, Settings]:
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
