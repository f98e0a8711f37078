"""Drafts from a second, smaller model with the same vocabulary, over a KV memory of its own."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from tidemill.backends.base import Batch, Runner
from tidemill.engine.sequence import Sequence

_CHUNK = 256  # most tokens of a prompt that it reads in one step, so that nobody waits for long


class _State:
    """What of a sequence lies in ``blocks``: its first ``confirmed`` tokens, then ``guesses``."""

    __slots__ = ("blocks", "confirmed", "guesses")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.confirmed = 0
        self.guesses: list[int] = []

    def settle(self, tokens: Seq[int]) -> int:
        """How many of ``tokens``, which have grown, need not be computed again; at least the
        last one must be, for its logits."""
        n = self.confirmed
        for guess in self.guesses:
            if n >= len(tokens) or tokens[n] != guess:
                break
            n += 1
        self.confirmed, self.guesses = min(n, len(tokens) - 1), []
        return self.confirmed


class DraftModel:
    """Proposes the greedy continuation by ``runner``.

    ``vocab_size``: token ids that the target model knows; only those are proposed.
    ``max_context``: most tokens of a sequence that the draft model can read. Sequences that are
    longer, or for which its KV memory has no room beside the others of the step, get no drafts.
    A new sequence is read in chunks, one a step, before there are any.
    """

    def __init__(self, runner: Runner, *, vocab_size: int, max_context: int) -> None:
        self._runner = runner
        self._vocab_size = min(vocab_size, runner.vocab_size)
        self._max_context = min(max_context, runner.kv.n_blocks * runner.kv.block_size)
        self._free = list(range(runner.kv.n_blocks - 1, -1, -1))
        self._states: dict[Sequence, _State] = {}

    def kinds(self, sequences: Seq[Sequence]) -> list[int]:
        return [int(len(s.tokens) < self._max_context) for s in sequences]

    def first_rate(self, kind: int) -> float:
        return 0.6

    def propose(self, sequences: Seq[Sequence], lengths: Seq[int]) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in sequences]
        active: list[tuple[int, Sequence, int]] = []  # index, sequence, how many
        chunks: list[tuple[Sequence, list[int], bool]] = []
        budget = self._runner.max_batch_tokens
        rows = self._runner.max_logit_rows
        for i, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
            n = min(length, self._max_context - len(sequence.tokens))
            if n < 1 or not rows or not budget or not self._hold(sequence, n, sequences):
                continue
            start = self._states[sequence].settle(sequence.tokens)
            pending = sequence.tokens[start : start + min(_CHUNK, budget)].tolist()
            budget -= len(pending)
            complete = start + len(pending) == len(sequence.tokens)
            chunks.append((sequence, pending, complete))
            if complete:
                rows -= 1
                active.append((i, sequence, n))
        depth = 0
        while chunks:
            tokens = self._forward(chunks)
            depth += 1
            chunks = []
            going = []
            for (i, sequence, n), token in zip(active, tokens, strict=True):
                drafts[i].append(token)
                if depth < n:
                    chunks.append((sequence, [token], True))
                    going.append((i, sequence, n))
            active = going
        return drafts

    def forget(self, sequence: Sequence) -> None:
        state = self._states.pop(sequence, None)
        if state is not None:
            self._free.extend(reversed(state.blocks))

    def _hold(self, sequence: Sequence, n: int, company: Seq[Sequence]) -> bool:
        """Give ``sequence`` blocks for its tokens and ``n`` guesses, if need be those of sequences
        that are not in the step; False if there are not enough."""
        state = self._states.pop(sequence, None) or _State()
        self._states[sequence] = state  # the last used one last
        missing = -(-(len(sequence.tokens) + n) // self._runner.kv.block_size) - len(state.blocks)
        if missing > len(self._free):
            beside = set(company)
            for other in [s for s in self._states if s not in beside]:
                self.forget(other)
                if missing <= len(self._free):
                    break
            else:
                return False
        state.blocks += [self._free.pop() for _ in range(missing)]
        return True

    def _forward(self, chunks: Seq[tuple[Sequence, list[int], bool]]) -> list[int]:
        """Compute the new tokens of each sequence; the likeliest next token of the complete."""
        size = self._runner.kv.block_size
        states = [self._states[sequence] for sequence, _, _ in chunks]
        starts = [state.confirmed + len(state.guesses) for state in states]
        counts = [len(pending) for _, pending, _ in chunks]
        ends = np.cumsum(counts, dtype=np.int32)
        context = np.add(starts, counts, dtype=np.int32)
        tables = np.full((len(chunks), -(-int(context.max()) // size)), -1, np.int32)
        for i, state in enumerate(states):
            used = state.blocks[: tables.shape[1]]
            tables[i, : len(used)] = used
        complete = [whole for _, _, whole in chunks]
        positions = [
            np.arange(s, s + n, dtype=np.int32) for s, n in zip(starts, counts, strict=True)
        ]
        logits: npt.NDArray[np.float32] = self._runner.forward(
            Batch(
                tokens=np.concatenate([np.array(p, np.int32) for _, p, _ in chunks]),
                positions=np.concatenate(positions),
                query_starts=np.concatenate([np.zeros(1, np.int32), ends]),
                context_lens=context,
                block_tables=tables,
                logit_rows=(ends - 1)[complete],
            )
        )
        for (sequence, pending, _), state in zip(chunks, states, strict=True):
            if state.confirmed < len(sequence.tokens):
                state.confirmed += len(pending)
            else:
                state.guesses += pending
        return [int(token) for token in logits[:, : self._vocab_size].argmax(axis=1)]
