"""Measures real steps of a real engine: its scheduler, its kernels, its sampling.

The steps are those of ``Engine.step``, so that what scheduling, sampling and detokenising add to a
forward step is in them, as it is when requests are served. What a step costs does not depend on
what its tokens are or what the KV cache holds, so the way to it is cut short: until the engine has
come to the step that is to be measured, forward steps are only pretended (logits of zeros), and
what they would have left in the KV cache is there from the beginning.

Kinds of steps come in random order, again and again, so that a machine that slows down, or is used
by somebody else for a while, touches all alike and shows as spread.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tidemill.backends.base import Batch, Runner
from tidemill.engine.base import PromptEvent, Request
from tidemill.engine.engine import Engine
from tidemill.engine.params import SamplingParams
from tidemill.engine.step_time import attended
from tidemill.simulate.base import StepWork
from tidemill.simulate.calibration import Point
from tidemill.simulate.grid import Case, Room

_DECODE_STEPS = 3  # of a case of decodes only, which follow each other
_MOST_STEPS = 20_000  # until a case is ready
_LEAST_ROUNDS = 3
_MOST_ROUNDS = 15

OnCase = Callable[[int, int, float], None]
"""Told the round, how many of its cases are done, and the share of the time that has gone."""


class PretendingRunner:
    """A runner that computes only while ``computing``, and notes what its last step had to do."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._nothing = np.zeros((runner.max_logit_rows, runner.vocab_size), np.float32)
        self.computing = False
        self._work: StepWork | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        if not self.computing:
            return self._nothing[: len(batch.logit_rows)]
        self._work = work_of(batch)
        return self._runner.forward(batch)

    def take_work(self) -> StepWork:
        """Of the step that has just been computed."""
        work, self._work = self._work, None
        assert work is not None, "the engine had nothing to compute"
        return work


def work_of(batch: Batch) -> StepWork:
    """A single token counts as a decode, as which it is computed."""
    new = np.diff(batch.query_starts).tolist()
    prompt_tokens = prompt_context = decodes = decode_context = 0
    for n, context in zip(new, batch.context_lens.tolist(), strict=True):
        if n == 1:
            decodes += 1
            decode_context += context
        else:
            prompt_tokens += n
            prompt_context += attended(context - n, n)
    return StepWork(prompt_tokens, prompt_context, decodes, decode_context, len(batch.logit_rows))


