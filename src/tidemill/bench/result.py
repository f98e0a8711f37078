"""A scenario on a target: carried out, and what is kept of it."""

from __future__ import annotations

import asyncio
import datetime
import platform
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tidemill import __version__
from tidemill.bench.apart import run_apart
from tidemill.bench.arrivals import Closed
from tidemill.bench.client import Endpoint
from tidemill.bench.engines import Engine, Launch, TargetError, started
from tidemill.bench.measures import Slo, Summary, summarise
from tidemill.bench.meters import Sampler
from tidemill.bench.records import Recording, Window
from tidemill.bench.resources import Prices, Resources, of_url, taken
from tidemill.bench.run import BenchError, Plan, Progress
from tidemill.bench.scenario import Scenario, Starts
from tidemill.bench.starts import Start, measure_starts
from tidemill.bench.targets import FULL_LENGTH, GREEDY, Target, choose_model, settle, shown
from tidemill.bench.workload import Workload
from tidemill.hardware import core_budget, cpu_info, memory_budget

FORMAT = 1
"""Of a ``Result`` in JSON. What is only added to it does not change this."""

OPEN_SEQUENCES = 8
"""Sequences that an engine started here holds at once in an open loop; in a closed one, as many as
there are streams."""

FEW = 100
"""Requests below which p99 is the slowest of them, or nearly."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is not the scenario's. ``path``: of the model that an engine is started with. ``keys``:
    of tenants by name. ``arguments`` go to an engine that is started. ``prices``: what the machine
    costs. ``name`` and ``series`` are for the result; ``keep_text``: records have the answers'
    text."""

    path: Path | None = None
    slo: Slo | None = None
    seed: int = 0
    api_key: str | None = None
    keys: dict[str, str] = {}
    threads: int = 1
    binary: str | None = None
    arguments: tuple[str, ...] = ()
    prices: Prices = Prices()
    name: str | None = None
    series: str | None = None
    keep_text: bool = False


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Who was measured. ``extra`` was in every request. ``command``, ``version`` and ``threads``:
    of an engine that was started for it."""

    url: str
    model: str
    extra: dict[str, object] = {}
    usage: bool = True
    engine: str | None = None
    version: str | None = None
    command: list[str] = []
    threads: int | None = None

    @property
    def whom(self) -> str:
        """As ``--target`` takes it, but that a model is what it is called, not where it is."""
        return f"{self.engine}:{Path(self.model).name}" if self.engine else self.url


class Machine(msgspec.Struct, frozen=True):
    """The one that the load came from, and that an engine was started on."""

    cpu: str
    architecture: str
    cores: int
    memory: int | None
    system: str
    python: str


class Result(msgspec.Struct, kw_only=True):
    """Seconds and tokens throughout. ``scenario`` is as it was run, lengths and load changed by
    options included. ``summary`` or ``starts`` has the figures, ``by_shape`` those of each shape if
    there are several. ``per_core``: output tokens a second for each thread of an engine that was
    started here. ``id``: in the store, empty if it is not kept there (``store.py``). ``name``: what
    the user calls it; runs of one name are repeats of each other. ``series``: what the points of
    one curve or search have in common."""

    format: int = FORMAT
    id: str = ""
    name: str | None = None
    series: str | None = None
    when: str
    bench: str = __version__
    scenario: Scenario
    seed: int
    slo: Slo | None
    target: Measured
    machine: Machine
    summary: Summary | None = None
    by_shape: dict[str, Summary] = {}
    per_core: float | None = None
    resources: Resources | None = None
    starts: list[Start] = []
    notes: list[str] = []


class Measurement(NamedTuple):
    """A result, and what it was made of; cold starts have no recording."""

    result: Result
    recording: Recording | None


def measure(
    scenario: Scenario,
    target: Target,
    settings: Settings,
    *,
    say: Callable[[str], None],
    on_progress: Callable[[Progress], None] | None = None,
) -> Measurement:
    """Carry out a scenario. ``say`` is told what is being done. Raises TargetError."""
    workload = Workload(scenario.shapes, settings.seed)
    result = Result(
        when=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        name=settings.name, series=settings.series,
        scenario=scenario, seed=settings.seed, slo=settings.slo or scenario.slo,
        target=Measured(url="", model=target.model or ""), machine=_machine(),
    )  # fmt: skip
    if isinstance(scenario.load, Starts):
        _starts(scenario.load, target, settings, workload, result, say)
        return Measurement(result, None)
    with _running(scenario, target, settings, result, say) as running:
        say("asking how it can be asked")
        tenant = (scenario.tenants or [""])[0]
        full_length = {} if scenario.checked else running.full_length
        endpoint = asyncio.run(
            settle(running.endpoint, tenant, full_length=full_length, timeout=scenario.timeout)
        )
        plan = Plan(
            endpoint=endpoint, workload=workload, load=scenario.load, seconds=scenario.seconds,
            requests=scenario.requests, warmup=scenario.warmup, timeout=scenario.timeout,
            watch=running.pids, keep_text=settings.keep_text,
        )  # fmt: skip
        try:
            recording = run_apart(plan, on_progress)
        except BenchError as error:
            raise TargetError(str(error)) from None
    _hide_keys(recording, [endpoint.api_key, *endpoint.keys.values()])
    result.target = msgspec.structs.replace(
        result.target, extra=dict(endpoint.extra), usage=endpoint.usage
    )
    result.summary = summarise(recording, result.slo)
    if len(scenario.shapes) > 1:
        result.by_shape = {
            shape.name: summarise(recording, result.slo, shape.name) for shape in scenario.shapes
        }
    result.resources = _resources(running.sampler, recording.window, result, settings.prices)
    result.per_core = result.resources.density.per_core_given
    result.notes = _notes(scenario, result, endpoint, running.full_length)
    return Measurement(result, recording)


def _hide_keys(recording: Recording, keys: Iterable[str | None]) -> None:
    """Endpoints may repeat a key when they refuse it."""
    for key in filter(None, keys):
        for record in recording.records:
            record.detail = record.detail.replace(key, "***")


class _Running(NamedTuple):
    """A server that can be asked: where, with which fields for answers of full length, and of an
    engine that was started here, its processes and what is sampled of them."""

    endpoint: Endpoint
    full_length: Mapping[str, Any]
    pids: tuple[int, ...] = ()
    sampler: Sampler | None = None


@contextmanager
def _running(
    scenario: Scenario, target: Target, settings: Settings, result: Result,
    say: Callable[[str], None],
) -> Iterator[_Running]:  # fmt: skip
    """Whom the load goes to; an engine is started, and ended afterwards."""
    engine = target.engine
    if engine is None:
        url = target.url or ""
        endpoint = _ask(scenario, url, target.model or "", settings.api_key, GREEDY, settings.keys)
        model = target.model or choose_model(url, settings.api_key)
        result.target = Measured(url=shown(url), model=model)
        yield _Running(msgspec.structs.replace(endpoint, model=model), FULL_LENGTH)
        return
    say(f"starting {engine.name}")
    version = engine.version(settings.binary)
    keys = {
        tenant: secrets.token_urlsafe(24) for tenant in scenario.tenants if engine.tenants
    }  # fmt: skip
    with (
        _launch(scenario, settings, keys) as launch,
        closing(Sampler()) as sampler,
        started(engine, launch) as process,
    ):
        sampler.watch(process.pids)
        try:
            process.until_ready(scenario.timeout)
        except TargetError as error:
            raise TargetError(
                f"{error}\n({scenario.name} needs {launch.sequences} sequences of {launch.context} "
                "tokens: --scale makes them shorter)"
            ) from None
        result.target = Measured(
            url=process.url, model=target.model or "", engine=engine.name, version=version,
            command=process.command, threads=_threads(engine, settings),
        )  # fmt: skip
        endpoint = _ask(scenario, process.url, engine.model_name(launch), None, engine.greedy, keys)
        yield _Running(endpoint, engine.full_length, tuple(process.pids()), sampler)


def _threads(engine: Engine, settings: Settings) -> int | None:
    """None for an engine that uses as many as it likes."""
    return settings.threads if engine.takes_threads else None


def _starts(
    load: Starts, target: Target, settings: Settings, workload: Workload, result: Result,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    if target.engine is None:
        raise TargetError(
            f"{result.scenario.name} starts the engine itself: give --target ENGINE[:MODEL], not a "
            "URL"
        )
    engine = target.engine
    version = engine.version(settings.binary)
    timeout = result.scenario.timeout
    with _launch(result.scenario, settings, {}) as launch:
        result.starts = measure_starts(engine, launch, workload, load.repeats, timeout, say)
        command = engine.command(launch, 0)
    result.target = Measured(
        url="", model=target.model or "", engine=engine.name, version=version, command=command,
        threads=_threads(engine, settings),
    )  # fmt: skip
    kept = [s.cached for s in result.starts if s.cold and s.cached is not None]
    if not any(start.cold for start in result.starts):
        result.notes.append("no cold starts: files cannot be taken out of the page cache here")
    elif kept and max(kept) > 0.05:
        result.notes.append(
            f"cold starts were not cold: up to {max(kept):.0%} of the files stayed in the page "
            "cache (does another process use them?)"
        )


@contextmanager
def _launch(scenario: Scenario, settings: Settings, keys: dict[str, str]) -> Iterator[Launch]:
    """How an engine is started; what it writes is deleted in the end."""
    assert settings.path is not None
    load = scenario.load
    sequences = load.concurrency if isinstance(load, Closed) else OPEN_SEQUENCES
    if isinstance(load, Starts):
        sequences = 1
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        yield Launch(
            model=settings.path, context=scenario.context, sequences=sequences,
            threads=settings.threads, folder=Path(folder), keys=keys, binary=settings.binary,
            arguments=settings.arguments,
        )  # fmt: skip


def _ask(
    scenario: Scenario, url: str, model: str, api_key: str | None, greedy: Mapping[str, Any],
    keys: dict[str, str],
) -> Endpoint:  # fmt: skip
    try:
        return Endpoint(url, model, scenario.api, api_key, extra=dict(greedy), keys=keys)
    except ValueError as error:
        raise TargetError(str(error)) from None


def _resources(
    sampler: Sampler | None, window: Window, result: Result, prices: Prices
) -> Resources:
    assert result.summary is not None
    output_rate, prompt_rate = result.summary.output_rate, result.summary.prompt_rate
    if sampler is None:
        return of_url(window, output_rate=output_rate, prompt_rate=prompt_rate, prices=prices)
    return taken(
        sampler, window, cores=result.target.threads, output_rate=output_rate,
        prompt_rate=prompt_rate, prices=prices,
    )  # fmt: skip


def _notes(
    scenario: Scenario, result: Result, endpoint: Endpoint, full_length: Mapping[str, Any]
) -> list[str]:
    """What a reader of the figures must know."""
    summary = result.summary
    assert summary is not None
    notes = []
    if summary.good and not summary.counted:
        notes.append(
            "the endpoint does not count tokens (usage): each piece of text counts as one, so "
            "tokens/s and TPOT may be off"
        )
    if summary.short and not scenario.checked:
        notes.append(
            f"{summary.short} of {summary.good} answers ended before they were as long as asked "
            "for: compare engines by answers of equal length only"
        )
    elif not scenario.checked and not full_length:
        notes.append(
            f"{result.target.engine} cannot be made to answer at the length that is asked for"
        )
    elif not scenario.checked and not full_length.keys() <= endpoint.extra.keys():
        refused = ", ".join(full_length)
        notes.append(f"the endpoint does not take {refused}: models end answers where they like")
    if summary.long:
        notes.append(f"{summary.long} of {summary.good} answers were longer than asked for")
    if 0 < summary.good < FEW:
        notes.append(f"p99 of {summary.good} requests is their slowest, or nearly: see --seconds")
    if scenario.tenants and not endpoint.keys:
        notes.append("all tenants used the same key, or none: the endpoint saw one")
    return notes


def _machine() -> Machine:
    cpu = cpu_info()
    return Machine(
        cpu.model, cpu.architecture, core_budget().usable, memory_budget().total,
        f"{platform.system()} {platform.release()}", platform.python_version(),
    )  # fmt: skip
