"""Carries out a calibration: the machine's limits, the engine's steps, the server's share."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from tidemill import __version__
from tidemill.backends.base import KVDtype, Runner
from tidemill.backends.cpu.roofline import (
    kind_of,
    measure_ceilings,
    uniform_batch,
    watch,
    weight_types,
)
from tidemill.engine.engine import Engine
from tidemill.hardware import available_memory, core_budget, cpu_info
from tidemill.llm.loading import (
    CompiledModel,
    OnStage,
    OpenModel,
    backend_named,
    compile_model,
    open_model,
    plan_memory,
    start_engine,
)
from tidemill.llm.memory import SizedCache, size_cache
from tidemill.simulate.calibration import (
    Calibration,
    EngineLimits,
    Limits,
    OpTimes,
    fit_points,
    table_of,
    this_machine,
)
from tidemill.simulate.grid import cases
from tidemill.simulate.measure import StepMeter, measure_steps
from tidemill.simulate.served import measure_served
from tidemill.store.base import Progress
from tidemill.weights.identity import content_identity

if TYPE_CHECKING:
    from tidemill.backends.cpu import CpuRunner

# As `tidemill serve` has them by default.
SEQUENCES, BATCH_TOKENS, PREFILL_TOKENS = 64, 512, 256

_SECONDS, _QUICK_SECONDS = 180.0, 25.0
_KV_TOKENS = 40_960  # of the KV cache that is measured with, at most
_KV_MEMORY = 2 << 30
_OP_DECODES = ((1, 64), (1, 1024), (8, 256), (32, 256))  # decodes and their context
_OP_PROMPTS = ((64, 0), (512, 0), (512, 1024))  # prompt tokens and those before them

Phase = Literal["limits", "steps", "operations", "server"]
OnPhase = Callable[[Phase, str], None]
"""Told what is being measured, and how far that is."""


def calibrate(
    name: str,
    *,
    threads: int | None = None,
    kv_dtype: KVDtype = "f16",
    quick: bool = False,
    server: bool = True,
    offline: bool | None = None,
    progress: Progress | None = None,
    on_stage: OnStage | None = None,
    on_phase: OnPhase = lambda *_: None,
) -> Calibration:
    """Measure the model ``name`` on this machine: three to five minutes, under one if ``quick``.

    Raises what loading a model raises, and TargetError if the server does not start.
    """
    opened = open_model(name, offline=offline, progress=progress, on_stage=on_stage)
    cores = core_budget()
    threads = threads or cores.usable
    default = _default_cache(opened, threads, kv_dtype)
    token_bytes = default.plan.kv // (default.kv.n_blocks * default.kv.block_size)
    compiled = compile_model(
        opened,
        threads=threads,
        kv_dtype=kv_dtype,
        kv_memory=max(
            min(default.plan.kv, _KV_TOKENS * token_bytes, _KV_MEMORY),
            (opened.max_context + 2 * default.kv.block_size) * token_bytes,
        ),
        max_sequences=SEQUENCES,
        max_batch_tokens=BATCH_TOKENS,
        on_stage=on_stage,
    )
    runner = cast("CpuRunner", compiled.runner)
    try:
        on_phase("limits", "memory and arithmetic")
        types = weight_types(opened.model)
        ceilings = measure_ceilings(types, threads, seconds=0.1 if quick else 0.5)
        meter = StepMeter(runner, lambda seen: _engine(compiled, seen))
        points = measure_steps(
            meter,
            cases(meter.room, quick=quick),
            seconds=_QUICK_SECONDS if quick else _SECONDS,
            on_case=lambda n, done, share: on_phase("steps", f"{share:.0%}, round {n}"),
        )
        on_phase("operations", "")
        ops = _operation_times(runner, 1 if quick else 5)
    finally:
        runner.close()
    points, fit = fit_points(points)
    engine = EngineLimits(
        max_context=opened.max_context,
        max_sequences=SEQUENCES,
        max_batch_tokens=BATCH_TOKENS,
        max_prefill_tokens=PREFILL_TOKENS,
        n_blocks=default.kv.n_blocks,
        block_size=default.kv.block_size,
        kv_dtype=kv_dtype,
    )
    served = None
    if server:
        served = measure_served(
            opened.path,
            table_of(fit, engine, None, "this calibration"),
            context=opened.max_context,
            sequences=SEQUENCES,
            threads=threads,
            requests=15 if quick else 40,
            repeats=2 if quick else 5,
            say=lambda text: on_phase("server", text),
        )
    return Calibration(
        model=name,
        identity=content_identity(opened.checkpoint),
        weights=sorted(type_.name for type_ in types),
        machine=this_machine(cpu_info(), cores.usable),
        threads=threads,
        version=__version__,
        made=datetime.datetime.now(datetime.UTC).replace(microsecond=0),
        limits=Limits(
            bytes_per_second=ceilings.bytes_per_second,
            products_per_second={
                type_.name: rate for type_, rate in ceilings.products_per_second.items()
            },
        ),
        engine=engine,
        points=points,
        fit=fit,
        served=served,
        ops=ops,
    )


def _default_cache(opened: OpenModel, threads: int, kv_dtype: KVDtype) -> SizedCache:
    """The KV cache that a server would have here by default."""
    backend = backend_named("cpu")
    return size_cache(
        lambda kv: plan_memory(
            opened,
            backend,
            kv,
            max_batch_tokens=BATCH_TOKENS,
            max_logit_rows=SEQUENCES,
            threads=threads,
        ),
        max_context=opened.max_context,
        max_sequences=SEQUENCES,
        kv_dtype=kv_dtype,
        kv_memory=None,
        available=available_memory(),
    )


def _engine(compiled: CompiledModel, runner: Runner) -> Engine:
    return start_engine(
        replace(compiled, runner=runner),
        max_sequences=SEQUENCES,
        max_waiting=4096,
        prefix_caching=True,
        seed=0,
    )


def _operation_times(runner: CpuRunner, repeats: int) -> list[OpTimes]:
    """Where the time of some steps goes, by kind of operation."""
    kv = runner.kv
    found = []
    for prompts, n, past, new in (
        *((0, n, context - 1, 1) for n, context in _OP_DECODES),
        *((1, 1, past, new) for new, past in _OP_PROMPTS),
    ):
        blocks = -(-(past + new) // kv.block_size)
        if (
            n * blocks > kv.n_blocks
            or n * new > runner.max_batch_tokens
            or n > runner.max_logit_rows
        ):
            continue
        batch = uniform_batch(np.ones(n * new, np.int32), n, past, kv.block_size, blocks)
        runner.forward(batch)
        with watch(runner) as profile:
            for _ in range(repeats):
                runner.forward(batch)
        ops: dict[str, float] = defaultdict(float)
        for name, seconds in profile.timings:
            ops[kind_of(name)] += seconds / repeats
        decodes = 0 if prompts else n
        found.append(
            OpTimes(prompt_tokens=prompts * new, decodes=decodes, context=past + new, ops=dict(ops))
        )
    return found
