"""A scenario on a target: carried out, and what is kept of it."""

from __future__ import annotations

import asyncio
import datetime
import platform
import re
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tidemill import __version__
from tidemill.bench.apart import run_apart
from tidemill.bench.client import Endpoint
from tidemill.bench.engines import Engine, Launch, TargetError, started
from tidemill.bench.measures import Slo, Summary, summarise
from tidemill.bench.meters import Sampler
from tidemill.bench.records import Recording, Window
from tidemill.bench.resources import Prices, Resources, of_url, taken
from tidemill.bench.run import BenchError, Plan, Progress
from tidemill.bench.scenario import Prepared, Scenario, Starts, prepare
from tidemill.bench.starts import Start, measure_starts
from tidemill.bench.targets import FULL_LENGTH, GREEDY, Target, choose_model, settle, shown
from tidemill.hardware import core_budget, cpu_info, memory_budget

FORMAT = 1
"""Of a ``Result`` in JSON. What is only added to it does not change this."""

_YEARS = (1970, 9000)  # of when something was measured: in all of them time zones can be changed

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


class NewerFormatError(ValueError):
    """A result was written by a newer version, and may mean something else."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Who was measured. ``extra`` was in every request. Of an engine that was started for it:
    ``command`` is all of its command line, ``arguments`` what the user added to that."""

    url: str
    model: str
    extra: dict[str, object] = {}
    usage: bool = True
    engine: str | None = None
    version: str | None = None
    command: list[str] = []
    arguments: list[str] = []
    threads: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for an address that is none: files may be damaged, or edited."""
        urlsplit(self.url)

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
    there are several. ``id``: in the store, empty if it is not kept there (``store.py``). ``name``:
    what the user calls it; runs of one name are repeats of each other. ``series``: what the points
    of one curve or search have in common."""

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
    resources: Resources | None = None
    starts: list[Start] = []
    notes: list[str] = []

    def __post_init__(self) -> None:
        """Raises ValueError for a time that nothing was measured at."""
        when = datetime.datetime.fromisoformat(self.when)
        if when.tzinfo is None or not _YEARS[0] <= when.year <= _YEARS[1]:
            raise ValueError(f"{self.when} is no time with an offset from UTC")

    @property
    def per_core(self) -> float | None:
        """Output tokens a second for each thread of an engine that was started here."""
        return None if self.resources is None else self.resources.density.per_core_given


def decode(data: bytes | msgspec.Raw) -> Result:
    """Of JSON. Raises NewerFormatError, ValueError (what msgspec raises is one), RecursionError."""
    if (newer := msgspec.json.decode(data, type=_Format).format) > FORMAT:
        raise NewerFormatError(f"of a newer tidemill (format {newer})")
    return msgspec.json.decode(data, type=Result)


class _Format(msgspec.Struct):
    format: int


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
    """Carry out a scenario. ``say`` is told what is being done. Raises TargetError, and what
    ``prepare`` raises."""
    prepared = prepare(scenario, settings.seed)
    if isinstance(scenario.load, Starts):
        return Measurement(_starts(scenario.load, prepared, target, settings, say), None)
    with serving(prepared, target, settings, say) as server:
        return server.measure(prepared, settings, on_progress)


