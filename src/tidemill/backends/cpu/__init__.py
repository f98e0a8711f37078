"""The CPU backend: a program compiled to C++ kernels, a whole step in one native call."""

from __future__ import annotations

from tidemill.backends.base import KVCacheSpec, MemoryPlan, Origin
from tidemill.backends.cpu.build import Built, build
from tidemill.backends.cpu.packed import PackedImage
from tidemill.backends.cpu.runner import CpuRunner, Progress
from tidemill.models import Model
from tidemill.program.passes import PASSES, Pass

__all__ = ["CpuRunner", "compile", "plan"]


def compile(
    model: Model,
    *,
    kv: KVCacheSpec,
    max_batch_tokens: int = 512,
    max_logit_rows: int = 64,
    threads: int | None = None,
    origin: Origin | None = None,
    progress: Progress | None = None,
    passes: tuple[Pass, ...] = PASSES,
) -> CpuRunner:
    """Compile ``model`` and pack its weights, or map those that an earlier run has kept.

    With an ``origin`` packed weights are kept in the store for the next run, and used if they are
    there (``tidemill.store.packed``). Without one nothing is read or written there.

    ``threads`` is the size of the thread team, the calling thread included (None: one per usable
    core). ``progress(done, total)`` is told the bytes of weights packed. ``passes`` rewrite the
    program first; fewer of them give the same results, more slowly. Raises ``ValueError``
    for limits that make no sense, ``CheckpointError`` for weights that cannot be packed and
    ``MemoryError`` if there is no room.
    """
    built = _build(model, kv, max_batch_tokens, max_logit_rows, threads, passes)
    runner = CpuRunner(
        built, kv, max_batch_tokens, max_logit_rows, vocab_size=model.config.vocab_size
    )
    runner.load(built, model.weights, PackedImage.of(built, model.weights, origin), progress)
    return runner


def plan(
    model: Model,
    *,
    kv: KVCacheSpec,
    max_batch_tokens: int = 512,
    max_logit_rows: int = 64,
    threads: int | None = None,
    origin: Origin | None = None,
) -> MemoryPlan:
    """The bytes that ``compile`` with the same arguments will take, exactly; takes none.

    An embedding table that is not the output matrix as well is read in place from the mapped file
    and not counted: its pages are the page cache's.
    """
    built = _build(model, kv, max_batch_tokens, max_logit_rows, threads)
    executor = built.executor
    image = PackedImage.of(built, model.weights, origin)
    mapped = executor.weight_bytes if image is not None and image.is_kept() else 0
    return MemoryPlan(executor.weight_bytes, executor.kv_bytes, executor.scratch_bytes, mapped)


def _build(
    model: Model,
    kv: KVCacheSpec,
    max_batch_tokens: int,
    max_logit_rows: int,
    threads: int | None,
    passes: tuple[Pass, ...] = PASSES,
) -> Built:
    if threads is None:
        from tidemill.hardware import usable_cores

        threads = usable_cores()
    return build(
        model.program,
        model.weights.sources,
        kv=kv,
        max_batch_tokens=max_batch_tokens,
        max_logit_rows=max_logit_rows,
        threads=threads,
        passes=passes,
    )
