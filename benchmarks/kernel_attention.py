"""Rates of attention alone: GMAC/s in prefill, GB/s of keys and values in decoding.

    python benchmarks/kernel_attention.py [--shapes smollm2,gemma3] [--kv f16,q8_0] [--threads 2]
                                          [--only prefill,decode] [--seconds 1] [--json FILE]

Runs programs that are nothing but attention, in the shapes of real models: queries, keys and values
come from products with two columns, which cost next to nothing. Time is what the calling thread
spends in attention, the wait for the other threads included; the figure is the 20th percentile of
the steps, which neither a clock's jump nor another program's slice can move far.

Limits: for prefill the same run's rate of an F32 product with 96 tokens, times the threads; for
decoding the same run's streaming reads. Only what a query may see is counted as work.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_matmul import random_matrix
from tidemill import _native
from tidemill.backends.base import Batch, KVCacheSpec, KVDtype
from tidemill.backends.cpu.build import build
from tidemill.backends.cpu.runner import CpuRunner
from tidemill.hardware import measure_bandwidth
from tidemill.program.graph import Graph, Tensor
from tidemill.weights.base import TensorType, WeightTensor

BLOCK = 16
VOCAB = 16
BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32}


@dataclass(frozen=True)
class Shape:
    """The attention of one model."""

    layers: int
    heads: int
    kv_heads: int
    dim: int
    window: int | None = None


SHAPES = {
    "smollm2": Shape(30, 9, 3, 64),
    "gemma3": Shape(3, 4, 1, 256),
    "gemma3-window": Shape(15, 4, 1, 256, 512),
    "llama-1b": Shape(16, 32, 8, 64),
}


@dataclass(frozen=True)
class Work:
    """``chunk`` new tokens of each of ``sequences``, which see ``context`` tokens at the end."""

    name: str
    chunk: int
    context: int
    sequences: int = 1


WORKS = (
    Work("prefill 512", 512, 512),
    Work("prefill 512 of 8k", 512, 8192),
    Work("decode at 512", 1, 512),
    Work("decode at 1k", 1, 1024),
    Work("decode at 2k", 1, 2048),
    Work("decode at 4k", 1, 4096),
    Work("decode at 8k", 1, 8192),
    Work("decode 64 x 64", 1, 64, 64),
    Work("decode 32 x 200", 1, 200, 32),
    Work("decode 8 x 1k", 1, 1024, 8),
)


def attention_only(shape: Shape, kv: KVCacheSpec, threads: int, max_tokens: int) -> CpuRunner:
    """A runner of the shape's attention layers, one after another."""
    q_width, kv_width = shape.heads * shape.dim, shape.kv_heads * shape.dim
    sizes = {"token_embd.weight": (VOCAB, 2), "output.weight": (VOCAB, 2)}
    for i in range(shape.layers):
        for name, size in (("q", (q_width, 2)), ("k", (kv_width, 2)), ("v", (kv_width, 2)),
                           ("o", (2, q_width))):  # fmt: skip
            sizes[f"blk.{i}.{name}.weight"] = size
    rng = np.random.default_rng(0)
    weights = {
        name: WeightTensor.from_array(name, rng.standard_normal(size, dtype=np.float32))
        for name, size in sizes.items()
    }

    def model(g: Graph) -> Tensor:
        x = g.embed("token_embd")
        for layer in g.layers(shape.layers):
            q = layer.linear(x, "q").heads(shape.heads, shape.dim)
            k, v = (layer.linear(x, n).heads(shape.kv_heads, shape.dim) for n in "kv")
            attended = layer.attention(q, k, v, window=shape.window, scale=0.05)
            x = x + layer.linear(attended, "o")
        return g.logits(x, "output")

    graph = Graph({name: weight.shape for name, weight in weights.items()})
    program = graph.program(model(graph))
    built = build(program, weights, kv=kv, max_batch_tokens=max_tokens, max_logit_rows=64,
                  threads=threads, isa="")  # fmt: skip
    runner = CpuRunner(built, kv, max_tokens, 64, vocab_size=VOCAB)
    runner.load(built, weights)
    return runner


def make_batch(work: Work, past: int, chunk: int, tables: npt.NDArray[np.int32]) -> Batch:
    """``chunk`` tokens of every sequence after ``past`` cached ones."""
    n = work.sequences
    return Batch(
        tokens=np.arange(n * chunk, dtype=np.int32) % VOCAB,
        positions=np.tile(np.arange(past, past + chunk, dtype=np.int32), n),
        query_starts=np.arange(0, n * chunk + 1, chunk, dtype=np.int32),
        context_lens=np.full(n, past + chunk, np.int32),
        block_tables=tables,
        logit_rows=np.arange(chunk - 1, n * chunk, chunk, dtype=np.int32),
    )


