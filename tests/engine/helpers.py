"""Driving an engine in tests: run it, sort its events, check what must always hold."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tidemill.engine.base import (
    NO_OUTPUT,
    EmbeddingEvent,
    EngineConfig,
    ErrorEvent,
    Event,
    FinishEvent,
    PromptEvent,
    Request,
    TokenEvent,
)
from tidemill.engine.engine import Engine
from tidemill.engine.params import SamplingParams
from tidemill.engine.pooling import Pooling


@dataclass
class Sample:
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list = field(default_factory=list)
    finish: FinishEvent | None = None


@dataclass
class Result:
    samples: dict[int, Sample] = field(default_factory=dict)
    prompt: PromptEvent | None = None
    embedding: npt.NDArray[np.float32] | None = None
    error: ErrorEvent | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or (
            bool(self.samples) and all(s.finish is not None for s in self.samples.values())
        )

    @property
    def tokens(self) -> list[int]:
        return self.samples[0].tokens


class Collector:
    """Sorts events by request, and fails on any that comes after the last one of its sample."""

    def __init__(self) -> None:
        self.results: dict[str, Result] = {}

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            result = self.results.setdefault(event.request_id, Result())
            assert result.error is None, f"{event} follows an error"
            match event:
                case EmbeddingEvent():
                    assert not result.samples
                    assert result.prompt is not None
                    result.embedding = event.vector
                case ErrorEvent():
                    result.error = event
                case PromptEvent():
                    assert result.prompt is None
                    result.prompt = event
                case TokenEvent():
                    sample = result.samples.setdefault(event.index, Sample())
                    assert sample.finish is None, f"{event} follows the end"
                    assert result.prompt is not None
                    sample.tokens.append(event.token_id)
                    sample.text += event.text
                    sample.logprobs.append(event.logprobs)
                case FinishEvent():
                    sample = result.samples.setdefault(event.index, Sample())
                    assert sample.finish is None, f"{event} ends a sample twice"
                    sample.finish = event
                    sample.text += event.text


def check_blocks(engine: Engine) -> None:
    """No block is lost, owned twice without being counted, or held by one that does not run."""
    running = engine._scheduler.running
    assert not getattr(engine._runner, "violations", None)
    engine._kv.check([sequence.blocks for sequence in running])
    assert all(not sequence.blocks for sequence in engine._scheduler.waiting)
    assert len({s.slot for s in running}) == len(running)
    assert engine._table.free_slots + len(running) == engine._table.n_slots


def check_idle(engine: Engine) -> None:
    """Nothing is left behind."""
    check_blocks(engine)
    assert not engine.has_work
    assert not engine._groups
    stats = engine.stats
    assert stats.free_blocks + stats.cached_blocks == engine._kv.n_blocks
    assert stats.running == stats.waiting == 0


def drive(
    engine: Engine, requests: Iterable[Request] = (), *, max_steps: int = 10_000,
    check: bool = True, pace: float = 1.0,
) -> dict[str, Result]:  # fmt: skip
    """Add ``requests``, run until nothing is left to do, and give their results. Each step takes
    ``pace`` seconds."""
    for request in requests:
        engine.add(request, 0.0)
    collector = Collector()
    steps = 0
    while engine.has_work:
        steps += 1
        assert steps <= max_steps, "the engine does not come to an end"
        collector.take(engine.step(steps * pace))
        if check:
            check_blocks(engine)
    if check:
        check_idle(engine)
    return collector.results


def request(
    id: str, prompt: Iterable[int], *, priority: int = 0, salt: str = "", **params
) -> Request:
    params.setdefault("temperature", 0.0)
    params.setdefault("max_tokens", 16)
    return Request(id, tuple(prompt), SamplingParams(**params), priority=priority, salt=salt)


def embedding(
    id: str, prompt: Iterable[int], pooling: Pooling = "mean", *, priority: int = 0, salt: str = ""
) -> Request:
    return Request(id, tuple(prompt), NO_OUTPUT, priority=priority, salt=salt, pooling=pooling)


def make_engine(
    runner, tokenizer=None, *, entropy: int = 1, proposer=None, clock=None, tier=None, **config
) -> Engine:
    config.setdefault("max_context", 128)
    config.setdefault("max_batch_tokens", 32)
    config.setdefault("max_prefill_tokens", 16)
    config.setdefault("max_sequences", 8)
    return Engine(
        runner, tokenizer, EngineConfig(**config), entropy=entropy, proposer=proposer, clock=clock,
        tier=tier,
    )  # fmt: skip


def prompt_of(n: int, seed: int = 0, vocab: int = 40) -> list[int]:
    """``n`` random token ids."""
    rng = random.Random(seed)
    return [rng.randrange(vocab) for _ in range(n)]
