"""The techniques: for each, what is measured, and how it is turned off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from models.dequantised import write_f32
from peers.environments import root
from speculation import WORKS as PROMPTS
from techniques.comparing import Figure, Measure, Measured, Technique
from techniques.serving import (
    Job,
    gaps_under_arrivals,
    new_engine,
    random_jobs,
    serve,
)
from techniques.setup import Bench, blocks
from tidemill.backends import cpu
from tidemill.backends.base import KVCacheSpec, KVDtype, Runner
from tidemill.engine.engine import Engine
from tidemill.llm.loading import open_model
from tidemill.llm.memory import BLOCK_SIZE
from tidemill.program.passes import PASSES
from tidemill.text.chat import ChatTemplate, encode_chat

MIB = 1 << 20
SEQUENCES = 64
DECODE_8 = "decode, 8 streams"


def _served(engine: Engine, jobs: Sequence[Job]) -> Measured:
    served = serve(engine, jobs)
    return Measured(
        {"requests": served.requests_per_second, "time to first token": 1e3 * served.ttft},
        served.outputs,
    )


@contextmanager
def continuous_batching(bench: Bench) -> Iterator[Measure]:
    sizes = bench.sizes
    jobs = random_jobs(sizes.requests, sizes.prompt, sizes.generate, bench.vocab_size)
    longest = sizes.prompt[1] + sizes.generate[1]
    with bench.compiled(tokens=sizes.requests * longest) as runner:

        def measure(on: bool) -> Measured:
            engine = new_engine(runner, max_context=longest, max_sequences=SEQUENCES if on else 1)
            return _served(engine, jobs)

        yield measure


@contextmanager
def paged_kv(bench: Bench) -> Iterator[Measure]:
    """Reserving is the same engine, which then runs only as many sequences as the pool has whole
    contexts; what it would set aside is these contexts."""
    sizes = bench.sizes
    jobs = random_jobs(2 * sizes.requests, sizes.prompt, sizes.generate, bench.vocab_size)
    each = blocks(sizes.context)
    with bench.compiled(tokens=sizes.pool * each * BLOCK_SIZE) as runner:
        most = runner.kv.n_blocks // each

        def measure(on: bool) -> Measured:
            engine = new_engine(
                runner, max_context=sizes.context, max_sequences=SEQUENCES if on else most
            )
            served = serve(engine, jobs)
            set_aside = served.owned_blocks if on else served.running * each
            return Measured(
                {
                    "throughput": served.tokens_per_second,
                    "sequences at once": served.running,
                    "of the KV set aside, in use": 100 * served.held / (set_aside * BLOCK_SIZE),
                    "KV set aside for a token": set_aside * BLOCK_SIZE / served.held,
                },
                served.outputs,
            )

        yield measure


@contextmanager
def graph_passes(bench: Bench) -> Iterator[Measure]:
    with ExitStack() as stack:
        runners = {
            on: stack.enter_context(bench.compiled(tokens=_speed_tokens(bench), passes=passes))
            for on, passes in ((True, PASSES), (False, ()))
        }
        yield lambda on: _speeds(bench, runners[on])


@contextmanager
def quantised_weights(bench: Bench) -> Iterator[Measure]:
    quantised = bench.opened.path
    floats = write_f32(quantised, root() / "models" / f"{quantised.stem}-F32.gguf")
    with ExitStack() as stack:
        sides = {}
        for on, path in ((True, quantised), (False, floats)):
            opened = open_model(path, max_context=bench.opened.max_context)
            tokens = _speed_tokens(bench)
            runner = stack.enter_context(bench.compiled(tokens=tokens, opened=opened))
            packed = cpu.plan(opened.model, kv=runner.kv, threads=bench.threads).weights
            sides[on] = runner, {"file": path.stat().st_size / MIB, "packed": packed / MIB}

        def measure(on: bool) -> Measured:
            runner, bytes_ = sides[on]
            return Measured({**_speeds(bench, runner).figures, **bytes_})

        yield measure


@contextmanager
def prefix_caching(bench: Bench) -> Iterator[Measure]:
    """Each engine begins with an empty cache."""
    sizes = bench.sizes
    (system,) = random_jobs(1, (sizes.prefix, sizes.prefix), (1, 1), bench.vocab_size, seed=1)
    jobs = [
        Job(system.prompt + job.prompt, job.generate)
        for job in random_jobs(sizes.sharing, (32, 32), (16, 16), bench.vocab_size)
    ]
    longest = sizes.prefix + 48
    with bench.compiled(tokens=sizes.sharing * longest) as runner:

        def measure(on: bool) -> Measured:
            engine = new_engine(
                runner, max_context=longest, prefix_caching=on, max_sequences=SEQUENCES
            )
            return _served(engine, jobs)

        yield measure


@contextmanager
def chunked_prefill(bench: Bench) -> Iterator[Measure]:
    sizes = bench.sizes
    streams = random_jobs(4, (32, 32), (512, 512), bench.vocab_size)
    length = (sizes.arrival, sizes.arrival)
    arrivals = random_jobs(sizes.arrivals, length, (1, 1), bench.vocab_size, seed=1)
    whole = sizes.arrival + len(streams)
    kv = sizes.arrival + len(streams) * 544 + BLOCK_SIZE
    with bench.compiled(tokens=kv, max_batch_tokens=whole) as runner:

        def measure(on: bool) -> Measured:
            chunk = sizes.chunk if on else whole
            engine = new_engine(
                runner, max_context=max(544, sizes.arrival + 1), max_prefill_tokens=chunk
            )
            gaps, ttfts = gaps_under_arrivals(engine, streams, arrivals, between=8)
            return Measured(
                {
                    "ITL p99 while a prompt arrives": 1e3 * float(np.quantile(gaps, 0.99)),
                    "its time to first token": 1e3 * float(np.mean(ttfts)),
                }
            )

        yield measure


@contextmanager
def speculation(bench: Bench) -> Iterator[Measure]:
    most, generate = bench.sizes.edit
    message = [{"role": "user", "content": PROMPTS["edit: rename in a class"]}]
    tokenizer = bench.opened.tokenizer
    template = ChatTemplate.for_tokenizer(tokenizer)
    prompt = tuple(encode_chat(tokenizer, template, message).ids)[-most:]
    jobs = [Job(prompt, generate)]
    context = len(prompt) + generate
    with bench.compiled(tokens=context) as runner:

        def measure(on: bool) -> Measured:
            served = serve(new_engine(runner, max_context=context, lookup=on), jobs)
            return Measured({"decode": served.decode}, served.outputs)

        yield measure


@contextmanager
def q8_kv(bench: Bench) -> Iterator[Measure]:
    sizes = bench.sizes
    context = sizes.kv_context + sizes.decode
    (job,) = random_jobs(
        1, (sizes.kv_context, sizes.kv_context), (sizes.decode, sizes.decode), bench.vocab_size
    )
    kinds: dict[bool, KVDtype] = {True: "q8_0", False: "f16"}
    with ExitStack() as stack:
        runners = {
            on: stack.enter_context(bench.compiled(tokens=context, kv_dtype=kind))
            for on, kind in kinds.items()
        }
        memory = {
            on: cpu.plan(
                bench.opened.model, kv=KVCacheSpec(blocks(context), BLOCK_SIZE, kind)
            ).kv
            for on, kind in kinds.items()
        }  # fmt: skip

        def measure(on: bool) -> Measured:
            served = serve(new_engine(runners[on], max_context=context), [job])
            return Measured(
                {
                    "KV cache": memory[on] / MIB,
                    "prefill": len(job.prompt) / served.ttft,
                    "decode": served.decode,
                }
            )

        yield measure


def _speed_tokens(bench: Bench) -> int:
    return bench.sizes.prefill + 8 * (16 + bench.sizes.decode + BLOCK_SIZE)


def _speeds(bench: Bench, runner: Runner) -> Measured:
    """Prefill and decode, one stream and eight."""
    n, generate = bench.sizes.prefill, bench.sizes.decode

    def jobs(count: int, prompt: int, tokens: int) -> list[Job]:
        return random_jobs(count, (prompt, prompt), (tokens, tokens), bench.vocab_size)

    context = max(n + 1, 16 + generate)
    served = [
        serve(new_engine(runner, max_context=context), jobs(*sizes))
        for sizes in ((1, n, 1), (1, 16, generate), (8, 16, generate))
    ]
    figures = {
        "prefill": n / served[0].seconds, "decode": served[1].decode, DECODE_8: served[2].decode
    }  # fmt: skip
    return Measured(figures)


_TTFT = Figure("time to first token", "ms", "time")
_SPEEDS = tuple(Figure(name, "tok/s") for name in ("prefill", "decode", DECODE_8))

TECHNIQUES: dict[str, Technique] = {
    "batching": Technique(
        "continuous batching", "one request at a time",
        (Figure("requests", "1/s", promise=7.0), _TTFT), continuous_batching,
    ),
    "paged": Technique(
        "paged KV", "the full context reserved for each request, in the same KV memory",
        (
            Figure("throughput", "tok/s", promise=2.8),
            Figure("sequences at once", "mean"),
            Figure("of the KV set aside, in use", "%"),
            Figure("KV set aside for a token", "slots", "size", promise=0.35),
        ),
        paged_kv,
    ),
    "passes": Technique(
        "graph passes", "the recorded program lowered as it is",
        (
            Figure("prefill", "tok/s", promise=2.3), Figure("decode", "tok/s", promise=2.3),
            Figure(DECODE_8, "tok/s", promise=2.3),
        ),
        graph_passes,
    ),
    "weights": Technique(
        "quantised weights", "the same weights as F32",
        (
            *_SPEEDS, Figure("file", "MiB", "size", promise=0.87),
            Figure("packed", "MiB", "size", promise=0.87),
        ),
        quantised_weights,
    ),
    "prefix": Technique(
        "prefix caching", "every prompt computed whole", (Figure("requests", "1/s"), _TTFT),
        prefix_caching,
    ),
    "chunked": Technique(
        "chunked prefill", "a prompt computed in one step",
        (
            Figure("ITL p99 while a prompt arrives", "ms", "time"),
            Figure("its time to first token", "ms", "time"),
        ),
        chunked_prefill,
    ),
    "speculation": Technique(
        "speculation, prompt lookup", "a token at a time, on an editing prompt",
        (Figure("decode", "tok/s"),), speculation,
    ),
    "kv8": Technique(
        "KV in q8_0", "KV in f16",
        (Figure("KV cache", "MiB", "size"), Figure("prefill", "tok/s"), Figure("decode", "tok/s")),
        q8_kv,
    ),
}  # fmt: skip
