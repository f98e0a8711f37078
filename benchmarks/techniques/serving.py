"""An engine that serves requests as fast as it can, and what that took."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.backends.base import Runner
from tidemill.engine.base import EngineConfig, ErrorEvent, Request, TokenEvent
from tidemill.engine.engine import Engine
from tidemill.engine.lookup import PromptLookup
from tidemill.engine.params import SamplingParams

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """A prompt, and how many tokens to continue it with."""

    prompt: Tokens
    generate: int


@dataclass(frozen=True)
class Served:
    """What serving some jobs took.

    decode: tokens per second from when every job has its first one. ttft: mean seconds to a job's
    first token, waiting included. held, owned_blocks, running: tokens in the KV cache, blocks that
    they have and sequences at once, as means over the steps. outputs: by job.
    """

    seconds: float
    jobs: int
    generated: int
    decode: float
    ttft: float
    held: float
    owned_blocks: float
    running: float
    outputs: list[list[int]]

    @property
    def requests_per_second(self) -> float:
        return self.jobs / self.seconds

    @property
    def tokens_per_second(self) -> float:
        return self.generated / self.seconds


def new_engine(
    runner: Runner, *, max_context: int, lookup: bool = False, prefix_caching: bool = False,
    **config: Any,
) -> Engine:  # fmt: skip
    """An engine with an empty cache. ``lookup`` guesses from the prompt, as far as it pays."""
    return Engine(
        runner, None,
        EngineConfig(
            max_context=max_context, max_batch_tokens=runner.max_batch_tokens,
            prefix_caching=prefix_caching, **config,
        ),
        entropy=1, proposer=PromptLookup() if lookup else None,
        clock=time.perf_counter if lookup else None,
    )  # fmt: skip


def request(id_: str, job: Job) -> Request:
    params = SamplingParams(temperature=0, max_tokens=job.generate, ignore_eos=True)
    return Request(id_, job.prompt, params)


def step(engine: Engine) -> list[TokenEvent]:
    """One step's tokens. Raises SystemExit if a request failed: there is nothing to measure."""
    events = engine.step(time.perf_counter())
    for event in events:
        if isinstance(event, ErrorEvent):
            raise SystemExit(f"a request failed: {event.message}")
    return [event for event in events if isinstance(event, TokenEvent)]


def serve(engine: Engine, jobs: Sequence[Job]) -> Served:
    """All jobs, which arrive at once."""
    numbers = {f"job {i}": i for i in range(len(jobs))}
    outputs: list[list[int]] = [[] for _ in jobs]
    first: dict[int, float] = {}
    held, owned, running = [], [], []
    scheduler = engine._scheduler  # no counter of the engine tells tokens from blocks
    start = time.perf_counter()
    for name, i in numbers.items():
        engine.add(request(name, jobs[i]), start)
    early = 0  # tokens until every job has one
    while engine.has_work:
        tokens = step(engine)
        now = time.perf_counter()
        for event in tokens:
            i = numbers[event.request_id]
            outputs[i].append(event.token_id)
            first.setdefault(i, now)
        if tokens and max(first.values()) == now:
            early = sum(map(len, outputs))
        if scheduler.running:
            held.append(sum(sequence.computed for sequence in scheduler.running))
            stats = engine.stats
            owned.append(scheduler.kv.n_blocks - stats.free_blocks - stats.cached_blocks)
            running.append(stats.running)
    end = time.perf_counter()
    if len(first) < len(jobs):
        raise SystemExit("a job ended without a token: there is nothing to measure")
    generated = sum(map(len, outputs))
    decoding = end - max(first.values())
    return Served(
        seconds=end - start, jobs=len(jobs), generated=generated,
        decode=(generated - early) / decoding if generated > early else 0.0,
        ttft=statistics.fmean(first.values()) - start, held=_mean(held), owned_blocks=_mean(owned),
        running=_mean(running), outputs=outputs,
    )  # fmt: skip


def gaps_under_arrivals(
    engine: Engine, streams: Sequence[Job], arrivals: Sequence[Job], between: int
) -> tuple[list[float], list[float]]:
    """Seconds between two tokens of the ``streams`` while one of the ``arrivals`` is computed, and
    seconds to the first token of each of these. ``between``: steps from one to the next."""
    last: dict[str, float] = {}
    gaps: list[float] = []
    ttfts: list[float] = []
    for i, job in enumerate(streams):
        engine.add(request(f"stream {i}", job), time.perf_counter())

    def advance(*, counted: bool) -> bool:
        """Whether the arrival has its first token."""
        arrived = False
        tokens = step(engine)
        now = time.perf_counter()
        for event in tokens:
            if event.request_id == "arrival":
                arrived = True
            else:
                if counted and event.request_id in last:
                    gaps.append(now - last[event.request_id])
                last[event.request_id] = now
        return arrived

    while len(last) < len(streams):
        advance(counted=False)
    for job in arrivals:
        for _ in range(between):
            advance(counted=False)
        start = time.perf_counter()
        engine.add(request("arrival", job), start)
        while not advance(counted=True):
            pass
        ttfts.append(time.perf_counter() - start)
    for name in last:
        engine.abort(name)
    while engine.has_work:
        engine.step(time.perf_counter())
    if not gaps:
        raise SystemExit("the streams ended before a prompt arrived: there is nothing to measure")
    return gaps, ttfts


def random_tokens(rng: random.Random, n: int, vocab_size: int) -> Tokens:
    return tuple(rng.randrange(vocab_size) for _ in range(n))


def random_jobs(
    n: int, prompt: tuple[int, int], generate: tuple[int, int], vocab_size: int, *, seed: int = 7
) -> list[Job]:
    """Jobs of lengths between the given ones, the same for a seed."""
    rng = random.Random(seed)
    return [
        Job(random_tokens(rng, rng.randint(*prompt), vocab_size), rng.randint(*generate))
        for _ in range(n)
    ]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0
