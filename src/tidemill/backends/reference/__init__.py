"""The NumPy backend: slow, obviously right, the oracle in tests."""

from __future__ import annotations

import math
from collections.abc import Callable

from tidemill.backends.base import KVCacheSpec, MemoryPlan, Origin
from tidemill.backends.reference.runner import ReferenceRunner
from tidemill.models import Model

__all__ = ["ReferenceRunner", "compile", "plan"]


def compile(
    model: Model,
    *,
    kv: KVCacheSpec,
    max_batch_tokens: int = 512,
    max_logit_rows: int = 64,
    threads: int | None = None,
    origin: Origin | None = None,
    progress: Callable[[int, int], None] | None = None,
    optimised: bool = False,
) -> ReferenceRunner:
    """A runner for ``model``. ``threads`` is accepted as by every backend and left to NumPy, and
    so are ``origin`` and ``progress``, since nothing is packed. ``optimised`` runs the program that
    compiled backends run, to test the passes."""
    if kv.n_blocks < 1 or kv.block_size < 1 or max_batch_tokens < 1 or max_logit_rows < 1:
        raise ValueError("KV blocks, block size, batch tokens and logit rows must be at least 1")
    program = model.program
    if optimised:
        from tidemill.program.passes import optimise

        program = optimise(program)
    return ReferenceRunner(
        program,
        model.weights,
        kv=kv,
        max_batch_tokens=max_batch_tokens,
        max_logit_rows=max_logit_rows,
    )


def plan(
    model: Model,
    *,
    kv: KVCacheSpec,
    max_batch_tokens: int = 512,
    max_logit_rows: int = 64,
    threads: int | None = None,
    origin: Origin | None = None,
) -> MemoryPlan:
    """Bytes that a runner comes to hold: everything in float32, every value of a step kept."""
    weights = sum(4 * math.prod(source.shape) for source in model.weights.sources.values())
    kv_elements = sum(2 * shape.n_kv_heads * shape.head_dim for shape in model.program.kv)
    rows = {"tokens": max_batch_tokens, "logits": max_logit_rows}
    values = sum(4 * value.width * rows[value.rows] for value in model.program.values)
    return MemoryPlan(weights, 4 * kv_elements * kv.n_blocks * kv.block_size, values)
