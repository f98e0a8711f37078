"""How large the KV cache will be, and whether the whole fits, before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.backends.base import KVCacheSpec, KVDtype, MemoryPlan
from tidemill.records import dataclass

DEFAULT_CONTEXT = 8192
BLOCK_SIZE = 16

# Without an explicit size the KV cache takes at most this share of what weights and scratch leave,
# and at most this many bytes: a cache on somebody's laptop should not crowd out everything else.
_DEFAULT_SHARE = 0.25
_DEFAULT_MOST = 4 << 30

_MIB = 1 << 20

PlanMemory = Callable[[KVCacheSpec], MemoryPlan]
"""What a backend would hold with a given KV cache."""


class InsufficientMemoryError(MemoryError):
    """The model with its KV cache does not fit; the message shows the sum and what to lower."""


@dataclass(frozen=True, slots=True)
class SizedCache:
    """The KV cache that was decided on, and the memory that the runner will hold with it."""

    kv: KVCacheSpec
    plan: MemoryPlan


def default_context(model_context: int) -> int:
    """Tokens per sequence unless asked otherwise: the model's own, at most DEFAULT_CONTEXT."""
    return min(model_context, DEFAULT_CONTEXT)


def size_cache(
    plan: PlanMemory,
    *,
    max_context: int,
    max_sequences: int,
    kv_dtype: KVDtype,
    kv_memory: int | None,
    available: int | None,
) -> SizedCache:
    """Choose the number of KV blocks and check the sum against the memory ``available``.

    At least one sequence of ``max_context`` tokens has room, whatever else; more, up to
    ``max_sequences`` of them, as far as ``kv_memory`` bytes go (default: a quarter of what weights
    and scratch leave, at most 4 GiB). Raises InsufficientMemoryError.
    """
    blocks_per_sequence = -(-max_context // BLOCK_SIZE)
    smallest = KVCacheSpec(blocks_per_sequence, BLOCK_SIZE, kv_dtype)
    base = plan(smallest)
    bytes_per_block = max(1, base.kv // blocks_per_sequence)
    if available is not None and base.total > available:
        raise InsufficientMemoryError(_refusal(base, max_context, kv_dtype, available))
    if kv_memory is not None and base.kv > kv_memory:
        raise InsufficientMemoryError(
            f"a KV cache of {kv_memory:,} bytes cannot hold one sequence of {max_context} tokens, "
            f"which takes {base.kv:,}; lower the context or raise the KV memory"
        )
    if kv_memory is None:
        kv_memory = _DEFAULT_MOST
        if available is not None:
            free = available - base.weights - base.scratch
            kv_memory = min(kv_memory, int(_DEFAULT_SHARE * free))
    blocks = min(kv_memory // bytes_per_block, max_sequences * blocks_per_sequence)
    kv = KVCacheSpec(max(blocks, blocks_per_sequence), BLOCK_SIZE, kv_dtype)
    decided = base if kv == smallest else plan(kv)
    if available is not None and decided.total > available:
        raise InsufficientMemoryError(_refusal(decided, max_context, kv_dtype, available))
    return SizedCache(kv, decided)


def _refusal(plan: MemoryPlan, max_context: int, kv_dtype: KVDtype, available: int) -> str:
    message = (
        f"the model does not fit into memory: weights {_mib(plan.weights)} + KV cache "
        f"{_mib(plan.kv)} (for {max_context} tokens in {kv_dtype}) + scratch "
        f"{_mib(plan.scratch)} = {_mib(plan.total)}, but {_mib(available)} are available"
    )
    room = available - plan.weights - plan.scratch
    fits = int(max_context * room / plan.kv) // BLOCK_SIZE * BLOCK_SIZE if plan.kv else 0
    if fits >= 256:
        message += f"; lower the context to {fits}"
        if kv_dtype != "q8_0":
            message += " or store the KV cache in q8_0"
        return message
    return message + "; use a smaller model or one with fewer bits per weight"


def _mib(n_bytes: int) -> str:
    return f"{-(-n_bytes // _MIB):,} MiB"
