"""The CPU runner as a good citizen: bad batches, planned memory, closing, forking, threads."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import mmap
import os
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.batches import Chunk, make_batch
from support.tiny_models import CASE, CASES, TinyCase, write_folder, write_gguf
from support.waiting import until
from tidemill.backends import cpu
from tidemill.backends.base import Batch, KVCacheSpec, KVDtype
from tidemill.backends.cpu.runner import CpuRunner
from tidemill.models import Model, load_model
from tidemill.weights import open_checkpoint
from tidemill.weights.base import CheckpointError, TensorType, WeightTensor
from tidemill.weights.mapped import release_files

# The package's name `build` is the function in it.
build_module = importlib.import_module("tidemill.backends.cpu.build")

GOOD = make_batch([Chunk([5, 6, 7], 0, [3]), Chunk([8], 9, [0, 1])], [2, 3], [0, 3])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = write_folder(CASE["llama"], tmp_path_factory.mktemp("llama"))
    return load_model(open_checkpoint(folder))


@pytest.fixture(scope="module")
def runner(model: Model) -> CpuRunner:
    return cpu.compile(
        model, kv=KVCacheSpec(4, 8, "f16"), max_batch_tokens=8, max_logit_rows=3, threads=2
    )


def i32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no tokens": ({"tokens": i32(), "positions": i32()}, "batch of 0 tokens"),
    "too many tokens": ({"tokens": i32(*[1] * 9), "positions": i32(*range(9))}, "9 tokens"),
    "token past the vocabulary": ({"tokens": i32(5, 6, 96, 8)}, "tokens has 96"),
    "negative token": ({"tokens": i32(5, -1, 7, 8)}, "tokens has -1"),
    "wide tokens": ({"tokens": np.array([5, 6, 7, 8])}, "batch.tokens must be"),
    "float tokens": ({"tokens": np.zeros(4, np.float32)}, "batch.tokens must be"),
    "tokens in a list": ({"tokens": [5, 6, 7, 8]}, "batch.tokens must be"),
    "no array at all": ({"tokens": None}, "batch.tokens must be"),
    "strided tokens": ({"tokens": np.zeros(8, np.int32)[::2]}, "batch.tokens must be"),
    "square tokens": ({"tokens": np.zeros((2, 2), np.int32)}, "batch.tokens must be"),
    "positions too few": ({"positions": i32(0, 1, 2)}, "positions has 3"),
    "positions with a hole": ({"positions": i32(0, 2, 3, 9)}, "positions"),
    "negative position": ({"positions": i32(-1, 0, 1, 9)}, "positions"),
    "starts of another batch": ({"query_starts": i32(0, 3, 5)}, "query_starts"),
    "starts that fall": ({"query_starts": i32(0, 5, 4)}, "query_starts"),
    "an empty sequence": (
        {
            "query_starts": i32(0, 3, 3, 4),
            "context_lens": i32(3, 2, 10),
            "block_tables": np.zeros((3, 2), np.int32),
        },
        "query_starts",
    ),
    "starts not from zero": ({"query_starts": i32(1, 3, 4)}, "query_starts"),
    "one start too many": ({"query_starts": i32(0, 3, 4, 4)}, "query_starts"),
    "no sequences": (
        {
            "query_starts": i32(),
            "context_lens": i32(),
            "block_tables": np.zeros((0, 2), np.int32),
        },
        "query_starts",
    ),
    "context shorter than its tokens": ({"context_lens": i32(2, 10)}, "context of 2"),
    "negative context": ({"context_lens": i32(-5, 10)}, "context of -5"),
    "context past its blocks": (
        {"context_lens": i32(3, 17), "positions": i32(0, 1, 2, 16)},
        "need 3 KV blocks",
    ),
    "endless context": (
        {"context_lens": i32(3, 2**31 - 1), "positions": i32(0, 1, 2, 2**31 - 2)},
        "KV blocks",
    ),
    "block past the cache": ({"block_tables": i32([3, -1], [0, 4])}, "block_tables has 4"),
    "missing block": ({"block_tables": i32([3, -1], [0, -1])}, "block_tables has -1"),
    "table of another batch": ({"block_tables": i32([3, -1])}, "block_tables"),
    "table without columns": ({"block_tables": np.zeros((2, 0), np.int32)}, "KV blocks"),
    "too many logit rows": ({"logit_rows": i32(0, 1, 2, 3)}, "asks for 4"),
    "logit row past the batch": ({"logit_rows": i32(4)}, "logit_rows has 4"),
    "negative logit row": ({"logit_rows": i32(-1)}, "logit_rows has -1"),
    "too many rows together": ({"hidden_rows": i32(*[1] * 7)}, "asks for 7 rows beside 2"),
    "hidden row past the batch": ({"hidden_rows": i32(4)}, "hidden_rows has 4"),
    "negative hidden row": ({"hidden_rows": i32(-1)}, "hidden_rows has -1"),
    "float hidden rows": ({"hidden_rows": np.zeros(1, np.float32)}, "hidden_rows must be"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_batches_are_refused_and_change_nothing(runner: CpuRunner, name: str) -> None:
    changes, message = BAD[name]
    before = np.array(runner.forward(GOOD))
    with pytest.raises(ValueError, match=message):
        runner.forward(dataclasses.replace(GOOD, **changes))
    np.testing.assert_array_equal(runner.forward(GOOD), before)


small = st.integers(-2, 12)
arrays = st.lists(small, max_size=9).map(lambda v: np.array(v, np.int32))


@settings(derandomize=True, max_examples=300, deadline=None)
@given(
    tokens=arrays, positions=arrays, starts=arrays, lens=arrays, rows=arrays, hidden=arrays,
    table=st.tuples(st.integers(0, 3), st.integers(0, 3), st.randoms(use_true_random=False)),
)  # fmt: skip
def test_any_arrays_are_run_or_refused(
    runner, tokens, positions, starts, lens, rows, hidden, table
):
    n, width, random = table
    blocks = np.array([[random.randint(-1, 4) for _ in range(width)] for _ in range(n)], np.int32)
    batch = Batch(tokens, positions, starts, lens, blocks.reshape(n, width), rows, hidden)
    try:
        logits = runner.forward(batch)
    except ValueError:
        return
    assert logits.shape == (len(rows), 96)
    assert runner.hidden().shape == (len(hidden), 64)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    field=st.sampled_from([f.name for f in dataclasses.fields(Batch)]),
    index=st.integers(0, 10),
    value=st.sampled_from([-(2**31), -1, 0, 1, 2, 3, 4, 9, 95, 96, 2**31 - 1]),
)
def test_one_wrong_number_is_run_or_refused(runner, field, index, value):
    array = getattr(GOOD, field).copy()
    array.reshape(-1)[index % array.size] = value
    try:
        logits = runner.forward(dataclasses.replace(GOOD, **{field: array}))
    except ValueError:
        return
    assert np.isfinite(logits).all()


def test_copying_blocks_checks_all_pairs_first(runner: CpuRunner) -> None:
    before = np.array(runner.forward(GOOD))
    for pair in ((0, 4), (-1, 0), (4, 4), (2**40, 0), (0, -(2**40)), (2**32, 2**32 + 1)):
        with pytest.raises(ValueError, match="KV block"):
            runner.copy_blocks([(1, 3), pair])
    runner.copy_blocks([])
    # Block 0 holds the past of the second sequence: nothing may have been copied over it.
    np.testing.assert_array_equal(runner.forward(GOOD), before)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_plan_is_what_is_taken(case: TinyCase, threads: int, tmp_path: Path) -> None:
    folder = write_folder(case, tmp_path)
    model = load_model(open_checkpoint(folder), max_context=case.max_context)
    limits: dict[str, Any] = {
        "kv": KVCacheSpec(9, 16, "q8_0"), "max_batch_tokens": 33, "max_logit_rows": 5,
        "threads": threads,
    }  # fmt: skip
    plan = cpu.plan(model, **limits)
    runner = cpu.compile(model, **limits)
    assert (plan.weights, plan.kv, plan.scratch) == runner.allocated_bytes()
    layer_bytes = 2 * 16 * model.config.n_kv_heads * model.config.head_dim
    assert plan.kv >= 9 * model.config.n_layers * layer_bytes
    runner.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv": KVCacheSpec(0, 16)}, "KV blocks"),
        ({"kv": KVCacheSpec(4, 4)}, "block size 4"),
        ({"kv": KVCacheSpec(4, 24)}, "block size 24"),
        ({"kv": KVCacheSpec(4, 512)}, "block size 512"),
        ({"kv": KVCacheSpec(4, 16, "f64")}, "f64"),  # type: ignore[arg-type]
        ({"max_batch_tokens": 0}, "max_batch_tokens must be at least 1"),
        ({"max_logit_rows": 0}, "max_logit_rows must be at least 1"),
        ({"threads": 0}, "threads"),
        ({"threads": 100000}, "threads"),
        # Beyond what the executor counts with, and beyond what it can be handed at all.
        ({"kv": KVCacheSpec(2**31, 16)}, "KV blocks"),
        ({"kv": KVCacheSpec(2**70, 16)}, "KV blocks"),
        ({"kv": KVCacheSpec(4, 2**70)}, "block size"),
        ({"kv": KVCacheSpec(4, -(2**70))}, "block size"),
        ({"max_batch_tokens": 2**21}, "max_batch_tokens .* at most"),
        ({"max_batch_tokens": 10**5000}, "max_batch_tokens .* at most"),
        ({"max_logit_rows": 2**40}, "max_logit_rows .* at most"),
        ({"threads": 2**70}, "threads"),
    ],
)
def test_limits_that_make_no_sense(model: Model, changes: dict[str, Any], message: str) -> None:
    limits: dict[str, Any] = {
        "kv": KVCacheSpec(4, 16), "max_batch_tokens": 8, "max_logit_rows": 2, "threads": 1
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        cpu.plan(model, **{**limits, **changes})
    with pytest.raises(ValueError, match=message):
        cpu.compile(model, **{**limits, **changes})


def test_a_matrix_that_cannot_be_packed_is_named(model: Model) -> None:
    sources = dict(model.weights.sources)
    odd = sources["blk.0.attn_q.weight"]
    fake = WeightTensor("q", TensorType.Q4_0, (64, 65), np.zeros(0, np.uint8))
    assert odd.shape == (64, 64)
    sources["blk.0.attn_q.weight"] = fake
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_q\.weight.*Q4_0"):
        build_module.build(
            model.program, sources, kv=KVCacheSpec(4, 16), max_batch_tokens=8, max_logit_rows=2,
            threads=1,
        )  # fmt: skip


def test_more_memory_than_there_is(model: Model) -> None:
    kv = KVCacheSpec(2**30, 256, "f32")
    assert cpu.plan(model, kv=kv, threads=1).kv > 2**47
    with pytest.raises((MemoryError, ValueError)):
        cpu.compile(model, kv=kv, threads=1)


def test_a_program_is_lowered_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizing a cache plans several times before it compiles; lowering is what takes time in it."""
    seen: list[object] = []
    lower = build_module.lower
    monkeypatch.setattr(build_module, "_last", None)
    monkeypatch.setattr(build_module, "lower", lambda *args: seen.append(args) or lower(*args))
    plans = [cpu.plan(model, kv=KVCacheSpec(n, 16), threads=2) for n in (4, 8)]
    runner = cpu.compile(model, kv=KVCacheSpec(8, 16), threads=2)
    assert len(seen) == 1
    assert plans[1].kv == 2 * plans[0].kv
    assert (plans[1].weights, plans[1].kv, plans[1].scratch) == runner.allocated_bytes()
    runner.close()

    # The same program over weights of another type is another matter.
    sources = dict(model.weights.sources)
    up = sources["blk.0.ffn_up.weight"]
    sources["blk.0.ffn_up.weight"] = WeightTensor(
        "up", TensorType.Q8_0, up.shape, np.zeros(0, np.uint8)
    )
    limits: dict[str, Any] = {
        "kv": KVCacheSpec(4, 16), "max_batch_tokens": 8, "max_logit_rows": 2, "threads": 2,
    }  # fmt: skip
    build = build_module.build
    other = build(model.program, sources, **limits).executor
    same = build(model.program, model.weights.sources, **limits).executor
    assert len(seen) == 3
    assert other.weight_bytes < same.weight_bytes


