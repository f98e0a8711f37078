"""The model and the sizes that techniques are measured with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from techniques.serving import new_engine, random_jobs, serve
from tidemill.backends import cpu
from tidemill.backends.base import KVCacheSpec, KVDtype
from tidemill.llm.loading import OpenModel
from tidemill.llm.memory import BLOCK_SIZE

Range = tuple[int, int]


@dataclass(frozen=True)
class Sizes:
    """Tokens, unless said otherwise.

    context: what reserving keeps for each request; ``pool`` contexts are the KV memory of the
    paged KV cache. prompt, generate: of a mixed load of ``requests``. prefix: shared by
    ``sharing`` requests. arrival: a long prompt among running streams, in steps of ``chunk``.
    edit: at most, of the prompt and the answer of an edit. kv_context: held while the two kinds
    of KV are compared. prefill, decode: a prompt and an answer for speed alone.
    """

    context: int = 2048
    pool: int = 4
    requests: int = 24
    prompt: Range = (32, 256)
    generate: Range = (24, 96)
    prefix: int = 512
    sharing: int = 12
    arrival: int = 2000
    arrivals: int = 2
    chunk: int = 256
    edit: Range = (1024, 256)
    kv_context: int = 3072
    prefill: int = 512
    decode: int = 64

    @property
    def longest(self) -> int:
        """The context that a model must have been trained for."""
        return max(
            self.context, self.prefix + 64, self.arrival + 16, sum(self.edit),
            self.kv_context + self.decode, self.prefill + 16,
        )  # fmt: skip


FULL = Sizes()
QUICK = Sizes(
    context=256, pool=2, requests=6, prompt=(8, 32), generate=(4, 16), prefix=512, sharing=4,
    arrival=128, arrivals=1, chunk=32, edit=(128, 32), kv_context=128, prefill=64, decode=8,
)  # fmt: skip


def blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


@dataclass(frozen=True)
class Bench:
    opened: OpenModel
    sizes: Sizes
    threads: int

    @property
    def vocab_size(self) -> int:
        return self.opened.model.config.vocab_size

    @contextmanager
    def compiled(
        self, *, tokens: int, opened: OpenModel | None = None, kv_dtype: KVDtype = "f16",
        max_batch_tokens: int = 512, **options: Any,
    ) -> Iterator[cpu.CpuRunner]:  # fmt: skip
        """A runner with KV memory for that many ``tokens``, warmed up."""
        model = (opened or self.opened).model
        runner = cpu.compile(
            model, kv=KVCacheSpec(blocks(tokens), BLOCK_SIZE, kv_dtype), threads=self.threads,
            max_batch_tokens=max_batch_tokens, **options,
        )  # fmt: skip
        try:
            jobs = random_jobs(2, (24, 24), (4, 4), self.vocab_size)
            serve(new_engine(runner, max_context=64), jobs)
            yield runner
        finally:
            runner.close()
