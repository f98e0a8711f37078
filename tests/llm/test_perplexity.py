"""Perplexity as llama-perplexity defines it, on made-up models (real ones: tests/e2e)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tidemill.backends.base import Batch, KVCacheSpec
from tidemill.llm.perplexity import perplexity

VOCAB = 20


class Characters:
    """Token = ord % VOCAB; with a BOS (id 0) if the model wants one."""

    vocab_size = VOCAB
    eos_ids = frozenset({1})

    def __init__(self, bos: int | None = None, eos: bool = False) -> None:
        self.bos_id = bos
        self._eos = eos

    def encode(self, text: str) -> list[int]:
        ids = [ord(c) % (VOCAB - 2) + 2 for c in text]
        return ([] if self.bos_id is None else [self.bos_id]) + ids + ([1] if self._eos else [])


class Recorder:
    """A runner whose logits depend on the token and its position only; keeps what it was fed."""

    def __init__(self, *, max_batch_tokens: int = 512, max_logit_rows: int = 64) -> None:
        self.kv = KVCacheSpec(64, 4)
        self.vocab_size = VOCAB
        self.max_batch_tokens = max_batch_tokens
        self.max_logit_rows = max_logit_rows
        self.fed: list[tuple[int, int]] = []
        self.table = np.random.RandomState(3).standard_normal((300, VOCAB, VOCAB))

    def logits(self, position: int, token: int) -> np.ndarray:
        return self.table[position, token].astype(np.float32)

    def forward(self, batch: Batch) -> np.ndarray:
        assert len(batch.tokens) <= self.max_batch_tokens
        assert len(batch.logit_rows) <= self.max_logit_rows
        assert batch.context_lens[0] == batch.positions[-1] + 1
        assert batch.block_tables.shape[1] * self.kv.block_size >= batch.context_lens[0]
        pairs = list(zip(batch.positions.tolist(), batch.tokens.tolist(), strict=True))
        self.fed += pairs
        rows = [self.logits(*pairs[row]) for row in batch.logit_rows]
        return np.array(rows, dtype=np.float32).reshape(len(rows), VOCAB)


TEXT = "the quick brown fox jumps over the lazy dog, again and again and again"


def by_hand(runner: Recorder, tokens: Sequence[int], chunks: Sequence[range], first: int) -> float:
    losses = []
    for chunk in chunks:
        for j in range(first, len(chunk) - 1):
            row = runner.logits(j, tokens[chunk[j]]).astype(np.float64)
            losses.append(math.log(np.exp(row).sum()) - row[tokens[chunk[j + 1]]])
    return math.exp(float(np.mean(losses)))


@pytest.mark.parametrize("context", [4, 7, 16, 33])
@pytest.mark.parametrize(("batch", "rows"), [(512, 64), (5, 3), (3, 512)])
def test_second_halves_of_chunks_are_scored(context: int, batch: int, rows: int) -> None:
    runner = Recorder(max_batch_tokens=batch, max_logit_rows=rows)
    tokens = Characters().encode(TEXT)
    n = len(tokens) // context
    result = perplexity(runner, Characters(), TEXT, context=context)  # type: ignore[arg-type]
    chunks = [range(i * context, (i + 1) * context) for i in range(n)]
    assert result.perplexity == pytest.approx(by_hand(runner, tokens, chunks, context // 2), 1e-6)
    assert (result.chunks, result.text_tokens) == (n, len(tokens))
    assert result.scored_tokens == n * (context - context // 2 - 1)
    assert runner.fed == [(j, tokens[chunk[j]]) for chunk in chunks for j in range(context)]


def test_each_chunk_starts_with_bos_where_the_tokenizer_adds_it() -> None:
    runner, tokenizer = Recorder(), Characters(bos=0)
    perplexity(runner, tokenizer, TEXT, context=16)  # type: ignore[arg-type]
    starts = [token for position, token in runner.fed if position == 0]
    assert starts == [0] * 4
    # The first chunk has its BOS anyway; of the others the first token is replaced, not moved.
    tokens = tokenizer.encode(TEXT)
    assert [t for p, t in runner.fed if p == 1] == [tokens[1], tokens[17], tokens[33], tokens[49]]


def test_an_end_token_that_the_tokenizer_adds_is_left_out() -> None:
    runner = Recorder()
    result = perplexity(runner, Characters(eos=True), TEXT, context=4)  # type: ignore[arg-type]
    assert result.text_tokens == len(TEXT)


def test_strided_windows_score_their_last_predictions() -> None:
    runner = Recorder()
    tokens = Characters().encode(TEXT)
    result = perplexity(runner, Characters(), TEXT, context=16, stride=5)  # type: ignore[arg-type]
    windows = [range(start, start + 16) for start in range(0, len(tokens) - 15, 5)]
    assert result.perplexity == pytest.approx(by_hand(runner, tokens, windows, 10), 1e-6)
    assert result.scored_tokens == 5 * len(windows)


def test_uncertainty_is_the_standard_error_of_the_mean() -> None:
    runner = Recorder()
    result = perplexity(runner, Characters(), TEXT, context=16)  # type: ignore[arg-type]
    tokens = Characters().encode(TEXT)
    losses = []
    for start in range(0, 64, 16):
        for j in range(8, 15):
            row = runner.logits(j, tokens[start + j]).astype(np.float64)
            losses.append(math.log(np.exp(row).sum()) - row[tokens[start + j + 1]])
    error = np.std(losses) / math.sqrt(len(losses) - 1)
    assert result.uncertainty == pytest.approx(error * result.perplexity, 1e-6)


def test_progress_and_chunk_limit() -> None:
    seen: list[tuple[int, int, float]] = []
    result = perplexity(
        Recorder(),  # type: ignore[arg-type]
        Characters(),  # type: ignore[arg-type]
        TEXT,
        context=16,
        max_chunks=3,
        on_chunk=lambda *progress: seen.append(progress),
    )
    assert [(done, of) for done, of, _ in seen] == [(1, 3), (2, 3), (3, 3)]
    assert seen[-1][2] == pytest.approx(result.perplexity)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 40}, "at least 80"),
        ({"context": 3}, "too short"),
        ({"context": 16, "stride": 16}, "stride"),
        ({"context": 16, "stride": 0}, "stride"),
        ({"context": 257}, "does not hold"),
    ],
)
def test_bad_arguments_say_what_is_wrong(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        perplexity(Recorder(), Characters(), TEXT, **options)  # type: ignore[arg-type]
