"""The NumPy backend: slow, obviously right, the oracle in tests."""

from __future__ import annotations

from tidemill.backends.base import KVCacheSpec
from tidemill.backends.reference.runner import ReferenceRunner
from tidemill.models import Model

__all__ = ["ReferenceRunner", "compile"]


def compile(
    model: Model,
    *,
    kv: KVCacheSpec,
    max_batch_tokens: int = 512,
    max_logit_rows: int = 64,
    threads: int | None = None,
    optimised: bool = False,
) -> ReferenceRunner:
    """A runner for ``model``. ``threads`` is accepted as by every backend and left to NumPy;
    ``optimised`` runs the program that compiled backends run, to test the passes."""
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
