"""What a calibration has found out of a machine and a model, as a file.

``$TIDEMILL_HOME/calibrations/<model>-<threads>t-<key>.json``, where the key stands for the model's
content, the machine, the threads, the KV cache's format and Tidemill's version: whatever changes
the times. A file is checked when it is read: it may come from elsewhere.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from tidemill.hardware import CpuInfo, memory_budget
from tidemill.simulate.base import FrontEnd, ReplicaSpec, StepWork
from tidemill.simulate.fit import (
    MOST_TOKENS,
    Costs,
    Count,
    Error,
    Observation,
    Seconds,
    error,
    fit,
    split,
)
from tidemill.simulate.step_table import StepTable, interpolate
from tidemill.store.layout import home, write_durably

_MOST_BYTES = 4 << 20  # of a file

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Text = Annotated[str, msgspec.Meta(max_length=500)]


class CalibrationError(ValueError):
    """A calibration is not there, or its file is not sound; says which, where, what to do."""


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``features``: instruction sets that count for speed."""

    cpu: Text
    architecture: Text
    cores: Annotated[int, msgspec.Meta(ge=1)]
    memory: int | None
    features: list[Text] = []


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured: bytes per second of a streaming read, and products (multiply-adds) per second of
    each weight type's bare arithmetic."""

    bytes_per_second: Positive
    products_per_second: dict[str, Positive]


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As ``EngineConfig``, with the KV cache that the engine had."""

    max_context: Annotated[int, msgspec.Meta(ge=1, le=2**28)]
    max_sequences: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
    max_batch_tokens: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
    max_prefill_tokens: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
    n_blocks: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    block_size: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    kv_dtype: Text


class Point(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of step: ``seconds`` is the median of ``repeats``, ``spread`` half the distance
    between their quartiles as a share of it. ``held_out``: it was not fitted."""

    prompt_tokens: Count
    prompt_context: Count
    decodes: Count
    decode_context: Count
    rows: Count
    seconds: Annotated[float, msgspec.Meta(gt=0, le=1e6)]
    spread: Share
    repeats: Annotated[int, msgspec.Meta(ge=1)]
    held_out: bool = False

    @property
    def observation(self) -> Observation:
        work = StepWork(
            self.prompt_tokens, self.prompt_context, self.decodes, self.decode_context, self.rows
        )
        return Observation(work, self.seconds)


class Served(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the server adds, in seconds: before a request's first step, for the request and for each
    token of its prompt (cached or not); to each step; and to each token that it sends. ``spread``:
    of the requests', as of a Point."""

    per_request: Seconds
    per_prompt_token: Seconds = 0.0
    per_step: Seconds
    per_token: Seconds
    spread: Share


class OpTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of each kind of operation over all layers of one step."""

    prompt_tokens: Count
    decodes: Count
    context: Count
    ops: dict[str, Seconds]


class Noise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The spread of the repeats of one kind of step, over the kinds. No error can be below it."""

    median: Share
    p95: Share


class Fit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``error``: of the kinds of steps that were not fitted."""

    costs: Costs
    error: Error
    noise: Noise


def fit_points(points: Sequence[Point], seed: int = 0) -> tuple[list[Point], Fit]:
    """Fit three quarters of what was measured, and see how far off the others are. Gives the
    points with those marked that were held out, and the fit. Raises ValueError if they are few."""
    fitted, held_out = split([point.observation for point in points], seed)
    if not held_out:
        raise ValueError(f"{len(points)} kinds of steps are too few to hold some out")
    costs = fit(fitted)
    spreads = [point.spread for point in points]
    return (
        [
            msgspec.structs.replace(point, held_out=point.observation in held_out)
            for point in points
        ],
        Fit(
            costs=costs,
            error=error(costs, held_out),
            noise=Noise(median=statistics.median(spreads), p95=float(np.quantile(spreads, 0.95))),
        ),
    )


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``weights``: types of the model's matrices. ``fit`` is of ``points``; ``served`` what the
    server adds, if that was measured; ``ops``: where the time of some steps goes."""

    format: Literal[1] = 1
    model: Text
    identity: str | None
    weights: list[Text]
    machine: Machine
    threads: Annotated[int, msgspec.Meta(ge=1)]
    version: Text
    made: Annotated[datetime.datetime, msgspec.Meta(tz=True)]
    limits: Limits
    engine: EngineLimits
    points: Annotated[list[Point], msgspec.Meta(min_length=2, max_length=10_000)]
    fit: Fit
    served: Served | None = None
    ops: list[OpTimes] = []

    @property
    def key(self) -> str:
        told = [
            self.identity or self.model, self.machine.cpu, self.machine.cores,
            self.machine.features, self.threads, self.engine.kv_dtype, self.version,
        ]  # fmt: skip
        return hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:12]

    @property
    def file_name(self) -> str:
        model = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(self.model).name).strip(".-") or "model"
        return f"{model[:80]}-{self.threads}t-{self.key}.json"