class StepMeter:
    """Brings an engine to a step, and measures it."""

    def __init__(
        self,
        runner: Runner,
        engine_on: Callable[[Runner], Engine],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``engine_on`` makes the engine that is measured, on ``runner`` as it is given to it."""
        self._real = runner
        self._runner = PretendingRunner(runner)
        self._engine = engine_on(cast("Runner", self._runner))
        self._clock = clock
        self._ids = itertools.count()
        self._random = random.Random(0)
        limits = self._engine.config
        kv = runner.kv
        self.room = Room(
            max_context=self._engine.max_context,
            max_sequences=min(limits.max_sequences, runner.max_logit_rows),
            max_batch_tokens=min(limits.max_batch_tokens, runner.max_batch_tokens),
            max_prefill_tokens=limits.max_prefill_tokens,
            kv_tokens=kv.n_blocks * kv.block_size,
        )
        _fill(runner)

    def measure(self, case: Case) -> tuple[StepWork, float]:
        """What the step of a case had to do, and its seconds."""
        try:
            return self._measure(case)
        finally:
            self._runner.computing = False
            while self._engine.has_work:
                self._engine.step(0.0)

    def _measure(self, case: Case) -> tuple[StepWork, float]:
        engine = self._engine
        added = []
        if case.decodes:
            chunk = self.room.max_prefill_tokens
            growth = case.decodes + case.decodes * case.context // chunk + case.past // chunk
            growth = min(growth + 16, self.room.max_context - case.context)
            added += [self._add(case.context, growth) for _ in range(case.decodes)]
            self._until_prompts(case.decodes)
        if not case.prompts:
            self._runner.computing = True
            self._step()  # wakes the threads
            timed = [self._step() for _ in range(_DECODE_STEPS)]
            result = sorted(timed, key=lambda step: step[1])[_DECODE_STEPS // 2]
        else:
            length = case.past + case.new + (not case.ends)
            added += [self._add(length, 1) for _ in range(case.prompts)]
            chunk = self.room.max_prefill_tokens if case.decodes else self.room.max_batch_tokens
            for _ in range(case.past // chunk):
                engine.step(0.0)
            self._wake()
            self._runner.computing = True
            result = self._step()
        for request in added:
            engine.abort(request)
        return result

    def _step(self) -> tuple[StepWork, float]:
        started = self._clock()
        self._engine.step(0.0)
        seconds = self._clock() - started
        return self._runner.take_work(), seconds

    def _add(self, length: int, growth: int) -> str:
        name = str(next(self._ids))
        vocabulary = self._runner.vocab_size
        prompt = tuple(self._random.randrange(vocabulary) for _ in range(length))
        params = SamplingParams(temperature=0.0, max_tokens=growth, ignore_eos=True)
        self._engine.add(Request(name, prompt, params, salt=name), 0.0)
        return name

    def _until_prompts(self, n: int) -> None:
        """Pretend until ``n`` prompts are computed."""
        done = 0
        for _ in range(_MOST_STEPS):
            done += sum(isinstance(event, PromptEvent) for event in self._engine.step(0.0))
            if done >= n:
                return
        raise RuntimeError(f"{n} prompts were not computed in {_MOST_STEPS} steps")

    def _wake(self) -> None:
        """As if a step had just been: threads that have waited for long sleep."""
        self._real.forward(_tiny_batch(self._real.kv.n_blocks - 1))


def measure_steps(
    meter: StepMeter,
    cases: Sequence[Case],
    *,
    seconds: float,
    seed: int = 0,
    on_case: OnCase = lambda *_: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Point]:
    """Rounds of all ``cases`` for about ``seconds``, at least three; a point for each case, none
    held out yet."""
    rng = random.Random(seed)
    times: dict[Case, list[float]] = defaultdict(list)
    works: dict[Case, StepWork] = {}
    began = clock()
    for round_ in range(_MOST_ROUNDS):
        order = list(cases)
        rng.shuffle(order)
        for done, case in enumerate(order):
            works[case], took = meter.measure(case)
            times[case].append(took)
            on_case(round_ + 1, done + 1, min(1.0, (clock() - began) / seconds))
        gone = clock() - began
        another = gone / (round_ + 1)
        if round_ + 1 >= _LEAST_ROUNDS and gone + another / 2 > seconds:
            break
    return [_point(works[case], times[case]) for case in cases]


def _point(work: StepWork, times: Sequence[float]) -> Point:
    middle = statistics.median(times)
    low, high = np.quantile(times, (0.25, 0.75))
    return Point(
        prompt_tokens=work.prompt_tokens,
        prompt_context=work.prompt_context,
        decodes=work.decodes,
        decode_context=work.decode_context,
        rows=work.rows,
        seconds=middle,
        spread=float(high - low) / 2 / middle,
        repeats=len(times),
    )


def _tiny_batch(block: int) -> Batch:
    return Batch(
        tokens=np.ones(2, np.int32),
        positions=np.arange(2, dtype=np.int32),
        query_starts=np.array([0, 2], np.int32),
        context_lens=np.array([2], np.int32),
        block_tables=np.array([[block]], np.int32),
        logit_rows=np.array([1], np.int32),
    )


def _fill(runner: Runner) -> None:
    """Give every block real content and memory of its own: pages that were never written are one
    and the same, and in the cache."""
    size = runner.kv.block_size
    runner.forward(
        Batch(
            tokens=np.arange(1, size + 1, dtype=np.int32) % runner.vocab_size,
            positions=np.arange(size, dtype=np.int32),
            query_starts=np.array([0, size], np.int32),
            context_lens=np.array([size], np.int32),
            block_tables=np.array([[0]], np.int32),
            logit_rows=np.array([size - 1], np.int32),
        )
    )
    data = np.empty(runner.block_bytes, np.uint8)
    runner.read_block(0, data)
    for block in range(1, runner.kv.n_blocks):
        runner.write_block(block, data)
