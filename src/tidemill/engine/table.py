"""Running sequences as rows of arrays, so that a step builds its batch by indexing."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from dataclasses import field

import numpy as np

from tidemill.backends.base import Batch
from tidemill.engine.sampling import ROW_DTYPE, fill_row
from tidemill.engine.sequence import Sequence
from tidemill.records import dataclass


@dataclass(slots=True)
class Span:
    """``n`` new tokens of ``sequence`` in one step. ``first_row`` is the logit row of the first
    of them that has one, ``last_row`` that of the sequence's last known token, from which the
    next is sampled; -1 where there is none. ``drafts`` are guesses at the tokens after that (see
    speculation.py), part of ``n``, with the rows after ``last_row``; ``kind`` is their kind,
    ``wanted`` how many were asked for."""

    sequence: Sequence
    n: int
    first_row: int = -1
    last_row: int = -1
    drafts: list[int] = field(default_factory=list)
    wanted: int = 0
    kind: int = 0

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
        self.drafts = []


class SequenceTable:
    """The rows ("slots") of up to ``n_slots`` running sequences.

    history: int32 (n_slots, max_context), the tokens. blocks: int32 (n_slots, blocks of a whole
    context), the block tables. rows: ROW_DTYPE (n_slots,), the sampling parameters.
    """

    def __init__(self, n_slots: int, max_context: int, block_size: int) -> None:
        self.n_slots = n_slots
        self.block_size = block_size
        self.history = np.zeros((n_slots, max_context), np.int32)
        self.blocks = np.full((n_slots, -(-max_context // block_size)), -1, np.int32)
        self.rows = np.zeros(n_slots, ROW_DTYPE)
        self._free = list(range(n_slots - 1, -1, -1))

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def enter(self, sequence: Sequence) -> None:
        """Give ``sequence``, with the blocks that it has, a row."""
        slot = self._free.pop()
        sequence.slot = slot
        self.history[slot, : len(sequence.tokens)] = sequence.tokens
        self.blocks[slot, : len(sequence.blocks)] = sequence.blocks
        fill_row(self.rows, slot, sequence)

    def leave(self, sequence: Sequence) -> None:
        self.blocks[sequence.slot, : len(sequence.blocks)] = -1
        self._free.append(sequence.slot)
        sequence.slot = -1

    def add_block(self, sequence: Sequence, block: int) -> None:
        self.blocks[sequence.slot, len(sequence.blocks)] = block
        sequence.blocks.append(block)

    def append(self, sequences: Seq[Sequence], tokens: Seq[int]) -> None:
        """Add one token to each of ``sequences``."""
        slots = np.array([s.slot for s in sequences], np.intp)
        lengths = np.array([len(s.tokens) for s in sequences], np.intp)
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.tokens.append(token)
        self.history[slots, lengths] = tokens
        self.rows["n_tokens"][slots] = lengths + 1

    def batch(self, spans: list[Span]) -> Batch:
        """The forward step over ``spans``; sets their logit rows."""
        for span in spans:
            if span.drafts:  # behind the known tokens, where only this step reads them
                length = len(span.sequence.tokens)
                self.history[span.sequence.slot, length : length + len(span.drafts)] = span.drafts
        slots = np.array([span.sequence.slot for span in spans], np.intp)
        starts = np.array([span.sequence.computed for span in spans], np.int32)
        counts = np.array([span.n for span in spans], np.int32)
        query_starts = np.zeros(len(spans) + 1, np.int32)
        np.cumsum(counts, out=query_starts[1:])
        n = int(query_starts[-1])
        if n == len(spans):  # decodes only
            positions = starts
            tokens = self.history[slots, positions]
        else:
            positions = np.arange(n, dtype=np.int32)
            positions += np.repeat(starts - query_starts[:-1], counts)
            tokens = self.history[np.repeat(slots, counts), positions]
        context_lens = starts + counts
        n_blocks = -(-int(context_lens.max()) // self.block_size)

        rows = array("i")
        end = 0
        for span in spans:
            start, end = end, end + span.n
            sequence = span.sequence
            n_drafts = len(span.drafts)
            complete = sequence.computed + span.n - n_drafts == len(sequence.tokens)
            span.first_row = -1
            if sequence.wants_prompt_logprobs:
                span.first_row = len(rows)
                rows.extend(range(start, end))
            elif complete:
                rows.extend(range(end - 1 - n_drafts, end))
            span.last_row = len(rows) - 1 - n_drafts if complete else -1
        return Batch(
            tokens=tokens,
            positions=positions,
            query_starts=query_starts,
            context_lens=context_lens,
            block_tables=self.blocks[slots, :n_blocks],
            logit_rows=np.array(rows, np.int32),
        )
