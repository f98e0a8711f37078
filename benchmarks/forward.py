"""Speed of the CPU backend's forward step alone, and where its time goes.

    python benchmarks/forward.py MODEL.gguf [--threads 2] [--rounds 5] [--ops] [--json FILE]

Prefill of 512 tokens with logits for the last one, then decoding with 1, 8, 16, 32 and 64
sequences that each hold 64 tokens; the best of several rounds. ``--ops`` adds the share of each
kind of instruction, as the calling thread saw it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from tidemill import _native
from tidemill.backends import cpu
from tidemill.backends.base import KVCacheSpec
from tidemill.backends.cpu.roofline import kind_of, uniform_batch
from tidemill.models import load_model
from tidemill.weights import open_checkpoint

BATCHES = (1, 8, 16, 32, 64)
BLOCK = 16


def measure(path: Path, threads: int, rounds: int, prompt: int, context: int, steps: int) -> dict:
    model = load_model(open_checkpoint(path))
    begin = time.perf_counter()
    blocks_each = -(-(context + steps + 1) // BLOCK)
    n_blocks = max(max(BATCHES) * blocks_each, -(-prompt // BLOCK))
    runner = cpu.compile(
        model, kv=KVCacheSpec(n_blocks, BLOCK), max_batch_tokens=max(prompt, max(BATCHES)),
        max_logit_rows=max(BATCHES), threads=threads,
    )  # fmt: skip
    rates: dict[str, float] = {"load_seconds": time.perf_counter() - begin}
    rng = np.random.default_rng(0)
    ids = rng.integers(100, min(runner.vocab_size, 32000), prompt)
    shares: dict[str, dict[str, float]] = {}

    def best(name: str, n_tokens: int, run: object) -> None:
        fastest = 1e9
        run()  # type: ignore[operator]
        runner.profile(True)
        for _ in range(rounds):
            start = time.perf_counter()
            run()  # type: ignore[operator]
            fastest = min(fastest, time.perf_counter() - start)
        rates[name] = n_tokens / fastest
        by_kind: dict[str, float] = defaultdict(float)
        for instruction, seconds in runner.timings():
            by_kind[kind_of(instruction)] += seconds
        total = sum(by_kind.values())
        shares[name] = {kind: seconds / total for kind, seconds in by_kind.items()}
        runner.profile(False)

    whole = uniform_batch(ids, 1, 0, BLOCK, n_blocks)
    best("prefill", prompt, lambda: runner.forward(whole))
    for n in BATCHES:
        tokens = rng.integers(100, 32000, n)
        batches = [uniform_batch(tokens, n, context + i, BLOCK, blocks_each) for i in range(steps)]
        best(f"decode_{n}", n * steps, lambda b=batches: [runner.forward(batch) for batch in b])
    runner.close()
    return {"rates": rates, "shares": shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--context", type=int, default=64, help="tokens cached before decoding")
    parser.add_argument("--steps", type=int, default=8, help="decode steps per round")
    parser.add_argument("--ops", action="store_true", help="show where the time goes")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args.model, args.threads, args.rounds, args.prompt, args.context, args.steps)
    print(f"{args.model.name}, {args.threads} threads, {_native.isa_name()} kernels")
    for name, rate in result["rates"].items():
        print(f"  {name:14s} {rate:8.2f}" + ("" if "load" in name else " tok/s"))
        if args.ops and name in result["shares"]:
            shares = sorted(result["shares"][name].items(), key=lambda item: -item[1])
            for kind, share in shares[:12]:
                print(f"    {share:6.1%} {kind}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
