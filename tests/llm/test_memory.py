"""The memory sum: computed before anything is allocated; refused, and shown, if it is too big."""

from __future__ import annotations

import pytest

from tidemill.backends.base import KVCacheSpec, MemoryPlan
from tidemill.llm.memory import (
    BLOCK_SIZE,
    InsufficientMemoryError,
    SizedCache,
    default_context,
    size_cache,
)

MIB = 1 << 20
BYTES_PER_TOKEN = 1024


def plan(kv: KVCacheSpec) -> MemoryPlan:
    """A model of 100 MiB with 20 MiB of scratch and 1 KiB of KV per token."""
    return MemoryPlan(100 * MIB, kv.n_blocks * kv.block_size * BYTES_PER_TOKEN, 20 * MIB)


def sized(
    *,
    context: int = 4096,
    sequences: int = 4,
    kv_memory: int | None = None,
    available: int | None = 1000 * MIB,
) -> SizedCache:
    return size_cache(
        plan,
        max_context=context,
        max_sequences=sequences,
        kv_dtype="f16",
        kv_memory=kv_memory,
        available=available,
    )


def test_one_sequence_needs_one_plan() -> None:
    """A plan builds an executor, which shows in the start of `tidemill run`."""
    planned: list[KVCacheSpec] = []

    def counted(kv: KVCacheSpec) -> MemoryPlan:
        planned.append(kv)
        return plan(kv)

    cache = size_cache(
        counted, max_context=64, max_sequences=1, kv_dtype="f16", kv_memory=None, available=None
    )
    assert planned == [cache.kv]


def test_every_sequence_has_room_where_memory_allows() -> None:
    cache = sized()
    assert cache.kv == KVCacheSpec(4 * 4096 // BLOCK_SIZE, BLOCK_SIZE, "f16")
    assert cache.plan.total == (100 + 16 + 20) * MIB


def test_the_default_takes_a_quarter_of_what_is_left() -> None:
    cache = sized(sequences=1000)
    assert cache.plan.kv == (1000 - 120) // 4 * MIB


def test_the_default_is_capped_on_large_machines() -> None:
    assert sized(sequences=10**6, available=1 << 40).plan.kv == 4 << 30
    assert sized(sequences=10**6, available=None).plan.kv == 4 << 30


def test_one_full_context_has_room_even_above_the_share() -> None:
    cache = sized(context=400 * 1024, sequences=8)
    assert cache.plan.kv == 400 * MIB


def test_context_is_rounded_up_to_whole_blocks() -> None:
    assert sized(context=17, sequences=1).kv.n_blocks == 2


def test_an_explicit_size_is_kept() -> None:
    assert sized(sequences=1000, kv_memory=50 * MIB).plan.kv == 50 * MIB
    with pytest.raises(InsufficientMemoryError, match="one sequence of 4096 tokens"):
        sized(kv_memory=3 * MIB)


def test_an_explicit_size_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InsufficientMemoryError, match="1,000 MiB are available"):
        sized(sequences=10**6, kv_memory=2000 * MIB)


def test_the_refusal_shows_the_sum_and_a_context_that_fits() -> None:
    with pytest.raises(InsufficientMemoryError) as caught:
        sized(context=4096, sequences=1, available=122 * MIB)
    assert str(caught.value) == (
        "the model does not fit into memory: weights 100 MiB + KV cache 4 MiB (for 4096 tokens in "
        "f16) + scratch 20 MiB = 124 MiB, but 122 MiB are available; lower the context to 2048 or "
        "store the KV cache in q8_0"
    )
    assert sized(context=2048, sequences=1, available=122 * MIB).plan.total == 122 * MIB


def test_without_room_for_the_weights_only_a_smaller_model_helps() -> None:
    with pytest.raises(InsufficientMemoryError, match="use a smaller model"):
        sized(available=90 * MIB)


def test_default_context() -> None:
    assert default_context(2048) == 2048
    assert default_context(131072) == 8192


def test_sizes_below_a_mebibyte_are_told_as_they_are() -> None:
    message = (
        "a KV cache of 1,024 bytes cannot hold one sequence of 4096 tokens, which takes 4,194,304"
    )
    with pytest.raises(InsufficientMemoryError, match=message):
        sized(kv_memory=1024)
