"""Calibrations of machines that nobody has: step times by a formula."""

from __future__ import annotations

import datetime

from tidemill.engine.step_time import attended
from tidemill.simulate.base import StepWork
from tidemill.simulate.calibration import (
    Calibration,
    EngineLimits,
    Limits,
    Machine,
    Point,
    Served,
    fit_points,
)


def seconds(work: StepWork) -> float:
    n = work.prompt_tokens + work.decodes
    return 2e-3 + 1e-4 * n + 2e-4 * work.rows + 1e-8 * work.prompt_context


def points() -> list[Point]:
    works = [
        StepWork(n, attended(0, n), 0, 0, rows) for n in (1, 2, 8, 32, 128, 512) for rows in (0, 1)
    ]
    works += [StepWork(0, 0, n, n * c, n) for n in (1, 4, 16, 64) for c in (32, 512)]
    return [
        Point(
            prompt_tokens=w.prompt_tokens, prompt_context=w.prompt_context, decodes=w.decodes,
            decode_context=w.decode_context, rows=w.rows, seconds=seconds(w), spread=0.01,
            repeats=5,
        )
        for w in works
    ]  # fmt: skip


def calibration(model: str, served: Served | None = None) -> Calibration:
    marked, fit = fit_points(points())
    return Calibration(
        model=model, identity="abc", weights=["Q4_1"],
        machine=Machine(cpu="Some CPU", architecture="x86_64", cores=2, memory=8 << 30),
        threads=2, version="0.1.0",
        made=datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC),
        limits=Limits(bytes_per_second=1e10, products_per_second={"F32": 1e10, "Q4_1": 5e10}),
        engine=EngineLimits(
            max_context=8192, max_sequences=64, max_batch_tokens=512, max_prefill_tokens=256,
            n_blocks=3000, block_size=16, kv_dtype="f16",
        ),
        points=marked, fit=fit, served=served,
    )  # fmt: skip
