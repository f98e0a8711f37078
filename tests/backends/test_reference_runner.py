"""The reference runner as a runner: batches, paging, memory, refusals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from support.batches import Chunk, make_batch, run_tokens, scattered_blocks
from support.tiny_models import CASE, tokens_of, write_folder
from tidemill.backends import reference
from tidemill.backends.base import Batch, KVCacheSpec
from tidemill.models import Model, load_model
from tidemill.weights import open_checkpoint

KV = KVCacheSpec(n_blocks=24, block_size=4, dtype="f32")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    def load(name: str) -> Model:
        folder = tmp_path_factory.mktemp(name)
        return load_model(open_checkpoint(write_folder(CASE[name], folder)))

    return {name: load(name) for name in ("llama", "gemma3", "qwen3moe")}


@pytest.fixture
def runner(models):
    return reference.compile(models["llama"], kv=KV)


TOKENS = tokens_of(CASE["llama"]).tolist()


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3moe"])
def test_a_mixed_batch_gives_what_each_sequence_gives_alone(models, name):
    model = models[name]
    sequences = [TOKENS[:13], TOKENS[13:30], TOKENS[5:25], TOKENS[30:33]]
    alone = [
        run_tokens(reference.compile(model, kv=KV), tokens, [len(tokens)]) for tokens in sequences
    ]
    runner = reference.compile(model, kv=KV)
    pool = iter(np.random.RandomState(3).permutation(KV.n_blocks).tolist())
    blocks = [[next(pool) for _ in range(-(-len(t) // 4))] for t in sequences]
    # Step 1 prefills two; step 2 goes on with one, decodes the other and starts two more.
    runner.forward(
        make_batch([Chunk(sequences[0][:12], 0, blocks[0]), Chunk(sequences[1][:5], 0, blocks[1])])
    )
    chunks = [
        Chunk(sequences[0][12:], 12, blocks[0]),
        Chunk(sequences[1][5:], 5, blocks[1]),
        Chunk(sequences[2], 0, blocks[2]),
        Chunk(sequences[3], 0, blocks[3]),
    ]
    found = runner.forward(make_batch(chunks))
    wanted = np.concatenate([alone[0][12:], alone[1][5:], alone[2], alone[3]])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_logit_rows_come_in_the_order_asked(runner):
    batch = make_batch([Chunk(TOKENS[:9], 0, range(3))])
    every = runner.forward(batch)
    some = runner.forward(dataclasses.replace(batch, logit_rows=np.array([8, 0, 3], np.int32)))
    np.testing.assert_allclose(some, every[[8, 0, 3]], rtol=1e-5, atol=1e-6)
    none = runner.forward(dataclasses.replace(batch, logit_rows=np.zeros(0, np.int32)))
    assert none.shape == (0, runner.vocab_size)


def test_copied_blocks_serve_another_sequence(models, runner):
    blocks = [7, 2, 11]
    runner.forward(make_batch([Chunk(TOKENS[:12], 0, blocks)]))
    runner.copy_blocks([(7, 0), (2, 1), (11, 20)])
    runner.forward(make_batch([Chunk(TOKENS[20:32], 0, blocks)]))  # overwrites the originals
    found = runner.forward(make_batch([Chunk(TOKENS[12:14], 12, [0, 1, 20, 5])]))
    fresh = run_tokens(reference.compile(models["llama"], kv=KV), TOKENS[:14], [14])
    np.testing.assert_allclose(found, fresh[12:], rtol=1e-4, atol=1e-5)


def test_copies_run_in_order(runner):
    runner.forward(make_batch([Chunk(TOKENS[:4], 0, [3])]))
    runner.copy_blocks([(3, 4), (4, 5)])
    keys, _ = runner._cache.gather(0, np.array([5], np.int32), 4)
    assert keys.any()


@pytest.mark.parametrize("pair", [(-1, 0), (0, 24), (24, 0)])
def test_copies_outside_the_memory_are_refused(runner, pair):
    with pytest.raises(ValueError, match=r"outside 0\.\.23"):
        runner.copy_blocks([(0, 1), pair])


@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
def test_narrow_kv_is_close(models, dtype):
    wide = run_tokens(reference.compile(models["gemma3"], kv=KV), TOKENS, [20, 20])
    kv = dataclasses.replace(KV, dtype=dtype)
    narrow = run_tokens(reference.compile(models["gemma3"], kv=kv), TOKENS, [20, 20])
    error = np.abs(narrow - wide).max() / np.abs(wide).max()
    assert 0 < error < {"f16": 5e-3, "q8_0": 0.1}[dtype]


def test_a_closed_runner_runs_no_more(runner):
    runner.close()
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.forward(make_batch([Chunk(TOKENS[:2], 0, [0])]))
    with pytest.raises(RuntimeError, match="closed"):
        runner.copy_blocks([(0, 1)])


GOOD = make_batch([Chunk(TOKENS[:5], 3, [4, 9]), Chunk(TOKENS[:2], 0, [1])])


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": GOOD.tokens.astype(np.int64)}, r"batch\.tokens must be an int32 array of 1"),
        (
            {"block_tables": GOOD.block_tables[0]},
            r"batch\.block_tables must be an int32 array of 2",
        ),
        ({"tokens": i32(3, 3, 3, 3, 3, 96, 3)}, r"batch\.tokens has 96, outside 0\.\.95"),
        ({"tokens": i32(3, 3, 3, -1, 3, 3, 3)}, r"batch\.tokens has -1"),
        ({"tokens": i32(), "positions": i32()}, "a batch of 0 tokens"),
        ({"positions": GOOD.positions[:-1]}, "6 entries for 7 tokens"),
        ({"positions": i32(3, 4, 5, 6, 8, 0, 1)}, "sequence 0: its 5 positions"),
        ({"context_lens": i32(8, 1)}, "sequence 1: its 2 positions must be the last of its 1"),
        ({"query_starts": i32(0, 5, 6)}, r"batch\.query_starts"),
        ({"query_starts": i32(0, 7, 7)}, r"batch\.query_starts"),
        ({"query_starts": i32(0, 7)}, r"batch\.query_starts"),
        ({"logit_rows": i32(7)}, r"batch\.logit_rows has 7, outside 0\.\.6"),
        ({"logit_rows": np.zeros(65, np.int32)}, "65 logit rows"),
        ({"block_tables": GOOD.block_tables[:, :1]}, "need 2 KV blocks, the table has 1"),
        ({"block_tables": GOOD.block_tables[:1]}, "has 1 rows for 2 sequences"),
        ({"block_tables": np.array([[4, -1], [1, -1]], np.int32)}, r"block_tables\[0\] has -1"),
        ({"block_tables": np.array([[4, 9], [24, -1]], np.int32)}, r"block_tables\[1\] has 24"),
    ],
)
def test_bad_batches_are_refused(runner, changes: dict, message: str):
    batch: Batch = dataclasses.replace(GOOD, **changes)
    with pytest.raises(ValueError, match=message):
        runner.forward(batch)


def test_the_good_batch_is_good(runner):
    assert runner.forward(GOOD).shape == (7, 96)


def test_batches_over_the_limits_are_refused(models):
    runner = reference.compile(models["llama"], kv=KV, max_batch_tokens=6, max_logit_rows=7)
    with pytest.raises(ValueError, match=r"a batch of 7 tokens; this runner takes 1\.\.6"):
        runner.forward(GOOD)


@pytest.mark.parametrize(
    "settings",
    [{"max_batch_tokens": 0}, {"max_logit_rows": 0}, {"kv": KVCacheSpec(0, 4, "f32")},
     {"kv": KVCacheSpec(4, 0, "f32")}],
)  # fmt: skip
def test_empty_runners_are_refused(models, settings):
    with pytest.raises(ValueError, match="at least 1"):
        reference.compile(models["llama"], **{"kv": KV, **settings})


def test_unknown_kinds_of_kv_are_refused(models):
    kv = dataclasses.replace(KV, dtype="f8")
    with pytest.raises(ValueError, match="one of f32, f16, q8_0, not as 'f8'"):
        reference.compile(models["llama"], kv=kv)


def test_the_plan_is_what_is_allocated(models, runner):
    plan = reference.plan(models["llama"], kv=KV, max_batch_tokens=8, max_logit_rows=8)
    run_tokens(runner, TOKENS[:8], [8])
    assert plan.weights == sum(array.nbytes for array in runner._dense.values())
    assert plan.kv == sum(pages.nbytes for pages in runner._cache._layers)
    blocks = scattered_blocks(8, runner)
    trace = runner.trace(make_batch([Chunk(TOKENS[:8], 0, blocks)]))
    assert plan.scratch == sum(array.size * 4 for array in trace.values())
    assert plan.total == plan.weights + plan.kv + plan.scratch
