from __future__ import annotations

import dataclasses
from collections.abc import MutableMapping
from typing import Any

import numpy as np
import pytest

from support.batches import Chunk, make_batch
from support.tiny_models import CASES, TinyCase, tokens_of, write_folder
from tidemill.backends.base import KVCacheSpec
from tidemill.backends.reference import ReferenceRunner
from tidemill.models import load_model
from tidemill.program.liveness import BufferPlan, assign_buffers
from tidemill.program.ops import Program, Reshape, Slice
from tidemill.program.passes import optimise
from tidemill.weights import open_checkpoint


class PlacedValues(MutableMapping[int, Any]):
    """Keeps values where a plan puts them, so that a value that is overwritten while it is still
    needed gives wrong results. Memory starts as NaN, as unlike any value as can be."""

    def __init__(self, program: Program, plan: BufferPlan, n_rows: int) -> None:
        self.program, self.plan, self.n_rows = program, plan, n_rows
        self.memory = [
            np.full(n_rows * b.width, np.nan, np.float32)
            if b.dtype == "f32"
            else np.full(n_rows * b.width, 1 << 30, np.int32)
            for b in plan.buffers
        ]
        self.lengths: dict[int, int] = {}

    def _view(self, key: int, n: int) -> np.ndarray:
        place, width = self.plan.places[key], self.program.values[key].width
        rows = np.lib.stride_tricks.sliding_window_view(
            self.memory[place.buffer], width, writeable=True
        )
        return rows[place.offset :: place.stride][:n]

    def __setitem__(self, key: int, value: np.ndarray) -> None:
        self.lengths[key] = len(value)
        self._view(key, len(value))[:] = value.reshape(len(value), -1)

    def __getitem__(self, key: int) -> np.ndarray:
        n = self.lengths[key]
        return self._view(key, n).copy().reshape(n, *self.program.values[key].shape)

    def __delitem__(self, key: int) -> None:
        raise NotImplementedError

    def __iter__(self):
        return iter(self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)


class PlacedRunner(ReferenceRunner):
    """The reference, with its values in planned buffers. Views are not written again."""

    def results(self, batch, plan: BufferPlan) -> tuple[np.ndarray, np.ndarray]:
        values = PlacedValues(self._program, plan, len(batch.tokens))
        for op in self._program.ops:
            if isinstance(op, (Slice, Reshape)):
                values.lengths[op.out] = values.lengths[op.x]
            else:
                self._run(op, values, batch, self._cache)
        return values[self._program.logits], values[self._program.hidden]


@pytest.mark.parametrize("optimised", [False, True], ids=["recorded", "optimised"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_running_in_planned_buffers_gives_the_same(case: TinyCase, optimised: bool, tmp_path):
    model = load_model(open_checkpoint(write_folder(case, tmp_path)))
    program = optimise(model.program) if optimised else model.program
    plan = assign_buffers(program)
    settings = {
        "kv": KVCacheSpec(16, 4, "f32"), "max_batch_tokens": 64, "max_logit_rows": 64,
    }  # fmt: skip
    tokens = tokens_of(case)[:20].tolist()
    batch = make_batch([Chunk(tokens, 0, range(5))], logit_rows=[3, 19])
    trace = ReferenceRunner(program, model.weights, **settings).trace(batch)
    logits, hidden = PlacedRunner(program, model.weights, **settings).results(batch, plan)
    np.testing.assert_array_equal(logits, trace[program.logits])
    np.testing.assert_array_equal(hidden, trace[program.hidden])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_memory_does_not_grow_with_layers(case: TinyCase, tmp_path):
    model = load_model(open_checkpoint(write_folder(case, tmp_path)))
    program = optimise(model.program)
    plan = assign_buffers(program)
    assert len(plan.buffers) <= 10
    nbytes = plan.nbytes(max_tokens=10, max_logit_rows=2)
    values = sum(4 * v.width * (10 if v.rows == "tokens" else 2) for v in program.values)
    assert nbytes < values / 3
    assert nbytes == sum(4 * b.width * (10 if b.rows == "tokens" else 2) for b in plan.buffers)


def test_slices_are_views_into_the_merged_row(tmp_path):
    model = load_model(open_checkpoint(write_folder(CASES[0], tmp_path)))
    program = optimise(model.program)
    plan = assign_buffers(program)
    merged = next(
        op for op in program.ops if getattr(op, "weights", ())[:1] == ("blk.0.attn_q.weight",)
    )
    pieces = [op for op in program.ops if type(op).__name__ == "Slice" and op.x == merged.out]
    assert [plan.places[op.out].offset for op in pieces] == [0, 64, 96]
    for op in pieces:
        assert plan.places[op.out].buffer == plan.places[merged.out].buffer
        assert plan.places[op.out].stride == 128


def test_unwritten_values_are_refused(tmp_path):
    model = load_model(open_checkpoint(write_folder(CASES[0], tmp_path)))
    program = dataclasses.replace(model.program, ops=model.program.ops[1:])
    with pytest.raises((ValueError, KeyError)):
        assign_buffers(program)
