"""Builds batches for runners: sequences in chunks, alone or together, over scattered blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemill.backends.base import Batch, Runner


@dataclass(frozen=True)
class Chunk:
    """The next ``tokens`` of a sequence of which ``past`` are cached, on KV blocks ``blocks``."""

    tokens: Sequence[int]
    past: int
    blocks: Sequence[int]


def make_batch(
    chunks: Sequence[Chunk],
    logit_rows: Iterable[int] | None = None,
    hidden_rows: Iterable[int] = (),
) -> Batch:
    """One step over these chunks; logits of every row unless ``logit_rows`` says which."""
    tokens = [token for chunk in chunks for token in chunk.tokens]
    width = max(len(chunk.blocks) for chunk in chunks)
    tables = np.full((len(chunks), width), -1, np.int32)
    for table, chunk in zip(tables, chunks, strict=True):
        table[: len(chunk.blocks)] = chunk.blocks
    return Batch(
        tokens=np.asarray(tokens, np.int32),
        positions=np.concatenate(
            [np.arange(c.past, c.past + len(c.tokens), dtype=np.int32) for c in chunks]
        ),
        query_starts=np.cumsum([0, *(len(c.tokens) for c in chunks)]).astype(np.int32),
        context_lens=np.asarray([c.past + len(c.tokens) for c in chunks], np.int32),
        block_tables=tables,
        logit_rows=np.asarray(
            range(len(tokens)) if logit_rows is None else list(logit_rows), np.int32
        ),
        hidden_rows=np.asarray(list(hidden_rows), np.int32),
    )


def scattered_blocks(n_tokens: int, runner: Runner, seed: int = 0) -> list[int]:
    """Enough KV blocks for a sequence, in no order."""
    needed = -(-n_tokens // runner.kv.block_size)
    return np.random.RandomState(seed).permutation(runner.kv.n_blocks)[:needed].tolist()


def run_tokens(
    runner: Runner, tokens: Sequence[int] | npt.NDArray[np.int32], chunk_sizes: Iterable[int]
) -> npt.NDArray[np.float32]:
    """Logits (T, vocab) of every token of one sequence, computed chunk after chunk.

    ``chunk_sizes`` must sum to T: [T] is one prefill, [1] * T decodes all the way.
    """
    ids = [int(token) for token in tokens]
    blocks = scattered_blocks(len(ids), runner)
    pieces, past = [], 0
    for size in chunk_sizes:
        batch = make_batch([Chunk(ids[past : past + size], past, blocks)])
        pieces.append(np.array(runner.forward(batch)))
        past += size
    assert past == len(ids), "the chunks must cover the tokens"
    return np.concatenate(pieces)


def run_hidden(
    runner: Runner, tokens: Sequence[int] | npt.NDArray[np.int32], chunk_sizes: Iterable[int]
) -> npt.NDArray[np.float32]:
    """Hidden states (T, d_model) of every token, computed as ``run_tokens`` does; no logits."""
    ids = [int(token) for token in tokens]
    blocks = scattered_blocks(len(ids), runner)
    pieces, past = [], 0
    for size in chunk_sizes:
        batch = make_batch([Chunk(ids[past : past + size], past, blocks)], [], range(size))
        assert runner.forward(batch).shape == (0, runner.vocab_size)
        pieces.append(np.array(runner.hidden()))
        past += size
    assert past == len(ids), "the chunks must cover the tokens"
    return np.concatenate(pieces)