def seconds_of(runner: CpuRunner, batch: Batch, budget: float) -> float:
    """20th percentile of a step's time in attention."""
    taken = []
    end = time.perf_counter() + budget
    while len(taken) < 5 or (time.perf_counter() < end and len(taken) < 2000):
        runner.profile(True)  # from zero
        runner.forward(batch)
        taken.append(sum(s for name, s in runner.timings() if name.endswith((".attention", ".o"))))
    return float(np.quantile(taken, 0.2))


def visible(shape: Shape, first: int, last: int) -> int:
    """Keys that queries at positions [first, last) see, summed up."""
    positions = np.arange(first, last)
    return int(np.minimum(positions + 1, shape.window or last).sum())


def measure(
    shape: Shape, dtype: KVDtype, work: Work, threads: int, budget: float
) -> dict[str, Any]:
    """Seconds of one step and its rates, over all layers."""
    blocks = -(-work.context // BLOCK)
    n_blocks = blocks * work.sequences
    runner = attention_only(shape, KVCacheSpec(n_blocks, BLOCK, dtype), threads, 1024)
    tables = np.random.default_rng(1).permutation(n_blocks).astype(np.int32)
    tables = tables.reshape(work.sequences, blocks)
    # One block is computed and copied over the cache: memory never written would not be read.
    prompt = Work("", BLOCK, BLOCK)
    runner.forward(make_batch(prompt, 0, BLOCK, np.zeros((1, 1), np.int32)))
    runner.copy_blocks([(0, block) for block in range(1, n_blocks)])
    past = work.context - work.chunk
    seconds = seconds_of(runner, make_batch(work, past, work.chunk, tables), budget)
    runner.close()
    pairs = visible(shape, past, work.context) * work.sequences * shape.layers
    seen = min(work.context, (shape.window or work.context) + work.chunk - 1)
    read = seen * work.sequences * shape.layers * shape.kv_heads * shape.dim * 2 * BYTES[dtype]
    return {
        "work": work.name, "kv": dtype, "seconds": seconds,
        "gmacs_per_s": 2 * pairs * shape.heads * shape.dim / seconds / 1e9,
        "gbytes_per_s": read / seconds / 1e9,
        "ns_per_context_token": seconds / (seen * work.sequences) * 1e9 / work.chunk,
    }  # fmt: skip


def product_rate(threads: int) -> float:
    """GMAC/s of F32 products of 96 tokens, were each of the threads as fast as one alone."""
    matrix = random_matrix(TensorType.F32, 256, 256)
    x = np.ones((96, 256), np.float32)
    taken = []
    for _ in range(300):
        start = time.perf_counter()
        matrix.matmul(x, repeats=4)
        taken.append((time.perf_counter() - start) / 4)
    return threads * 256 * 256 * 96 / float(np.quantile(taken, 0.2)) / 1e9


def read_rate(threads: int) -> float:
    """GB/s of streaming reads: the best of five, since other programs only ever take from it."""
    rates = (measure_bandwidth(0.05, threads).bytes_per_second for _ in range(5))
    return max(rates) / 1e9


def chosen(names: str, known: Iterable[str]) -> list[str]:
    """A list of names, checked."""
    picked = names.split(",")
    unknown = set(picked) - set(known)
    if unknown:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    return picked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="smollm2,gemma3,gemma3-window")
    parser.add_argument("--kv", default="f16,q8_0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="works whose name contains one of these")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    wanted = args.only.split(",")
    results = []
    print(f"{_native.isa_name()} kernels, {args.threads} threads")
    for name in chosen(args.shapes, SHAPES):
        for dtype in chosen(args.kv, BYTES):
            for work in WORKS:
                if not any(part in work.name for part in wanted):
                    continue
                figures = measure(SHAPES[name], dtype, work, args.threads, args.seconds)  # type: ignore[arg-type]
                if work.chunk > 1:
                    limit, unit = product_rate(args.threads), "GMAC/s"
                    rate = figures["gmacs_per_s"]
                else:
                    limit = read_rate(args.threads)
                    rate, unit = figures["gbytes_per_s"], "GB/s"
                figures |= {"shape": name, "threads": args.threads, "limit": limit, "unit": unit}
                results.append(figures)
                print(
                    f"{name:14}{dtype:6}{work.name:18}{figures['seconds'] * 1e3:9.2f} ms"
                    f"{rate:8.1f} {unit:7}{rate / limit:6.0%} of {limit:.1f}"
                    f"{figures['ns_per_context_token']:10.1f} ns per token of context",
                    flush=True,
                )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
