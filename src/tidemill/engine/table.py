"""Running sequences as rows of arrays, so that a step builds its batch by indexing."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from tidemill import _native
from tidemill.backends.base import NO_ROWS, Batch
from tidemill.engine.sampling import ROW_DTYPE, fill_row
from tidemill.engine.sequence import Sequence
from tidemill.records import dataclass


@dataclass(slots=True)
class Span:
    """``n`` new tokens of ``sequence`` in one step. ``first_row`` is the logit row of the first
    of them that has one, ``last_row`` that of the sequence's last known token, from which the
    next is sampled; -1 where there is none. ``drafts`` are guesses at the tokens after that (see
    speculation.py), part of ``n``, with the rows after ``last_row``; ``kind`` is their kind,
    ``wanted`` how many were asked for. ``hidden`` are the first of its rows and the end of
    them among the step's hidden states, if it is to be embedded; it has no logit rows then."""

    sequence: Sequence
    n: int
    first_row: int = -1
    last_row: int = -1
    drafts: Seq[int] = ()
    wanted: int = 0
    kind: int = 0
    hidden: tuple[int, int] = (0, 0)

    @property
    def may_draft(self) -> bool:
        """Whether it is a decode whose sequence may have more than one token yet."""
        sequence = self.sequence
        return (
            len(sequence.tokens) - sequence.computed == 1
            and sequence.group.prompt_done
            and sequence.room > 1
        )

    def drop_drafts(self) -> None:
        self.n -= len(self.drafts)
        self.drafts = ()


class Slots:
    """The rows ("slots") of up to ``n_slots`` running sequences: who has which."""

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self._free = list(range(n_slots - 1, -1, -1))

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def enter(self, sequence: Sequence) -> None:
        """Give ``sequence``, with the blocks that it has, a row."""
        sequence.slot = self._free.pop()

    def leave(self, sequence: Sequence) -> None:
        self._free.append(sequence.slot)
        sequence.slot = -1

    def add_block(self, sequence: Sequence, block: int) -> None:
        sequence.blocks.append(block)


class SequenceTable(Slots):
    """The slots with what a batch is made of.

    history: int32 (n_slots, max_context), the tokens. blocks: int32 (n_slots, blocks of a whole
    context), the block tables. rows: ROW_DTYPE (n_slots,), the sampling parameters.
    """

    def __init__(
        self, n_slots: int, max_context: int, block_size: int, max_batch_tokens: int
    ) -> None:
        super().__init__(n_slots)
        self.history = np.zeros((n_slots, max_context), np.int32)
        self.blocks = np.full((n_slots, -(-max_context // block_size)), -1, np.int32)
        self.rows = np.zeros(n_slots, ROW_DTYPE)
        self.context = 0
        """How many tokens those of the last batch attend to, added up."""
        # Of the batch, which is written in place: each step's begins where the last one's did.
        self._tokens = np.zeros(max_batch_tokens, np.int32)
        self._positions = np.zeros(max_batch_tokens, np.int32)
        self._query_starts = np.zeros(n_slots + 1, np.int32)
        self._context_lens = np.zeros(n_slots, np.int32)
        self._block_tables = np.zeros(self.blocks.size, np.int32)
        self._logit_rows = np.zeros(max_batch_tokens, np.int32)
        self._shape = (0, 0, 0, 0, 0)
        self._batch: Batch
        self._native = _native.TableRows(
            self.history, self.blocks, self.bytes_of_rows, block_size,
            self._tokens, self._positions, self._query_starts, self._context_lens,
            self._block_tables, self._logit_rows,
        )  # fmt: skip

    @property
    def bytes_of_rows(self) -> npt.NDArray[np.uint8]:
        """``rows`` as the native code wants them."""
        return self.rows.view(np.uint8).reshape(self.n_slots, -1)

    def enter(self, sequence: Sequence) -> None:
        super().enter(sequence)
        slot = sequence.slot
        self.history[slot, : len(sequence.tokens)] = sequence.tokens
        self.blocks[slot, : len(sequence.blocks)] = sequence.blocks
        fill_row(self.rows, slot, sequence)

    def leave(self, sequence: Sequence) -> None:
        self.blocks[sequence.slot, : len(sequence.blocks)] = -1
        super().leave(sequence)

    def add_block(self, sequence: Sequence, block: int) -> None:
        self.blocks[sequence.slot, len(sequence.blocks)] = block
        super().add_block(sequence, block)

    def append(self, sequence: Sequence, token: int) -> None:
        """Add a token to a running sequence."""
        self._native.append(sequence.slot, token)
        sequence.tokens.append(token)

    def batch(self, spans: Seq[Span]) -> Batch:
        """The forward step over ``spans``, good until the next; sets their rows in its results."""
        parts: list[tuple[int, int, int, int]] = []
        pooled: list[tuple[int, int]] = []  # (which span, how many of its last tokens)
        n_rows = 0
        for span in spans:
            sequence, n, drafts = span.sequence, span.n, span.drafts
            length = len(sequence.tokens)
            if drafts:  # behind the known tokens, where only this step reads them
                self.history[sequence.slot, length : length + len(drafts)] = drafts
            complete = sequence.computed + n - len(drafts) == length
            scored = sequence.wants_prompt_logprobs
            rows = n if scored else 1 + len(drafts) if complete else 0
            if sequence.pool is not None:
                pooled.append((len(parts), sequence.pool.wanted(n, complete=complete)))
                rows, complete = 0, False
            span.first_row = n_rows if scored else -1
            n_rows += rows
            span.last_row = n_rows - 1 - len(drafts) if complete else -1
            parts.append((sequence.slot, sequence.computed, n, rows))
        n_tokens, n_blocks, self.context = self._native.fill(parts)
        n_spans = len(parts)
        hidden_rows = self._hidden_rows(spans, pooled) if pooled else NO_ROWS
        shape = (n_tokens, n_spans, n_blocks, n_rows, len(hidden_rows))
        # From one decode step to the next it is mostly the same.
        if shape != self._shape or pooled:
            self._shape = shape
            self._batch = Batch(
                self._tokens[:n_tokens],
                self._positions[:n_tokens],
                self._query_starts[: n_spans + 1],
                self._context_lens[:n_spans],
                self._block_tables[: n_spans * n_blocks].reshape(n_spans, n_blocks),
                self._logit_rows[:n_rows],
                hidden_rows,
            )
        return self._batch

    def _hidden_rows(
        self, spans: Seq[Span], pooled: list[tuple[int, int]]
    ) -> npt.NDArray[np.int32]:
        """The rows of the batch that are pooled: the last of each of these spans."""
        rows: list[int] = []
        for i, n in pooled:
            end = int(self._query_starts[i + 1])
            spans[i].hidden = (len(rows), len(rows) + n)
            rows += range(end - n, end)
        return np.array(rows, np.int32)
