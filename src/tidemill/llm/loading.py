"""From a model name to a running engine: find, open, plan the memory, compile."""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, Protocol, cast, get_args

from tidemill.backends.base import KVCacheSpec, KVDtype, MemoryPlan, Origin, Runner
from tidemill.engine.base import MAX_PREFILL_TOKENS, Aside, EngineConfig
from tidemill.engine.draft_model import DraftModel
from tidemill.engine.engine import Engine
from tidemill.engine.kv_tier import KVTier
from tidemill.engine.lookup import PromptLookup
from tidemill.engine.params import as_integer
from tidemill.engine.sampling import scratch_bytes
from tidemill.engine.speculation import MAX_DRAFT, Proposer
from tidemill.hardware import CoreBudget, available_memory, core_budget
from tidemill.llm.memory import SizedCache, default_context, size_cache
from tidemill.models import Model, load_model, trained_context
from tidemill.records import dataclass
from tidemill.store import resolve
from tidemill.store.base import Progress
from tidemill.text import load_tokenizer
from tidemill.text.base import Tokenizer
from tidemill.weights import open_checkpoint
from tidemill.weights.base import Checkpoint
from tidemill.weights.identity import content_identity

log = logging.getLogger("tidemill")

BackendName = Literal["cpu", "reference"]
Speculative = Literal["off", "lookup", "auto"]
Stage = Literal["open", "tokenizer", "compile", "ready"]
OnStage = Callable[[Stage, float], None]
"""Told each stage of a load as it begins, and how much of it is done (0 to 1; only packing the
weights, "compile", takes long enough to be told more than once)."""


_MOST = {"threads": 1024, "max_sequences": 65_536, "max_batch_tokens": 1_048_576}
"""Far above what any machine can use; backends count in 32 bits."""
_MOST_BLOCKS = 2**31 - 1


