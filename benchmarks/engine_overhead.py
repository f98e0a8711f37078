"""What a decode step costs beside the forward pass: scheduling, batch, sampling, text, outputs.

    python benchmarks/engine_overhead.py [--vocab 49152] [--context 512] [--json]

``LLM.generate`` runs on a runner that computes nothing, and what is told is the time from the end
of one of its forward passes to the start of the next: the median over the steps of each case, in
this run, on this machine. In a real model all the weights have gone through the caches in between,
so code and data of the engine come from memory again. The column "cold" is with a runner that
reads as many bytes as a model of a hundred megabytes; "warm" is with one that gives its logits at
once, which no model does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill import LLM, SamplingParams
from tidemill.backends.base import Batch, KVCacheSpec
from tidemill.engine.base import EngineConfig
from tidemill.engine.engine import Engine
from tidemill.llm.core import Core

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {"temperature": 1.0},
    "top-k 40, top-p 0.95": {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.1, "frequency_penalty": 0.5},
    "5 logprobs": {"temperature": 0.0, "logprobs": 5},
    "a stop string": {"temperature": 0.0, "stop": ("\n\nHuman:",)},
}
SEQUENCES = (1, 8, 64)
COLD_BYTES = 100_000_000


class WordTokenizer:
    """Every token is a short word: detokenising without a vocabulary file."""

    bos_id = None
    eos_ids: frozenset[int] = frozenset()
    special_ids: frozenset[int] = frozenset()
    chat_template = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._bytes = [b" %d" % i for i in range(vocab_size)]

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return b"".join(map(self.token_bytes, ids)).decode()

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id]


class IdleRunner:
    """Gives prepared logits after reading ``stream_bytes`` of memory, and notes how long the
    engine took from one decode step to the next."""

    window = None

    def __init__(self, vocab_size: int, kv: KVCacheSpec, n: int, stream_bytes: int) -> None:
        self.vocab_size = vocab_size
        self.kv = kv
        self.max_batch_tokens = kv.n_blocks * kv.block_size
        self.max_logit_rows = n
        self.gaps: list[float] = []
        self._stream = np.ones(stream_bytes // 8)
        self._left = 0.0  # the end of the last step, if that was a decode of all sequences
        rng = np.random.default_rng(0)
        logits = rng.standard_normal((n, vocab_size), np.float32) * 2.5
        logits[np.arange(n), rng.integers(0, vocab_size, n)] += 12
        self._logits = logits

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        entered = time.perf_counter()
        if self._left:
            self.gaps.append(entered - self._left)
        rows = len(batch.logit_rows)
        self._stream.sum()
        all_decode = rows == len(batch.tokens) == self.max_logit_rows
        self._left = time.perf_counter() if all_decode else 0.0
        return self._logits[:rows]

    def forget_blocks(self, blocks: Sequence[int]) -> None:
        pass

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        pass

    def close(self) -> None:
        pass


class IdleModel:
    """What a Core wants to know of a compiled model."""

    def __init__(self, runner: IdleRunner, max_context: int) -> None:
        self.runner = runner
        self.opened = self
        self.max_context = max_context
        self.tokenizer = WordTokenizer(runner.vocab_size)


class IdleLLM(LLM):
    """An LLM around an IdleRunner, for ``n`` sequences."""

    def __init__(self, vocab: int, max_context: int, n: int, stream_bytes: int) -> None:
        kv = KVCacheSpec(n * -(-max_context // 16))
        self.runner = IdleRunner(vocab, kv, n, stream_bytes)
        model: Any = IdleModel(self.runner, max_context)
        most = self.runner.max_batch_tokens  # all prompts in one step
        config = EngineConfig(max_context, most, most, max_sequences=n)
        self._core = Core(model, Engine(self.runner, model.tokenizer, config, entropy=1))


def seconds_between_steps(
    vocab: int, context: int, n: int, steps: int, stream_bytes: int, **params: Any
) -> float:
    """Median seconds between two decode steps of ``n`` sequences about ``context`` tokens long."""
    llm = IdleLLM(vocab, context + steps + 8, n, stream_bytes)
    rng = np.random.default_rng(1)
    prompts = [{"prompt_token_ids": rng.integers(0, vocab, context).tolist()} for _ in range(n)]
    llm.generate(prompts, SamplingParams(max_tokens=steps + 8, **params))
    return statistics.median(llm.runner.gaps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only", choices=["bookkeeping", *CASES], help="a single case")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    # A vocabulary of 64 leaves next to nothing to sample from: the bookkeeping alone.
    cases = {name: (arguments.vocab, params) for name, params in CASES.items()}
    cases["bookkeeping"] = (64, CASES["greedy"])
    if arguments.only:
        cases = {arguments.only: cases[arguments.only]}
    rows = []
    for name, (vocab, params) in cases.items():
        for n in SEQUENCES:
            cold, warm = (
                1e3
                * seconds_between_steps(
                    vocab, arguments.context, n, arguments.steps, stream_bytes, **params
                )
                for stream_bytes in (COLD_BYTES, 8)
            )
            rows.append({"case": name, "sequences": n, "cold_ms": cold, "warm_ms": warm})
            if not arguments.json:
                print(
                    f"{name:22} {n:3} sequences {cold:8.3f} ms cold {warm:8.3f} ms warm",
                    flush=True,
                )
    if arguments.json:
        print(json.dumps({"vocab": arguments.vocab, "context": arguments.context, "rows": rows}))


if __name__ == "__main__":
    main()
