"""Perplexity of a model on a text, defined as ``llama-perplexity`` of llama.cpp defines it.

The text is tokenised once, with the special tokens that the model wants, and cut into chunks of
``context`` tokens; what is left over is not used. Each chunk is computed on its own, its first
token replaced by BOS if the model's tokenizer adds one. The first half of a chunk is context only:
the predictions made at positions context/2 .. context-2 are scored. Perplexity is exp of their mean
negative log-likelihood; the uncertainty is its standard error times the perplexity.

With a ``stride`` the windows of ``context`` tokens overlap: each starts ``stride`` tokens
after the one before, and its last ``stride`` predictions are scored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from tidemill.backends.base import Batch, KVDtype, Runner
from tidemill.llm.loading import BackendName, OnStage, compile_model, open_model
from tidemill.records import dataclass
from tidemill.store.base import Progress
from tidemill.text.base import Tokenizer

DEFAULT_WINDOW = 512
_LOGIT_ROWS = 64

OnChunk = Callable[[int, int, float], None]
"""After each chunk: how many are done, of how many, and the perplexity so far."""


@dataclass(frozen=True, slots=True)
class PerplexityResult:
    """``perplexity`` +/- ``uncertainty`` over ``scored_tokens`` predictions in ``chunks``."""

    perplexity: float
    uncertainty: float
    nll: float
    """Mean negative log-likelihood, in nats per token."""
    chunks: int
    scored_tokens: int
    text_tokens: int
    context: int
    stride: int | None


def perplexity(
    runner: Runner,
    tokenizer: Tokenizer,
    text: str,
    *,
    context: int = DEFAULT_WINDOW,
    stride: int | None = None,
    max_chunks: int | None = None,
    on_chunk: OnChunk | None = None,
) -> PerplexityResult:
    """Score ``text`` with a runner that nobody else uses: its first KV blocks are overwritten.

    Raises ValueError if the text is too short (two chunks are needed) or the runner's KV memory
    too small for ``context``.
    """
    if context < 4:
        raise ValueError(f"a context of {context} tokens is too short to score; 4 are needed")
    if stride is not None and not 1 <= stride < context:
        raise ValueError(f"the stride must be 1 to {context - 1}, not {stride}")
    if context > runner.kv.n_blocks * runner.kv.block_size:
        raise ValueError(f"the runner's KV memory does not hold {context} tokens")
    tokens = np.array(_without_eos(tokenizer, tokenizer.encode(text)), dtype=np.int32)
    if len(tokens) < 2 * context:
        raise ValueError(
            f"the text has {len(tokens)} tokens; perplexity over chunks of {context} needs at "
            f"least {2 * context}: take a longer text or a smaller context"
        )
    bos = tokenizer.bos_id if _adds_bos(tokenizer) else None
    starts = _starts(len(tokens), context, stride)[:max_chunks]
    first = context // 2 if stride is None else context - stride - 1

    total = total_squares = 0.0
    count = 0
    for done, start in enumerate(starts, 1):
        chunk = tokens[start : start + context]
        losses = _chunk_losses(runner, chunk, first, bos)
        total += float(losses.sum())
        total_squares += float(np.square(losses).sum())
        count += len(losses)
        if on_chunk is not None:
            on_chunk(done, len(starts), math.exp(total / count))
    mean = total / count
    variance = total_squares / count - mean * mean
    error = math.sqrt(max(0.0, variance) / max(1, count - 1))
    value = math.exp(mean)
    return PerplexityResult(
        value, error * value, mean, len(starts), count, len(tokens), context, stride
    )


def model_perplexity(
    model: str,
    text: str,
    *,
    context: int = DEFAULT_WINDOW,
    stride: int | None = None,
    max_chunks: int | None = None,
    threads: int | None = None,
    kv_dtype: KVDtype = "f16",
    backend: BackendName = "cpu",
    pre_tokenizer: str | None = None,
    offline: bool | None = None,
    progress: Progress | None = None,
    on_stage: OnStage | None = None,
    on_chunk: OnChunk | None = None,
) -> PerplexityResult:
    """Load a model by name for this alone, and score ``text`` with it."""
    opened = open_model(
        model,
        max_context=context,
        pre_tokenizer=pre_tokenizer,
        offline=offline,
        progress=progress,
        on_stage=on_stage,
    )
    compiled = compile_model(
        opened,
        backend=backend,
        threads=threads,
        kv_dtype=kv_dtype,
        max_sequences=1,
        max_logit_rows=_LOGIT_ROWS,
        on_stage=on_stage,
    )
    try:
        return perplexity(
            compiled.runner,
            opened.tokenizer,
            text,
            context=context,
            stride=stride,
            max_chunks=max_chunks,
            on_chunk=on_chunk,
        )
    finally:
        compiled.runner.close()


def _starts(n_tokens: int, context: int, stride: int | None) -> list[int]:
    if stride is None:
        return [chunk * context for chunk in range(n_tokens // context)]
    return list(range(0, n_tokens - context + 1, stride))


def _chunk_losses(
    runner: Runner, chunk: npt.NDArray[np.int32], first: int, bos: int | None
) -> npt.NDArray[np.float64]:
    """Negative log-likelihoods of the predictions made at positions first .. len - 2."""
    fed = chunk.copy()
    if bos is not None:
        fed[0] = bos
    n_blocks = -(-len(chunk) // runner.kv.block_size)
    blocks = np.arange(n_blocks, dtype=np.int32)[None, :]
    losses = []
    for start, stop in _pieces(runner, len(chunk), first):
        rows = np.arange(max(first, start), min(stop, len(chunk) - 1), dtype=np.int32)
        logits = runner.forward(
            Batch(
                tokens=fed[start:stop],
                positions=np.arange(start, stop, dtype=np.int32),
                query_starts=np.array([0, stop - start], dtype=np.int32),
                context_lens=np.array([stop], dtype=np.int32),
                block_tables=blocks,
                logit_rows=rows - start,
            )
        )
        if len(rows):
            losses.append(_losses(logits, chunk[rows + 1]))
    return np.concatenate(losses)


def _pieces(runner: Runner, n_tokens: int, first: int) -> Iterator[tuple[int, int]]:
    """Spans of a chunk that fit a batch: wide ones before ``first``, where no logits are wanted."""
    start = 0
    while start < n_tokens:
        if start < first:
            stop = min(first, start + runner.max_batch_tokens)
        else:
            stop = min(n_tokens, start + min(runner.max_logit_rows, runner.max_batch_tokens))
        yield start, stop
        start = stop


def _losses(
    logits: npt.NDArray[np.float32], targets: npt.NDArray[np.int32]
) -> npt.NDArray[np.float64]:
    peak = logits.max(axis=1)
    sums = np.exp(logits - peak[:, None]).sum(axis=1, dtype=np.float64)
    chosen = logits[np.arange(len(targets)), targets]
    losses: npt.NDArray[np.float64] = np.log(sums) + peak.astype(np.float64) - chosen
    return losses


def _adds_bos(tokenizer: Tokenizer) -> bool:
    ids = tokenizer.encode("a")
    return tokenizer.bos_id is not None and bool(ids) and ids[0] == tokenizer.bos_id


def _without_eos(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """llama-perplexity refuses models whose tokenizer adds an end token; here it is left out."""
    return ids[:-1] if ids and ids[-1] in tokenizer.eos_ids else ids