class Backend(Protocol):
    """What the module ``tidemill.backends.<name>`` has."""

    def plan(
        self,
        model: Model,
        *,
        kv: KVCacheSpec,
        max_batch_tokens: int,
        max_logit_rows: int,
        threads: int,
        origin: Origin | None = None,
    ) -> MemoryPlan: ...

    def compile(
        self,
        model: Model,
        *,
        kv: KVCacheSpec,
        max_batch_tokens: int,
        max_logit_rows: int,
        threads: int,
        origin: Origin | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Runner: ...


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model found and described, with nothing of its weights read yet.

    ``max_context``: tokens of prompt and answer together that will be served.
    """

    name: str
    path: Path
    checkpoint: Checkpoint
    model: Model
    tokenizer: Tokenizer
    max_context: int


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """An open model with the runner that computes it, and what was decided for it."""

    opened: OpenModel
    runner: Runner
    cache: SizedCache
    threads: int
    cores: CoreBudget
    """The cores found on this machine; ``threads`` is their ``usable`` unless given."""

    def describe_threads(self) -> str:
        """The line that is shown at start: how many threads, and why."""
        if self.threads == self.cores.usable:
            return f"threads: {self.cores.explain()}"
        return f"threads: {self.threads} as asked for (usable cores: {self.cores.explain()})"


def open_model(
    name: str | os.PathLike[str],
    *,
    max_context: int | None = None,
    pre_tokenizer: str | None = None,
    offline: bool | None = None,
    progress: Progress | None = None,
    on_stage: OnStage | None = None,
) -> OpenModel:
    """Find a model by name (downloading it if need be) and read its description.

    ``pre_tokenizer`` replaces what a GGUF file says of how text is split before merging.
    Raises StoreError if it cannot be found or fetched, CheckpointError if it is damaged or of an
    unsupported kind, ValueError if ``max_context`` is more than it was trained for.
    """
    if max_context is not None:
        max_context = as_integer(max_context, "max_context")
    path = resolve(name, offline=offline, progress=progress)
    _tell(on_stage, "open")
    checkpoint = open_checkpoint(path)
    trained = trained_context(checkpoint)
    if max_context is not None and not 2 <= max_context <= trained:
        raise ValueError(
            f"a context of {max_context} tokens is not possible: {name} was trained for {trained} "
            "tokens (and at least 2 are needed)"
        )
    context = default_context(trained) if max_context is None else max_context
    model = load_model(checkpoint, max_context=context)
    _tell(on_stage, "tokenizer")
    tokenizer = load_tokenizer(
        checkpoint.format, checkpoint.metadata, checkpoint.folder, pre=pre_tokenizer
    )
    return OpenModel(os.fspath(name), path, checkpoint, model, tokenizer, context)


def origin_of(opened: OpenModel) -> Origin | None:
    """What is kept of this model between runs belongs to this; None if its files may still be
    changing."""
    identity = content_identity(opened.checkpoint)
    if identity is None:
        return None
    return Origin(identity, tuple(os.path.abspath(file) for file in opened.checkpoint.files))


def backend_named(name: str) -> Backend:
    """The backend of that name. Raises ValueError if there is none."""
    if name not in ("cpu", "reference"):
        raise ValueError(f"no backend is called {name!r}; there are 'cpu' and 'reference'")
    return cast("Backend", importlib.import_module(f"tidemill.backends.{name}"))


def check_size(name: str, value: int) -> int:
    """``value`` if the option ``name`` can be that large. Raises ValueError."""
    number = as_integer(value, name)
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {number}")
    if number > _MOST[name]:
        raise ValueError(f"{name} must be at most {_MOST[name]}")
    return number


def plan_memory(
    opened: OpenModel,
    backend: Backend,
    kv: KVCacheSpec,
    *,
    max_batch_tokens: int,
    max_logit_rows: int,
    threads: int,
    origin: Origin | None = None,
) -> MemoryPlan:
    """What the backend and the sampler will hold. Raises ValueError beyond _MOST_BLOCKS."""
    if kv.n_blocks > _MOST_BLOCKS:
        raise ValueError(
            f"a KV cache of {kv.n_blocks} blocks is too large: {_MOST_BLOCKS} are possible; lower "
            "the context or the number of sequences"
        )
    plan = backend.plan(
        opened.model,
        kv=kv,
        max_batch_tokens=max_batch_tokens,
        max_logit_rows=max_logit_rows,
        threads=threads,
        origin=origin,
    )
    return replace(
        plan, scratch=plan.scratch + scratch_bytes(opened.model.config.vocab_size, threads)
    )


def compile_model(
    opened: OpenModel,
    *,
    backend: str = "cpu",
    threads: int | None = None,
    kv_dtype: KVDtype = "f16",
    kv_memory: int | None = None,
    max_sequences: int = 64,
    max_batch_tokens: int = 512,
    max_logit_rows: int | None = None,
    keep_packed: bool = True,
    on_stage: OnStage | None = None,
) -> CompiledModel:
    """Plan the memory, refuse if it does not fit, and only then pack weights and allocate.

    ``kv_memory`` is the size of the KV cache in bytes; ``max_logit_rows`` defaults to one row per
    sequence. Unless ``keep_packed`` is off, packed weights are kept in the store, and read from
    there by the next start. Raises InsufficientMemoryError, ValueError.
    """
    chosen = backend_named(backend)
    cores = core_budget()
    threads = check_size("threads", cores.usable if threads is None else threads)
    max_sequences = check_size("max_sequences", max_sequences)
    max_batch_tokens = check_size("max_batch_tokens", max_batch_tokens)
    if kv_memory is not None:
        kv_memory = as_integer(kv_memory, "kv_memory")
        if kv_memory < 1:
            raise ValueError(f"kv_memory must be at least 1 byte, not {kv_memory}")
    if kv_dtype not in get_args(KVDtype):
        kinds = ", ".join(get_args(KVDtype))
        raise ValueError(f"kv_dtype must be one of {kinds}, not {kv_dtype!r}")
    limits = {
        "max_batch_tokens": max(max_batch_tokens, max_sequences),
        "max_logit_rows": max_logit_rows or max_sequences,
        "threads": threads,
    }
    cache = size_cache(
        lambda kv: plan_memory(opened, chosen, kv, origin=None, **limits),
        max_context=opened.max_context,
        max_sequences=max_sequences,
        kv_dtype=kv_dtype,
        kv_memory=kv_memory,
        available=available_memory(),
    )
    _tell(on_stage, "compile")
    runner = chosen.compile(
        opened.model,
        kv=cache.kv,
        **limits,
        origin=origin_of(opened) if keep_packed else None,
        progress=lambda done, total: _tell(on_stage, "compile", done / max(1, total)),
    )
    _tell(on_stage, "ready")
    compiled = CompiledModel(opened, runner, cache, threads, cores)
    log.info(
        "%s: context %d, %d KV blocks of %d tokens, %d MiB planned; %s",
        opened.name,
        opened.max_context,
        cache.kv.n_blocks,
        cache.kv.block_size,
        cache.plan.total >> 20,
        compiled.describe_threads(),
    )
    return compiled


def start_engine(
    compiled: CompiledModel,
    *,
    max_sequences: int,
    max_waiting: int,
    prefix_caching: bool,
    seed: int | None = None,
    target_itl: float | None = None,
    speculative: Speculative = "off",
    draft: CompiledModel | None = None,
    aside: Aside | None = None,
    tier: KVTier | None = None,
    interactive: bool = True,
) -> Engine:
    """The engine over a compiled model; ``seed`` is for requests that bring none.

    ``speculative`` as in ``LoadOptions``; ``draft`` guesses instead of prompt lookup. Not
    ``interactive``: nobody waits for the next token, so that prompts may fill whole steps.
    """
    runner = compiled.runner
    proposer: Proposer | None = None
    if draft is not None:
        proposer = DraftModel(
            draft.runner, vocab_size=runner.vocab_size, max_context=draft.opened.max_context
        )
    elif speculative != "off":
        proposer = PromptLookup()
    return Engine(
        runner,
        compiled.opened.tokenizer,
        EngineConfig(
            max_context=compiled.opened.max_context,
            max_batch_tokens=runner.max_batch_tokens,
            max_prefill_tokens=MAX_PREFILL_TOKENS if interactive else runner.max_batch_tokens,
            max_sequences=max_sequences,
            max_waiting=max_waiting,
            prefix_caching=prefix_caching,
            target_itl=target_itl,
            sampling_threads=compiled.threads,
            max_draft=MAX_DRAFT,
            adaptive_drafts=speculative != "lookup",
        ),
        entropy=seed,
        proposer=proposer,
        clock=time.perf_counter,
        aside=aside,
        tier=tier,
    )


def _tell(on_stage: OnStage | None, stage: Stage, fraction: float = 0.0) -> None:
    if on_stage is not None:
        on_stage(stage, fraction)
