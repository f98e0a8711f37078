"""Choosing tokens: the engine's side of the native sampler (csrc/sampling.h tells the rules)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tidemill import _native
from tidemill.engine.base import TokenLogprob
from tidemill.engine.params import MAX_LOGPROBS
from tidemill.records import dataclass

if TYPE_CHECKING:
    from tidemill.engine.sequence import Sequence
    from tidemill.engine.table import SequenceTable, Span

# The layout of tidemill::SamplingRow in csrc/sampling.h.
ROW_DTYPE = np.dtype(
    [
        ("seed", np.uint64), ("stream", np.uint32), ("n_prompt", np.int32),
        ("n_tokens", np.int32), ("top_k", np.int32), ("top_logprobs", np.int32),
        ("temperature", np.float32), ("top_p", np.float32), ("min_p", np.float32),
        ("typical_p", np.float32), ("repetition_penalty", np.float32),
        ("presence_penalty", np.float32), ("frequency_penalty", np.float32),
    ]
)  # fmt: skip

# What csrc/sampling.h's RowStatus means, for the request it happened to.
STATUS_MESSAGES = {
    1: "the model gave logits that are not finite numbers",
    2: "no token is left to choose: logit_bias, penalties and min_tokens forbid all of them",
}

MAX_THREADS = 8
"""More do not pay: a row's work is a few passes over its logits."""

# Scratch of the native sampler, bytes per vocabulary entry: seven arrays of 4 to 8 bytes and a
# flag per token (Sampler::Scratch in csrc/sampling.cpp).
_SCRATCH_PER_TOKEN = 33


def scratch_bytes(vocab_size: int, threads: int) -> int:
    """Memory that a sampler on ``threads`` threads holds at most, for memory plans."""
    return _SCRATCH_PER_TOKEN * vocab_size * min(threads, MAX_THREADS)


def fill_row(rows: npt.NDArray[np.void], slot: int, sequence: Sequence) -> None:
    """Write a sequence's parameters to ``rows[slot]``."""
    params = sequence.group.params
    top = -1 if not params.wants_logprobs else (params.logprobs or 0)
    rows[slot] = (
        sequence.group.seed, sequence.index, sequence.n_prompt, len(sequence.tokens),
        params.top_k, top, params.temperature, params.top_p, params.min_p, params.typical_p,
        params.repetition_penalty, params.presence_penalty, params.frequency_penalty,
    )  # fmt: skip


class Results:
    """One row per sampled or scored token, written by the native sampler.

    tokens, ranks: int32 (n,). logprobs: float32 (n,). status: uint8 (n,), 0 or a key of
    STATUS_MESSAGES. top_ids: int32 and top_logprobs: float32 (n, most top tokens).
    """

    def __init__(self, n: int, n_top: int) -> None:
        self.tokens = np.zeros(n, np.int32)
        self.logprobs = np.zeros(n, np.float32)
        self.ranks = np.zeros(n, np.int32)
        self.status = np.zeros(n, np.uint8)
        self.top_ids = np.zeros((n, n_top), np.int32)
        self.top_logprobs = np.zeros((n, n_top), np.float32)

    def native(self) -> _native.SamplingResults:
        return _native.SamplingResults(
            self.tokens, self.logprobs, self.ranks, self.status, self.top_ids, self.top_logprobs
        )

    def logprobs_of(self, i: int, n_top: int) -> tuple[TokenLogprob, ...]:
        """Row ``i``: the token itself, then the ``n_top`` most probable ones."""
        token = TokenLogprob(int(self.tokens[i]), float(self.logprobs[i]), int(self.ranks[i]))
        n_top = min(n_top, self.top_ids.shape[1])
        ids, values = self.top_ids[i, :n_top].tolist(), self.top_logprobs[i, :n_top].tolist()
        return (token, *map(TokenLogprob, ids, values, range(1, n_top + 1)))


@dataclass(slots=True)
class Choice:
    """The next token of ``sequence``; if it is negative there is none, and its absolute value a
    key of STATUS_MESSAGES. ``logprob``, and ``logprobs`` as in TokenEvent, where asked for."""

    sequence: Sequence
    token: int
    logprob: float = 0.0
    logprobs: tuple[TokenLogprob, ...] | None = None


class Sampler:
    """Samples the sequences of a SequenceTable, on up to ``threads`` threads where rows are many:
    what is chosen does not depend on how many."""

    def __init__(self, table: SequenceTable, vocab_size: int, threads: int = 1) -> None:
        self._n_top = min(MAX_LOGPROBS, vocab_size)
        self._results = Results(table.n_slots, self._n_top)
        self._native = _native.BatchSampler(
            vocab_size,
            table.bytes_of_rows,
            table.history,
            self._results.native(),
            min(threads, MAX_THREADS),
        )

    def sample(
        self, logits: npt.NDArray[np.float32], rows: Seq[int], sequences: Seq[Sequence]
    ) -> list[Choice]:
        """The next token of each of ``sequences`` by its row of ``logits``."""
        slots, biases, masks, scored = [], [], [], []
        for i, sequence in enumerate(sequences):
            slots.append(sequence.slot)
            group = sequence.group
            if group.biased and (bias := sequence.bias) is not None:
                biases.append((i, *bias))
            if sequence.constrained is not None:
                masks.append((i, sequence.constrained.mask()))
            if group.scored:
                scored.append(i)
        tokens = self._native.sample(logits, rows, slots, biases, masks)
        choices = list(map(Choice, sequences, tokens))
        for i in scored:
            choice = choices[i]
            if choice.token >= 0:
                choice.logprob = float(self._results.logprobs[i])
                n_top = choice.sequence.group.params.logprobs
                if n_top is not None:
                    choice.logprobs = self._results.logprobs_of(i, n_top)
        return choices

    def score_prompt(self, span: Span, logits: npt.NDArray[np.float32]) -> int:
        """Note the log-probabilities of the prompt tokens that follow those of ``span``, which has
        just been computed. 0, or a key of STATUS_MESSAGES."""
        sequence, group = span.sequence, span.sequence.group
        n_top = group.params.prompt_scores or 0
        start = sequence.computed - span.n
        if start == 0:
            group.prompt_logprobs.append(None)
        end = min(sequence.computed, sequence.n_prompt - 1)
        targets = np.array(sequence.tokens[start + 1 : end + 1], np.int32)
        results = Results(len(targets), min(n_top, self._n_top))
        self._native.score(logits, span.first_row, targets, n_top, results.native())
        if results.status.any():
            return int(results.status.max())
        group.prompt_logprobs.extend(results.logprobs_of(i, n_top) for i in range(len(targets)))
        return 0
