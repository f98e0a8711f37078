"""What the engine costs per step beside the forward pass: scheduling, batch, sampling, events.

    python benchmarks/engine_overhead.py [--vocab 49152] [--context 2048] [--json]

A runner that returns the same logits at once stands in for the model, so the time of a step is the
engine's own. Measured on this machine, in this run; the median over steps of every case.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tidemill.backends.base import Batch, KVCacheSpec
from tidemill.engine.base import EngineConfig, Request
from tidemill.engine.engine import Engine
from tidemill.engine.params import SamplingParams

CASES = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {"temperature": 1.0},
    "top-k 40, top-p 0.95": {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.1, "frequency_penalty": 0.5},
    "5 logprobs": {"temperature": 0.0, "logprobs": 5},
    "a stop string": {"temperature": 0.0, "stop": ("\n\nHuman:",)},
}


class WordTokenizer:
    """Every token is a short word: the cost of detokenising without a vocabulary file."""

    bos_id = None
    eos_ids: frozenset[int] = frozenset()
    special_ids: frozenset[int] = frozenset()
    chat_template = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return "".join(f" {i}" for i in ids)

    def token_bytes(self, token_id: int) -> bytes:
        return b" %d" % token_id


class InstantRunner:
    """Gives prepared logits at once."""

    max_batch_tokens = 512
    max_logit_rows = 128

    def __init__(self, vocab_size: int, n_blocks: int) -> None:
        self.vocab_size = vocab_size
        self.kv = KVCacheSpec(n_blocks, 16)
        rng = np.random.default_rng(0)
        logits = rng.standard_normal((self.max_logit_rows, vocab_size), np.float32) * 2.5
        logits[np.arange(len(logits)), rng.integers(0, vocab_size, len(logits))] += 12
        self._logits = logits

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        return self._logits[: len(batch.logit_rows)]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        pass

    def close(self) -> None:
        pass


def decode_step_seconds(
    vocab: int, context: int, n: int, steps: int, text: bool, **params: object
) -> float:
    """Median seconds of a decode step of ``n`` sequences about ``context`` tokens long."""
    runner = InstantRunner(vocab, n * (-(-(context + steps + 8) // 16) + 1))
    config = EngineConfig(max_context=context + steps + 8, max_sequences=n)
    engine = Engine(runner, WordTokenizer(vocab) if text else None, config, entropy=1)
    rng = np.random.default_rng(1)
    for i in range(n):
        prompt = tuple(rng.integers(0, vocab, context).tolist())
        sampling = SamplingParams(max_tokens=steps + 8, **params)  # type: ignore[arg-type]
        engine.add(Request(f"r{i}", prompt, sampling), 0.0)
    while engine.stats.generated_tokens == 0 or engine.stats.started < n:
        engine.step(0.0)
    while any(s.computed < len(s.tokens) - 1 for s in engine._scheduler.running):
        engine.step(0.0)
    times = []
    while len(times) < steps and engine.stats.running == n:
        start = time.perf_counter()
        engine.step(0.0)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for name, params in CASES.items():
        for n in (1, 16, 64):
            seconds = decode_step_seconds(
                arguments.vocab, arguments.context, n, arguments.steps, True, **params
            )
            rows.append({"case": name, "sequences": n, "step_ms": seconds * 1e3})
            if not arguments.json:
                print(f"{name:22} {n:3} sequences {seconds * 1e3:8.3f} ms a step", flush=True)
    # A vocabulary of 64 leaves next to nothing to sample from: the bookkeeping alone.
    for n in (1, 16, 64):
        seconds = decode_step_seconds(
            64, arguments.context, n, arguments.steps, True, temperature=0.0
        )
        rows.append({"case": "bookkeeping", "sequences": n, "step_ms": seconds * 1e3})
        if not arguments.json:
            print(f"{'bookkeeping alone':22} {n:3} sequences {seconds * 1e3:8.3f} ms a step")
    if arguments.json:
        print(json.dumps({"vocab": arguments.vocab, "context": arguments.context, "rows": rows}))


if __name__ == "__main__":
    main()
