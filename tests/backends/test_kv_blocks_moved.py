"""KV blocks that are read from one runner and written to another serve there, bit for bit."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from support.batches import Chunk, make_batch
from support.tiny_models import CASES, write_folder
from tidemill.backends import cpu, reference
from tidemill.backends.base import KVCacheSpec, KVDtype, Runner
from tidemill.models import Model, load_model
from tidemill.weights import open_checkpoint

CASE = {case.name: case for case in CASES}
TOKENS = [(7 * i + i // 9) % 96 for i in range(50)]
SIZE = 8


@pytest.fixture(scope="module", params=["llama", "gemma3"])  # Gemma 3 has layers with a window of 8
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp(request.param)
    return load_model(open_checkpoint(write_folder(CASE[request.param], folder)))


def compiled(backend: ModuleType, model: Model, dtype: KVDtype, n_blocks: int = 12) -> Runner:
    return backend.compile(model, kv=KVCacheSpec(n_blocks, SIZE, dtype), threads=2)


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [(cpu, "f32"), (cpu, "f16"), (cpu, "q8_0"), (reference, "f32"), (reference, "f16")],
)
def test_blocks_move_between_runners(backend: ModuleType, model: Model, dtype: KVDtype) -> None:
    first, second = (compiled(backend, model, dtype, n) for n in (12, 17))
    assert first.kv_identity == second.kv_identity
    assert first.block_bytes == second.block_bytes > 0
    blocks = [9, 4, 0, 11, 2]
    first.forward(make_batch([Chunk(TOKENS[:40], 0, blocks)]))
    whole = np.array(first.forward(make_batch([Chunk(TOKENS[40:], 40, [*blocks, 7, 3])])))
    elsewhere = [16, 1, 8, 5, 12]
    data = np.empty((5, first.block_bytes), np.uint8)
    for row, source in zip(data, blocks, strict=True):
        first.read_block(source, row)
    first.close()  # the copy is a copy
    for row, destination in zip(data, elsewhere, strict=True):
        second.write_block(destination, row)
    found = np.array(second.forward(make_batch([Chunk(TOKENS[40:], 40, [*elsewhere, 7, 3])])))
    np.testing.assert_array_equal(found, whole)
    # And every byte counts: what was moved is all that there is.
    back = np.empty_like(data)
    for row, destination in zip(back, elsewhere, strict=True):
        second.read_block(destination, row)
    np.testing.assert_array_equal(back, data)
    second.close()


@pytest.mark.parametrize("backend", [cpu, reference])
def test_blocks_and_sizes_are_checked(backend: ModuleType, model: Model) -> None:
    runner = compiled(backend, model, "f16")
    right = np.zeros(runner.block_bytes, np.uint8)
    for move in (runner.read_block, runner.write_block):
        for block in (-1, 12, 2**40):
            with pytest.raises(ValueError, match="KV block"):
                move(block, right)
        for size in (0, runner.block_bytes - 4, runner.block_bytes + 4):
            with pytest.raises(ValueError, match=r"size|broadcast|shape"):
                move(0, np.zeros(size, np.uint8))
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.read_block(0, right)


def test_each_instruction_set_has_blocks_of_its_own(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sums run in different orders, so that their bits may differ."""
    from tidemill import _native
    from tidemill.backends.cpu.build import build
    from tidemill.backends.cpu.runner import CpuRunner

    identities = set()
    kv = KVCacheSpec(4, SIZE)
    for isa in _native.available_isas():
        built = build(
            model.program, model.weights.sources, kv=kv, max_batch_tokens=8, max_logit_rows=8,
            threads=1, isa=isa,
        )  # fmt: skip
        identities.add(CpuRunner(built, kv, 8, 8, vocab_size=96).kv_identity)
    assert len(identities) == len(_native.available_isas())