def this_machine(cpu: CpuInfo, cores: int) -> Machine:
    """The one that this runs on."""
    return Machine(
        cpu=cpu.model,
        architecture=cpu.architecture,
        cores=cores,
        memory=memory_budget().total,
        features=sorted(cpu.features),
    )


def folder() -> Path:
    return home() / "calibrations"


def save(calibration: Calibration, path: Path | None = None) -> Path:
    """Write a calibration, to its place in the store unless ``path`` says where."""
    if path is None:
        path = folder() / calibration.file_name
        path.parent.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(calibration), indent=1).decode()
    write_durably(path, text + "\n")
    return path


def load(path: str | os.PathLike[str]) -> Calibration:
    """Read a calibration. Raises CalibrationError."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise CalibrationError(
            f"{path}: {error.strerror}; `tidemill calibrate` makes calibrations"
        ) from None
    if len(data) > _MOST_BYTES:
        raise CalibrationError(f"{path}: larger than {_MOST_BYTES >> 20} MiB")
    try:
        return msgspec.json.decode(data, type=Calibration)
    except msgspec.DecodeError as error:  # ValidationError too
        raise CalibrationError(
            f"{path}: no calibration of this version of Tidemill: {error}; "
            "`tidemill calibrate` makes a new one"
        ) from None
    except RecursionError:
        raise CalibrationError(f"{path}: no calibration: nested too deeply") from None


def stored() -> Iterator[tuple[Path, Calibration]]:
    """The calibrations in the store that can be read, the newest first."""
    found = []
    for path in folder().glob("*.json"):
        try:
            found.append((path, load(path)))
        except CalibrationError:
            continue
    yield from sorted(found, key=lambda entry: entry[1].made, reverse=True)


def calibrated(calibration: Calibration, *, hour: float | None = None) -> ReplicaSpec:
    """The engine that was measured, behind its server as far as that was measured too."""
    engine, served = calibration.engine, calibration.served
    return ReplicaSpec(
        name=f"{calibration.model} on {calibration.machine.cpu}, {calibration.threads} threads",
        step_time=step_table(calibration),
        n_blocks=engine.n_blocks,
        max_context=engine.max_context,
        block_size=engine.block_size,
        max_sequences=engine.max_sequences,
        max_batch_tokens=engine.max_batch_tokens,
        max_prefill_tokens=engine.max_prefill_tokens,
        front=FrontEnd()
        if served is None
        else FrontEnd(served.per_request, served.per_prompt_token, "measured by the calibration"),
        hour=hour,
    )


def step_table(calibration: Calibration, *, with_server: bool = True) -> StepTable:
    """Step times as an engine has them, and what its server adds."""
    return table_of(
        calibration.fit,
        calibration.engine,
        calibration.served if with_server else None,
        source=(
            f"calibration of {calibration.model} on {calibration.machine.cpu}, "
            f"{calibration.threads} threads, {calibration.made:%Y-%m-%d}"
        ),
    )


def table_of(fit: Fit, engine: EngineLimits, served: Served | None, source: str) -> StepTable:
    per_step, per_token = (served.per_step, served.per_token) if served else (0.0, 0.0)
    tokens = interpolate(dict(fit.costs.tokens), engine.max_batch_tokens + engine.max_sequences)
    rows = interpolate(dict(fit.costs.rows), engine.max_sequences)
    return StepTable(
        [seconds + per_step * (n > 0) for n, seconds in enumerate(tokens)],
        [seconds + per_token * n for n, seconds in enumerate(rows)],
        fit.costs.per_prompt_context,
        fit.costs.per_decode_context,
        fit.costs.per_prompt_read,
        origin="measured",
        source=source,
        band=fit.error.p95,
    )
