"""The native rows of the sequence table: batches against plain NumPy, and the edges."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tidemill import _native
from tidemill.engine.sampling import ROW_DTYPE

N_SLOTS, CONTEXT, BLOCK, MOST = 5, 30, 4, 40


class Table:
    """Native rows over arrays of random tokens and blocks."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.history = rng.integers(0, 99, (N_SLOTS, CONTEXT)).astype(np.int32)
        self.blocks = rng.integers(0, 99, (N_SLOTS, -(-CONTEXT // BLOCK))).astype(np.int32)
        self.rows = np.zeros(N_SLOTS, ROW_DTYPE)
        sizes = (MOST, MOST, N_SLOTS + 1, N_SLOTS, self.blocks.size, MOST)
        self.batch = [np.full(size, -9, np.int32) for size in sizes]
        self.native = self.over(*self.batch)

    def over(self, *batch: npt.NDArray[np.int32], block_size: int = BLOCK) -> _native.TableRows:
        rows = self.rows.view(np.uint8).reshape(N_SLOTS, -1)
        return _native.TableRows(self.history, self.blocks, rows, block_size, *batch)


@pytest.mark.parametrize("seed", range(30))
def test_a_batch_is_what_its_spans_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = Table(seed)
    spans, room = [], MOST
    for slot in rng.permutation(N_SLOTS)[: rng.integers(1, N_SLOTS + 1)].tolist():
        n = int(rng.integers(1, min(room - N_SLOTS, 12)))
        start = int(rng.integers(0, CONTEXT - n + 1))
        spans.append((slot, start, n, int(rng.integers(0, n + 1))))
        room -= n
    n_tokens, n_blocks, context = table.native.fill(spans)

    positions = [np.arange(start, start + n) for _, start, n, _ in spans]
    ends = np.cumsum([n for _, _, n, _ in spans])
    width = -(-max(start + n for _, start, n, _ in spans) // BLOCK)
    rows = [np.arange(end - k, end) for end, (*_, k) in zip(ends, spans, strict=True)]
    expected = [
        np.concatenate([table.history[s[0], p] for s, p in zip(spans, positions, strict=True)]),
        np.concatenate(positions),
        np.concatenate([[0], ends]),
        np.array([start + n for _, start, n, _ in spans]),
        np.concatenate([table.blocks[slot, :width] for slot, *_ in spans]),
        np.concatenate(rows),
    ]
    assert (n_tokens, n_blocks) == (ends[-1], width)
    assert context == sum(int((p + 1).sum()) for p in positions)
    for got, wanted in zip(table.batch, expected, strict=True):
        assert got[: len(wanted)].tolist() == wanted.tolist()
        assert (got[len(wanted) :] == -9).all()


def test_a_token_is_appended_to_its_sequence() -> None:
    table = Table()
    before = table.history.copy()
    table.rows["n_tokens"] = (3, 7, 0, CONTEXT - 1, 5)
    for slot, at in ((1, 7), (1, 8), (3, CONTEXT - 1)):
        table.native.append(slot, 1000 + at)
        before[slot, at] = 1000 + at
    assert (table.history == before).all()
    assert table.rows["n_tokens"].tolist() == [3, 9, 0, CONTEXT, 5]
    with pytest.raises(ValueError, match="no room"):
        table.native.append(3, 1)
    for slot in (-1, N_SLOTS):
        with pytest.raises(IndexError):
            table.native.append(slot, 1)
    assert (table.history == before).all()


@pytest.mark.parametrize(
    "span",
    [(-1, 0, 1, 0), (N_SLOTS, 0, 1, 0), (0, -1, 1, 0), (0, 0, 0, 0), (0, CONTEXT, 1, 0),
     (0, 2**31 - 1, 2**31 - 1, 0), (0, 0, 1, 2), (0, 0, 1, -1)],
)  # fmt: skip
def test_spans_outside_the_table_are_refused(span: tuple[int, int, int, int]) -> None:
    table = Table()
    with pytest.raises(IndexError):
        table.native.fill([(1, 0, 2, 1), span])
    assert all((array == -9).all() for array in table.batch)


def test_a_step_that_is_too_large_is_refused() -> None:
    native = Table().native
    with pytest.raises(ValueError, match="more than the table"):
        native.fill([(0, 0, 20, 0), (1, 0, 21, 0)])
    with pytest.raises(ValueError, match="more than the table"):
        native.fill([(0, 0, 1, 1)] * (N_SLOTS + 1))


def test_arrays_that_do_not_fit_are_refused() -> None:
    table = Table()
    for i in range(len(table.batch)):
        batch = [a[1:] if i == j else a for j, a in enumerate(table.batch)]
        with pytest.raises(ValueError, match="do not fit"):
            table.over(*batch)
    for block_size in (0, 3):
        with pytest.raises(ValueError, match="do not fit"):
            table.over(*table.batch, block_size=block_size)
    table.history = table.history[1:]
    with pytest.raises(ValueError, match="do not fit"):
        table.over(*table.batch)