def test_progress_counts_up_to_everything(model: Model) -> None:
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))

    cpu.compile(model, kv=KVCacheSpec(4, 16), threads=2, progress=progress).close()
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] > 0
    assert len({total for _, total in seen}) == 1


def test_closing_twice_and_using_it_after(model: Model) -> None:
    runner = cpu.compile(model, kv=KVCacheSpec(4, 8), threads=2)
    logits = runner.forward(GOOD)
    kept = np.array(logits)
    runner.close()
    runner.close()
    gc.collect()
    np.testing.assert_array_equal(logits, kept)  # a view keeps its memory
    with pytest.raises(RuntimeError, match="closed"):
        runner.forward(GOOD)
    with pytest.raises(RuntimeError, match="closed"):
        runner.copy_blocks([])


def test_closing_ends_the_threads(model: Model) -> None:
    def members() -> set[str]:
        """Threads of all teams in this process. The system lists them a moment longer than they
        live, and by their names a moment after they have begun."""
        found = set()
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):
                if re.fullmatch(r"tidemill-\d+\n", (task / "comm").read_text()):
                    found.add(task.name)
        return found

    gc.collect()
    others = members()  # some of which may just be ending
    runner = cpu.compile(model, kv=KVCacheSpec(4, 8), threads=5)
    until(lambda: len(members() - others) == 4)
    runner.close()
    until(lambda: not members() - others)


