"""Checks that a batch keeps the contract of ``backends.base.Batch``."""

from __future__ import annotations

import numpy as np

from tidemill.backends.base import Batch, KVCacheSpec


def check_batch(
    batch: Batch, *, kv: KVCacheSpec, vocab_size: int, max_tokens: int, max_logit_rows: int
) -> None:
    """Raise ``ValueError`` that names the field and what is wrong with it."""
    for name, ndim in (
        ("tokens", 1), ("positions", 1), ("query_starts", 1), ("context_lens", 1),
        ("block_tables", 2), ("logit_rows", 1), ("hidden_rows", 1),
    ):  # fmt: skip
        array = getattr(batch, name)
        if not isinstance(array, np.ndarray) or array.dtype != np.int32 or array.ndim != ndim:
            raise ValueError(f"batch.{name} must be an int32 array of {ndim} dimension(s)")
    n, s = len(batch.tokens), len(batch.context_lens)
    if not 1 <= n <= max_tokens:
        raise ValueError(f"a batch of {n} tokens; this runner takes 1..{max_tokens}")
    if len(batch.logit_rows) > max_logit_rows:
        raise ValueError(f"{len(batch.logit_rows)} logit rows; this runner gives {max_logit_rows}")
    most, rows = max(max_tokens, max_logit_rows), len(batch.logit_rows) + len(batch.hidden_rows)
    if rows > most:
        raise ValueError(f"{rows} logit_rows and hidden_rows; this runner gives {most} together")
    if len(batch.positions) != n:
        raise ValueError(f"batch.positions has {len(batch.positions)} entries for {n} tokens")
    starts = batch.query_starts
    if len(starts) != s + 1 or starts[0] != 0 or starts[-1] != n or np.any(np.diff(starts) < 1):
        raise ValueError(f"batch.query_starts must rise from 0 to {n} in {s} steps of at least one")
    if len(batch.block_tables) != s:
        raise ValueError(f"batch.block_tables has {len(batch.block_tables)} rows for {s} sequences")
    _check_range("tokens", batch.tokens, vocab_size)
    _check_range("logit_rows", batch.logit_rows, n)
    _check_range("hidden_rows", batch.hidden_rows, n)
    for i in range(s):
        new = int(starts[i + 1] - starts[i])
        length = int(batch.context_lens[i])
        expected = np.arange(length - new, length)
        positions = batch.positions[starts[i] : starts[i + 1]]
        if length < new or not np.array_equal(positions, expected):
            raise ValueError(
                f"sequence {i}: its {new} positions must be the last of its {length} tokens"
            )
        n_blocks = -(-length // kv.block_size)
        if n_blocks > batch.block_tables.shape[1]:
            raise ValueError(
                f"sequence {i}: {length} tokens need {n_blocks} KV blocks, "
                f"the table has {batch.block_tables.shape[1]}"
            )
        _check_range(f"block_tables[{i}]", batch.block_tables[i, :n_blocks], kv.n_blocks)


def _check_range(name: str, values: np.ndarray, stop: int) -> None:
    bad = values[(values < 0) | (values >= stop)]
    if len(bad):
        raise ValueError(f"batch.{name} has {int(bad[0])}, outside 0..{stop - 1}")