class Server:
    """Whom the load goes to, up and ready to be asked: several scenarios can be measured on it, one
    after the other, if they need no more than what it was started for."""

    def __init__(
        self, endpoint: Endpoint, target: Measured, full_length: Mapping[str, Any],
        pids: tuple[int, ...] = (), sampler: Sampler | None = None,
    ) -> None:  # fmt: skip
        """``full_length``: the fields that would make answers as long as asked for. ``pids`` and
        ``sampler``: of an engine that was started here."""
        self._endpoint = endpoint
        self._target = msgspec.structs.replace(
            target, extra=dict(endpoint.extra), usage=endpoint.usage
        )
        self._full_length = full_length
        self._pids = pids
        self._sampler = sampler

    def measure(
        self,
        prepared: Prepared,
        settings: Settings,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Measurement:
        """Raises TargetError."""
        assert not isinstance(prepared.load, Starts)
        scenario, endpoint = prepared.scenario, self._endpoint
        plan = Plan(
            endpoint=endpoint, workload=prepared.workload, load=prepared.load,
            seconds=scenario.seconds, requests=scenario.requests, warmup=scenario.warmup,
            timeout=scenario.timeout, watch=self._pids, keep_text=settings.keep_text,
        )  # fmt: skip
        result = _result(scenario, settings, self._target)
        if self._sampler is not None:
            self._sampler.sample()
        try:
            recording = run_apart(plan, on_progress)
        except BenchError as error:
            raise TargetError(str(error)) from None
        if self._sampler is not None:
            self._sampler.sample()
        _hide_keys(recording, [endpoint.api_key, *endpoint.keys.values()])
        result.summary = summarise(recording, result.slo)
        shapes = prepared.workload.shapes
        if len(shapes) > 1:
            result.by_shape = {
                shape.name: summarise(recording, result.slo, shape.name) for shape in shapes
            }
        result.resources = _resources(self._sampler, recording.window, result, settings.prices)
        result.notes = prepared.notes + _notes(scenario, result, endpoint, self._full_length)
        return Measurement(result, recording)


def _result(scenario: Scenario, settings: Settings, target: Measured) -> Result:
    """Without any figures."""
    return Result(
        when=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        name=settings.name, series=settings.series, scenario=scenario, seed=settings.seed,
        slo=settings.slo or scenario.slo, target=target, machine=_machine(),
    )  # fmt: skip


def _hide_keys(recording: Recording, keys: Iterable[str | None]) -> None:
    """Endpoints may repeat a key when they refuse it."""
    for key in filter(None, keys):
        for record in recording.records:
            record.detail = record.detail.replace(key, "***")


_SECRET = re.compile(r"(--?[\w-]*(?:key|token|secret|password))(=.*)?", re.IGNORECASE)


def without_secrets(command: Sequence[str]) -> list[str]:
    """A command line whose options for keys and the like have *** for a value; users can give some
    with ``--engine-args``."""
    found: list[str] = []
    hide = False
    for word in command:
        secret = None if hide else _SECRET.fullmatch(word)
        found.append("***" if hide else f"{secret[1]}=***" if secret and secret[2] else word)
        hide = secret is not None and secret[2] is None
    return found


@contextmanager
def serving(
    prepared: Prepared, target: Target, settings: Settings, say: Callable[[str], None]
) -> Iterator[Server]:
    """Whom the load goes to; an engine is started, and ended afterwards. Raises TargetError."""
    scenario, engine = prepared.scenario, target.engine
    if engine is None:
        url = target.url or ""
        endpoint = _ask(scenario, url, target.model or "", settings.api_key, GREEDY, settings.keys)
        model = target.model or choose_model(url, settings.api_key)
        endpoint = msgspec.structs.replace(endpoint, model=model)
        endpoint = _settled(scenario, endpoint, FULL_LENGTH, say)
        yield Server(endpoint, Measured(url=shown(url), model=model), FULL_LENGTH)
        return
    say(f"starting {engine.name}")
    version = engine.version(settings.binary)
    keys = {
        tenant: secrets.token_urlsafe(24) for tenant in scenario.tenants if engine.tenants
    }  # fmt: skip
    with (
        _launch(prepared, settings, keys) as launch,
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
        measured = Measured(
            url=process.url, model=target.model or "", engine=engine.name, version=version,
            command=without_secrets(process.command),
            arguments=without_secrets(settings.arguments), threads=_threads(engine, settings),
        )  # fmt: skip
        endpoint = _ask(scenario, process.url, engine.model_name(launch), None, engine.greedy, keys)
        endpoint = _settled(scenario, endpoint, engine.full_length, say)
        yield Server(endpoint, measured, engine.full_length, tuple(process.pids()), sampler)


def _settled(
    scenario: Scenario, endpoint: Endpoint, full_length: Mapping[str, Any],
    say: Callable[[str], None],
) -> Endpoint:  # fmt: skip
    say("asking how it can be asked")
    tenant = (scenario.tenants or [""])[0]
    wanted = {} if scenario.checked else full_length
    return asyncio.run(settle(endpoint, tenant, full_length=wanted, timeout=scenario.timeout))


def _threads(engine: Engine, settings: Settings) -> int | None:
    """None for an engine that uses as many as it likes."""
    return settings.threads if engine.takes_threads else None


def _starts(
    load: Starts, prepared: Prepared, target: Target, settings: Settings,
    say: Callable[[str], None],
) -> Result:  # fmt: skip
    scenario, engine = prepared.scenario, target.engine
    if engine is None:
        raise TargetError(
            f"{scenario.name} starts the engine itself: give --target ENGINE[:MODEL], not a URL"
        )
    version = engine.version(settings.binary)
    with _launch(prepared, settings, {}) as launch:
        starts = measure_starts(
            engine, launch, prepared.workload, load.repeats, scenario.timeout, say
        )
        command = engine.command(launch, 0)
    measured = Measured(
        url="", model=target.model or "", engine=engine.name, version=version,
        command=without_secrets(command), arguments=without_secrets(settings.arguments),
        threads=_threads(engine, settings),
    )  # fmt: skip
    result = _result(scenario, settings, measured)
    result.starts = starts
    kept = [s.cached for s in result.starts if s.cold and s.cached is not None]
    if not any(start.cold for start in result.starts):
        result.notes.append("no cold starts: files cannot be taken out of the page cache here")
    elif kept and max(kept) > 0.05:
        result.notes.append(
            f"cold starts were not cold: up to {max(kept):.0%} of the files stayed in the page "
            "cache (does another process use them?)"
        )
    return result


@contextmanager
def _launch(prepared: Prepared, settings: Settings, keys: dict[str, str]) -> Iterator[Launch]:
    """How an engine is started; what it writes is deleted in the end."""
    assert settings.path is not None
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        yield Launch(
            model=settings.path, context=prepared.context, sequences=prepared.sequences,
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
            "the endpoint does not count tokens (usage), or counts more than were asked for: each "
            "piece of text counts as one, so tokens/s and TPOT may be off"
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
    if summary.good == 1:
        notes.append("one answer says nothing of how much they differ: see --seconds")
    elif 0 < summary.good < FEW:
        notes.append(f"p99 of {summary.good} requests is their slowest, or nearly: see --seconds")
    if scenario.tenants and not endpoint.keys:
        who = result.target.engine
        notes.append(
            f"{who} does not tell tenants apart: to it they were one"
            if who
            else "all tenants used the same key, or none: the endpoint saw one"
        )
    return notes


def _machine() -> Machine:
    cpu = cpu_info()
    return Machine(
        cpu.model, cpu.architecture, core_budget().usable, memory_budget().total,
        f"{platform.system()} {platform.release()}", platform.python_version(),
    )  # fmt: skip
