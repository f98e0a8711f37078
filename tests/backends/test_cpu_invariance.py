"""A token's logits have the same bits in any batch, any chunk, any blocks and on any threads."""

from __future__ import annotations

import numpy as np
import pytest

from support.batches import Chunk, make_batch
from support.cpu_backend import ISAS, cpu_runner
from support.programs import record
from support.tiny_models import CASE, write_gguf
from tidemill.backends.base import KVCacheSpec, KVDtype, Runner
from tidemill.models import Model, load_model
from tidemill.weights import open_checkpoint

N = 150
TOKENS = np.random.RandomState(11).randint(3, 96, N)
RNG = np.random.RandomState


@pytest.fixture(scope="module", params=["llama", "gemma2", "gemma3", "mixtral"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Quantised, with windows of 8 (gemma), caps (gemma2) and experts (mixtral)."""
    path = tmp_path_factory.mktemp("invariance") / "model.gguf"
    write_gguf(CASE[request.param], path, quantise="Q4_0")
    return load_model(open_checkpoint(path))


def runner_for(model: Model, dtype: KVDtype = "f16", threads: int = 2, block_size: int = 16,
               isa: str = "") -> Runner:  # fmt: skip
    return cpu_runner(
        model.program, model.weights, kv=KVCacheSpec(3000 // block_size, block_size, dtype),
        max_batch_tokens=512, max_logit_rows=512, threads=threads, isa=isa,
    )  # fmt: skip


def run(runner: Runner, sizes: list[int], blocks: list[int] | range, start: int = 0) -> np.ndarray:
    """Logits (., vocab) of TOKENS from ``start``, chunk after chunk."""
    pieces, past = [], start
    for size in sizes:
        batch = make_batch([Chunk(TOKENS[past : past + size], past, blocks)])
        pieces.append(np.array(runner.forward(batch)))
        past += size
    return np.concatenate(pieces)


def assert_same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    assert not np.isnan(wanted).any()
    np.testing.assert_array_equal(found, wanted)


def pieces(size: int) -> list[int]:
    return [size] * (N // size) + ([N % size] if N % size else [])


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_chunks_of_every_size(model: Model, dtype: KVDtype) -> None:
    runner = runner_for(model, dtype)
    whole = run(runner, [N], range(10))
    for size in (1, 3, 16, 64, 149):
        assert_same_bits(run(runner, pieces(size), range(size, size + 10)), whole)


@pytest.mark.parametrize("isa", ISAS)
def test_threads_and_blocks(model: Model, isa: str) -> None:
    whole = run(runner_for(model, threads=1, isa=isa), [N], range(10))
    for threads, block_size in ((1, 8), (2, 8), (2, 16), (3, 32), (5, 64), (2, 256)):
        runner = runner_for(model, threads=threads, block_size=block_size, isa=isa)
        blocks = RNG(threads).permutation(runner.kv.n_blocks)[: -(-N // block_size)].tolist()
        assert_same_bits(run(runner, [100, 1, 1, 40, 8], blocks), whole)


def test_alone_and_among_others(model: Model) -> None:
    """The sequence is decoded, and prefilled, beside 16 others of other lengths and stages."""
    runner = runner_for(model)
    whole = run(runner, [N], range(10))
    rng = RNG(2)
    others = [rng.randint(3, 96, rng.randint(20, 70)) for _ in range(16)]
    tables = [list(range(20 + 5 * i, 25 + 5 * i)) for i in range(16)]
    past = [0] * 16
    done = 0
    while done < N:
        size = min(int(rng.choice([1, 1, 1, 9, 30])), N - done)
        chunks = [Chunk(TOKENS[done : done + size], done, range(10))]
        for i in range(16):
            step = min(int(rng.choice([1, 1, 6])), len(others[i]) - past[i])
            if step:
                ids = others[i][past[i] : past[i] + step]
                chunks.append(Chunk(ids, past[i], tables[i]))
                past[i] += step
        order = rng.permutation(len(chunks))
        batch = make_batch([chunks[j] for j in order])
        row = int(batch.query_starts[list(order).index(0)])
        logits = np.array(runner.forward(batch))[row : row + size]
        assert_same_bits(logits, whole[done : done + size])
        done += size


def test_a_cached_prefix_and_copied_blocks(model: Model) -> None:
    """A prompt whose first 64 tokens another sequence computed; then a copied block table."""
    runner = runner_for(model)
    whole = run(runner, [N], range(10))
    shared = [0, 1, 2, 3, *range(50, 56)]
    assert_same_bits(run(runner, [86], shared, start=64), whole[64:])
    runner.copy_blocks([(b, 60 + b) for b in range(9)])
    copied = [60 + b for b in range(9)] + [70]
    assert_same_bits(run(runner, [1] * 6, copied, start=144), whole[144:])


def test_which_logits_are_asked_for(model: Model) -> None:
    runner = runner_for(model)
    whole = run(runner, [N], range(10))
    rows = [149, 0, 77, 77, 3]
    found = runner.forward(make_batch([Chunk(TOKENS, 0, range(10))], rows))
    assert_same_bits(np.array(found), whole[rows])


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("window", [None, 700])
def test_long_contexts_split_over_threads(dtype: KVDtype, window: int | None) -> None:
    """One long sequence is shared out by spans among the threads; nothing may depend on it."""
    from support.programs import random_weights

    d, dim, length = 32, 32, 2100
    shapes = {"token_embd.weight": (96, d), "output.weight": (96, d)}
    for i in range(2):
        shapes |= {f"blk.{i}.{n}.weight": (s * dim, d) for n, s in (("q", 3), ("k", 1), ("v", 1))}
        shapes[f"blk.{i}.o.weight"] = (d, 3 * dim)
    weights = random_weights(shapes)

    def graph(g):
        x = g.embed("token_embd")
        for layer in g.layers(2):
            q = layer.linear(x, "q").heads(3, dim)
            k, v = (layer.linear(x, n).heads(1, dim) for n in "kv")
            x = x + layer.linear(layer.attention(q, k, v, window=window), "o")
        return g.logits(x, "output")

    program = record(graph, weights)
    tokens = RNG(4).randint(0, 96, length + 4)
    results = []
    for threads, chunk in ((1, 512), (2, 512), (3, 300), (4, 512)):
        runner = cpu_runner(
            program, weights, kv=KVCacheSpec(140, 16, dtype), max_batch_tokens=512, threads=threads
        )
        blocks = RNG(threads).permutation(140).tolist()
        past = 0
        while past < length:
            size = min(chunk, length - past)
            runner.forward(
                make_batch([Chunk(tokens[past : past + size], past, blocks)], [size - 1])
            )
            past += size
        decoded = [
            np.array(runner.forward(make_batch([Chunk(tokens[p : p + 1], p, blocks)])))
            for p in range(length, length + 4)
        ]
        results.append(np.concatenate(decoded))
    for other in results[1:]:
        assert_same_bits(other, results[0])
