"""Scenarios: what is asked, how fast, and what counts as good; TOML files in ``scenarios/``.

name = "short-chat"
summary = "questions and short answers"
source = "where the lengths and the arrivals are from"
seconds = 60                       # of the measured window
slo = { ttft = 1.0, tpot = 0.1 }   # seconds

[load]                             # arrivals.py, or kind = "trace" (traces.py) or "starts"
kind = "gamma"
rate = 1.0

[[shapes]]                         # workload.py; a task is in tasks.py
name = "chat"
input = { kind = "lognormal", median = 120, p90 = 400, high = 1000 }
output = { kind = "uniform", low = 32, high = 128 }
"""

from __future__ import annotations

import re
import statistics
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

from tidemill.bench.arrivals import Closed, Gamma, Load, Trace
from tidemill.bench.measures import Slo
from tidemill.bench.records import MIN_SECONDS
from tidemill.bench.traces import TraceFile, context_of
from tidemill.bench.traces import read as read_trace
from tidemill.bench.workload import Fixed, Shape, Size, Workload

FOLDER = Path(__file__).parent / "scenarios"
_MAX_FILE = 1 << 20

OPEN_SEQUENCES = 8
"""Sequences that an engine started here holds at once in an open loop; in a closed one, as many as
there are streams."""

_TO_THE_END = 1e6
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
Seconds = Annotated[float, msgspec.Meta(ge=MIN_SECONDS, le=1e6)]


class ScenarioError(ValueError):
    """A scenario that cannot be; the message says which, where, and what is wrong."""