def test_a_forked_child_is_refused(model: Model) -> None:
    runner = cpu.compile(model, kv=KVCacheSpec(4, 8), threads=2)
    runner.forward(GOOD)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            runner.forward(GOOD)
        except RuntimeError as error:
            code = 0 if "fork" in str(error) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    runner.forward(GOOD)


def test_two_threads_at_once_are_refused_or_take_turns(model: Model) -> None:
    runner = cpu.compile(model, kv=KVCacheSpec(64, 16), max_batch_tokens=512, threads=1)
    batch = make_batch([Chunk([5] * 512, 0, range(32))], [511])
    wanted = np.array(runner.forward(batch))
    wrong: list[object] = []

    def work() -> None:
        for _ in range(10):
            try:
                runner.forward(batch)
            except RuntimeError as error:
                if "another thread" not in str(error):
                    wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    np.testing.assert_array_equal(runner.forward(batch), wanted)


def last_logits(runner: CpuRunner, length: int, forget: dict[int, list[int]]) -> bytes:
    """The bits of the logits after ``length`` tokens, computed 50 at a time; of ``forget``, the
    blocks to give back once so many tokens are computed."""
    for past in range(0, length, 50):
        tokens = [(7 * i + i // 9) % 96 for i in range(past, min(past + 50, length))]
        logits = runner.forward(make_batch([Chunk(tokens, past, range(4))])).tobytes()
        runner.forget_blocks(forget.get(past + 50, []))
    return logits


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_blocks_behind_the_window_are_forgotten_in_windowed_layers_alone(
    dtype: KVDtype, tmp_path: Path
) -> None:
    """The tiny Gemma 3 has layers with a window of 8 and one without; a block of 64 tokens takes
    pages of its own in each."""
    model = load_model(open_checkpoint(write_folder(CASE["gemma3"], tmp_path)))
    runner = cpu.compile(model, kv=KVCacheSpec(4, 64, dtype), threads=2, max_batch_tokens=50)
    assert runner.window == 8
    expected = last_logits(runner, 230, {})
    assert last_logits(runner, 230, {100: [0], 150: [1], 200: [2]}) == expected
    assert last_logits(runner, 230, {200: [0, 2, 1]}) == expected
    assert last_logits(runner, 230, {200: [3]}) != expected  # it is within the window
    with pytest.raises(ValueError, match="KV block 4 is outside 0 to 3"):
        runner.forget_blocks([0, 4])
    runner.close()


def test_without_windows_there_is_nothing_to_forget(model: Model) -> None:
    runner = cpu.compile(model, kv=KVCacheSpec(4, 64), threads=2, max_batch_tokens=50)
    assert runner.window is None
    expected = last_logits(runner, 230, {})
    assert last_logits(runner, 230, {200: [0, 1, 2, 3]}) == expected
    runner.close()


def test_profiling_times_every_instruction(model: Model) -> None:
    runner = cpu.compile(model, kv=KVCacheSpec(4, 8), threads=2)
    runner.forward(GOOD)
    assert all(seconds == 0 for _, seconds in runner.timings())
    runner.profile(True)
    runner.forward(GOOD)
    names = [name for name, seconds in runner.timings() if seconds > 0]
    assert "blk.2.attention" in names
    assert any("ffn_down" in name for name in names)


def test_pages_of_a_mapped_file_are_given_back_and_read_again(tmp_path: Path) -> None:
    path = write_gguf(CASE["llama"], tmp_path / "model.gguf")
    tensor = open_checkpoint(path).tensors["blk.0.ffn_up.weight"]
    before = tensor.data.copy()
    release_files([tensor.data])
    np.testing.assert_array_equal(tensor.data, before)
    anonymous = np.arange(10 * mmap.PAGESIZE, dtype=np.uint8)
    copy = anonymous.copy()
    release_files([anonymous])  # must not be wiped
    np.testing.assert_array_equal(anonymous, copy)