class Starts(msgspec.Struct, frozen=True, tag="starts", tag_field="kind",
             forbid_unknown_fields=True):  # fmt: skip
    """The engine is started so many times with its files out of the page cache, and as often with
    them in it; each start ends with the first request's first token (``starts.py``)."""

    repeats: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See above. The window lasts ``seconds``, and until ``requests`` have ended in a closed loop;
    ``warmup`` seconds come before it. One request may take ``timeout`` seconds. A trace that has
    lengths needs no shapes."""

    name: str
    summary: str
    load: Closed | Gamma | TraceFile | Starts
    shapes: tuple[Shape, ...] = ()
    source: str = ""
    seconds: Seconds = 60.0
    requests: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    warmup: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 5.0
    timeout: Seconds = 300.0
    slo: Slo | None = None
    api: Literal["chat", "completions"] = "chat"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name {self.name!r}: small letters, digits and - only")
        traced = isinstance(self.load, TraceFile)
        if not self.shapes and not traced:
            raise ValueError("shapes: there must be at least one")
        if self.slo == Slo():
            raise ValueError("slo: it has no limit; leave it out, or give ttft, tpot or e2e")
        names = [shape.name for shape in self.shapes]
        if len(set(names)) < len(names):
            raise ValueError("two shapes have the same name")
        for shape in self.shapes:
            talks = shape.system or shape.turns > 1 or shape.task is not None
            if self.api == "completions" and talks:
                raise ValueError(f"shape {shape.name!r}: system, turns and task need api = 'chat'")
            if traced and (shape.turns > 1 or shape.task is not None):
                raise ValueError(f"shape {shape.name!r}: turns and task do not go with a trace")

    @property
    def checked(self) -> bool:
        """Whether answers are checked; then the model ends them itself."""
        return any(shape.task is not None for shape in self.shapes)

    @property
    def tenants(self) -> list[str]:
        return sorted({shape.tenant for shape in self.shapes if shape.tenant})

    @property
    def context(self) -> int:
        """Tokens that one sequence of the shapes needs at most."""
        return context_of(max((shape.most for shape in self.shapes), default=0))

    @property
    def arrivals(self) -> Gamma | TraceFile:
        """How its requests come, whatever their rate; by chance where they have none."""
        return self.load if isinstance(self.load, Gamma | TraceFile) else Gamma(1.0)

    def loaded(self, rate: float | None, concurrency: int | None) -> Scenario:
        """With another load, if one is given: requests a second, which come as before, or at any
        time. Starts stay what they are."""
        load = self.load
        if isinstance(load, Starts):
            return self
        if rate is not None:
            load = self.arrivals.at(rate)
        elif concurrency is not None:
            load = Closed(concurrency)
        return msgspec.structs.replace(self, load=load)

    def scaled(self, factor: float) -> Scenario:
        """With prompts and answers so many times as long."""
        shapes = tuple(shape.scaled(factor) for shape in self.shapes)
        load = self.load
        if isinstance(load, TraceFile):
            load = msgspec.structs.replace(load, scale=load.scale * factor)
        return msgspec.structs.replace(self, shapes=shapes, load=load)


class Prepared(NamedTuple):
    """What a scenario comes to: the file of a trace is read, and gives the ``load`` its times, the
    ``workload`` its lengths, and ``scenario`` the seconds that it lasts. ``context``: tokens that
    one sequence needs at most. ``notes``: what a reader of the figures must know."""

    scenario: Scenario
    load: Load | Starts
    workload: Workload
    context: int
    notes: list[str]

    @property
    def sequences(self) -> int:
        """Those that an engine is to hold at once."""
        if isinstance(self.load, Starts):
            return 1
        return self.load.concurrency if isinstance(self.load, Closed) else OPEN_SEQUENCES


def prepare(scenario: Scenario, seed: int = 0) -> Prepared:
    """Raises TraceError or ScenarioError, and OSError if a trace cannot be read."""
    load, shapes = scenario.load, scenario.shapes
    if not isinstance(load, TraceFile):
        return Prepared(scenario, load, Workload(shapes, seed), scenario.context, [])
    found = read_trace(load)
    context = scenario.context
    if found.sizes:
        shapes = (_mean_shape(found.sizes),)  # of which only the name is used
        context = load.context or context_of(max(s.input + s.output for s in found.sizes))
    elif not shapes:
        raise ScenarioError(
            f"{load.file} has no columns input_tokens and output_tokens, and {scenario.name} no "
            "shapes: whose lengths are the requests to have?"
        )
    # To its end, if that comes first; and all of it counts, as it may begin with a burst. All of it
    # may have come at once.
    seconds = max(MIN_SECONDS, min(scenario.seconds, found.seconds))
    scenario = msgspec.structs.replace(scenario, warmup=0.0, seconds=seconds)
    workload = Workload(shapes, seed, found.sizes)
    return Prepared(scenario, Trace(found.timestamps, found.speed), workload, context, found.notes)


def _mean_shape(sizes: Sequence[Size]) -> Shape:
    prompt, answer = (
        Fixed(round(statistics.fmean(lengths)))
        for lengths in ([s.input for s in sizes], [s.output for s in sizes])
    )
    return Shape("trace", prompt, answer)


def prepare_under(
    scenario: Scenario, load: Closed | Gamma | TraceFile, seconds: float, warmup: float, seed: int
) -> Prepared:
    """A scenario with another load. The lengths of a trace stay; a closed loop has them one after
    the other. Raises what ``prepare`` raises."""
    if isinstance(scenario.load, TraceFile) and isinstance(load, Closed):
        prepared = prepare(scenario, seed)
        scenario = msgspec.structs.replace(
            prepared.scenario, load=load, shapes=prepared.workload.shapes, seconds=seconds,
            warmup=warmup,
        )  # fmt: skip
        return prepared._replace(scenario=scenario, load=load)
    scenario = msgspec.structs.replace(scenario, load=load, seconds=seconds, warmup=warmup)
    return prepare(scenario, seed)


def rate_of(load: Closed | Gamma | TraceFile | Starts) -> float | None:
    """Requests a second that it asks for, if it says so."""
    return load.rate if isinstance(load, Gamma | TraceFile) else None


def replay(trace: TraceFile, scenario: Scenario | None) -> Scenario:
    """A scenario with a trace in place of its load; without one, the trace from end to end. Raises
    ScenarioError if they do not go together."""
    if scenario is None:
        stem = re.sub(r"[^a-z0-9]+", "-", Path(trace.file).stem.lower()).strip("-")
        return Scenario(
            name=stem[:64] or "trace", summary=f"replay of {trace.file}", load=trace,
            source=trace.file, seconds=_TO_THE_END,
        )  # fmt: skip
    try:
        if isinstance(scenario.load, Starts):
            raise ValueError("it has no requests but the first")
        return msgspec.structs.replace(scenario, load=trace)
    except ValueError as error:
        raise ScenarioError(f"{scenario.name} with a trace: {error}") from None


def names() -> list[str]:
    """Of the scenarios that come along."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Scenario:
    """By its name, or from a file whose name ends in .toml. Raises ScenarioError."""
    if name.endswith(".toml"):
        return read(Path(name))
    if name not in names():
        raise ScenarioError(
            f"there is no scenario {name!r}; there are {', '.join(names())}, and your own in "
            "files that end in .toml"
        )
    return read(FOLDER / f"{name}.toml")


def read(path: Path) -> Scenario:
    """Raises ScenarioError, and OSError if the file cannot be read."""
    with path.open("rb") as file:
        data = file.read(_MAX_FILE + 1)
    if len(data) > _MAX_FILE:
        raise ScenarioError(f"{path} is larger than a scenario can be")
    try:
        table = tomllib.loads(data.decode("utf-8-sig"))  # some editors write that mark
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{path} is not valid TOML: {error}") from None
    try:
        scenario = msgspec.convert(table, Scenario)
        msgspec.msgpack.encode(scenario)  # as it is sent to the load generator
    except OverflowError:
        raise ScenarioError(f"{path}: a whole number in it has more than 64 bits") from None
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{path}: {error}") from None
    if isinstance(scenario.load, TraceFile):  # which may lie beside it
        load = msgspec.structs.replace(scenario.load, file=str(path.parent / scenario.load.file))
        scenario = msgspec.structs.replace(scenario, load=load)
    return scenario
