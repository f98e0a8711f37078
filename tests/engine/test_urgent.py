"""Urgent requests beside a flood, on simulated time: what they wait for, and what they cost."""

from __future__ import annotations

import math
import random

import pytest

from engine.fake_runner import FakeRunner
from engine.helpers import check_blocks, check_idle, drive, request
from engine.timed_runner import TimedRunner
from tidemill.engine.base import EngineConfig, Request, TokenEvent
from tidemill.engine.engine import Engine
from tidemill.engine.params import SamplingParams
from tidemill.engine.scheduler import BRIEF, BRIEF_SECONDS, HEAD_START
from tidemill.engine.step_time import Work

# Like a small model on two cores: seconds per step, token, token attended to and logit row.
PER_STEP, PER_TOKEN, PER_CONTEXT, PER_ROW = 4e-3, 7e-4, 3e-7, 3e-4


def cost(work: Work) -> float:
    return PER_STEP + PER_TOKEN * work.tokens + PER_CONTEXT * work.context + PER_ROW * work.rows


class Served:
    """An engine on simulated time, kept full by a flood of ``streams`` sequences."""

    def __init__(self, streams: int, *, n_blocks: int = 1 << 14, output: int = 200) -> None:
        self.runner = TimedRunner(cost, n_blocks=n_blocks, max_batch_tokens=512, max_logit_rows=512)
        self.engine = Engine(
            self.runner, None, EngineConfig(max_context=2048, max_sequences=64), entropy=1,
            clock=self.runner.clock,
        )  # fmt: skip
        self.rng = random.Random(3)
        self.streams = streams
        self.output = output
        self.flooding = 0
        self.made = 0
        self.tokens = 0
        """Of the flood."""
        self.last: dict[str, float] = {}
        self.longest_gap = 0.0

    def prompt(self, n: int) -> tuple[int, ...]:
        return tuple(self.rng.randrange(40) for _ in range(n))

    def step(self) -> list[TokenEvent]:
        while self.flooding < self.streams:
            self.flooding += 1
            self.made += 1
            params = SamplingParams(temperature=0, max_tokens=self.output, ignore_eos=True)
            prompt = self.prompt(self.rng.randrange(200, 600))
            self.engine.add(Request(f"flood{self.made}", prompt, params), self.runner.time)
        events = self.engine.step(self.runner.time)
        for event in events:
            if event.request_id.startswith("flood"):
                if isinstance(event, TokenEvent):
                    self.tokens += 1
                    before = self.last.get(event.request_id)
                    if before is not None:
                        self.longest_gap = max(self.longest_gap, self.runner.time - before)
                    self.last[event.request_id] = self.runner.time
                else:
                    self.flooding -= type(event).__name__ == "FinishEvent"
        return [e for e in events if isinstance(e, TokenEvent)]

    def run(self, seconds: float) -> None:
        end = self.runner.time + seconds
        while self.runner.time < end:
            self.step()

    def ttft(self, name: str, *, urgent: bool, prompt: int, output: int) -> float:
        """Seconds to the first token of a request that comes while a step is under way."""
        before = self.runner.time
        if self.streams:
            self.step()
        arrived = self.rng.uniform(before, self.runner.time)
        params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
        self.engine.add(Request(name, self.prompt(prompt), params, urgent=urgent), self.runner.time)
        first = 0.0
        tokens = 0
        while tokens < output:
            for event in self.step():
                if event.request_id == name:
                    tokens += 1
                    first = first or self.runner.time
        return first - arrived

    def ttfts(self, n: int, *, urgent: bool, think: float = 0.3) -> list[float]:
        found = []
        for i in range(n):
            found.append(
                self.ttft(f"i{i}", urgent=urgent, prompt=self.rng.randrange(20, 40), output=8)
            )
            if self.streams:
                self.run(self.rng.uniform(0, think))
        return sorted(found)


def p99(values: list[float]) -> float:
    return values[int(0.99 * len(values))]


def test_ttft_beside_a_flood_is_within_twice_that_alone() -> None:
    alone = Served(0).ttfts(60, urgent=True)
    busy = Served(56)
    busy.run(5.0)
    busy.ttft("first", urgent=True, prompt=30, output=8)  # from then on steps are brief
    beside = busy.ttfts(60, urgent=True)
    busy.engine.step(busy.runner.time)
    check_blocks(busy.engine)
    plain = Served(56)
    plain.run(5.0)
    assert p99(plain.ttfts(10, urgent=False)) > 4 * p99(alone)  # or there would be nothing to do
    assert p99(beside) <= 2 * p99(alone)


def test_brief_steps_cost_at_most_a_third_of_the_work() -> None:
    def work(served: Served) -> float:
        stats = served.engine.stats
        return stats.prompt_tokens + stats.generated_tokens

    done = []
    for urgent in (False, True):
        served = Served(56)
        served.run(20.0)
        if urgent:
            served.ttft("u", urgent=True, prompt=20, output=1)
        before, started = work(served), served.runner.time
        served.run(15.0)
        done.append((work(served) - before) / (served.runner.time - started))
    assert done[1] >= done[0] * 2 / 3
    assert step_seconds(served) <= 2 * BRIEF * cost(Work(1, 1, 1))
    served.runner.time += BRIEF_SECONDS  # nobody came: they are long again
    assert step_seconds(served) > 4 * BRIEF * cost(Work(1, 1, 1))


def step_seconds(served: Served) -> float:
    """The longest of some steps."""
    longest = 0.0
    for _ in range(20):
        before = served.runner.time
        served.step()
        longest = max(longest, served.runner.time - before)
    return longest


def test_the_flood_goes_on_however_many_urgent_requests_come() -> None:
    """Nobody is starved: an urgent prompt pauses what runs for one step in two at most, and each
    running sequence has its turn."""
    served = Served(40, output=400)
    served.run(3.0)
    served.longest_gap = 0.0
    end = served.runner.time + 15
    asked = 0
    tokens = served.tokens
    while served.runner.time < end:
        while len(served.engine._scheduler.waiting) < 4:
            asked += 1
            params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
            served.engine.add(
                Request(f"u{asked}", served.prompt(300), params, urgent=True), served.runner.time
            )
        served.step()
    assert served.tokens > tokens + 40 * 4
    chunk = cost(Work(256, 256 * 300, 4))
    step = BRIEF * cost(Work(1, 1, 1)) + chunk
    assert served.longest_gap <= (40 / 4 + HEAD_START) * (step + chunk)


@pytest.mark.parametrize("n_blocks", [1 << 14, 3000])
def test_an_urgent_request_waits_for_no_slot_and_no_memory(n_blocks: int) -> None:
    """It gets those of one that runs. With few blocks memory is what the flood has used up."""
    served = Served(64, n_blocks=n_blocks, output=800)
    served.run(25.0)
    for i in range(5):
        assert served.ttft(f"u{i}", urgent=True, prompt=100, output=4) < 0.3
    assert served.engine.stats.preemptions
    check_blocks(served.engine)


def test_not_before_a_class_that_comes_first() -> None:
    """An urgent request of a later class pauses nothing of an earlier one."""
    runner = FakeRunner(n_blocks=64)
    engine = Engine(runner, None, EngineConfig(max_context=256), entropy=1)
    engine.add(request("first", range(8), priority=0, max_tokens=64, ignore_eos=True), 0.0)
    for _ in range(3):
        engine.step(0.0)
    late = Request("late", tuple(range(16)), SamplingParams(max_tokens=2), 1, urgent=True)
    engine.add(late, 0.0)
    while "late" not in (told := [e.request_id for e in engine.step(0.0)]):
        assert told == ["first"]
    assert "first" in told  # in the same step


def test_the_same_tokens_whatever_pauses() -> None:
    def outputs(urgent: bool) -> dict[str, list[int]]:
        runner = FakeRunner(n_blocks=256)
        engine = Engine(runner, None, EngineConfig(max_context=256, max_sequences=8), entropy=1)
        requests = [
            Request(
                f"r{i}", tuple(range(i, i + 20)),
                SamplingParams(temperature=0.8, seed=i, max_tokens=20),
                urgent=urgent and i % 3 == 0,
            )
            for i in range(12)
        ]  # fmt: skip
        results = drive(engine, requests)
        check_idle(engine)
        return {name: result.tokens for name, result in results.items()}

    assert outputs(True) == outputs(False)


def test_the_limit_of_brief_steps_ends_with_them() -> None:
    """Guesses of a lone decode would have to fit into it for as long as nobody else comes."""
    engine = Engine(FakeRunner(n_blocks=64), None, EngineConfig(max_context=256), entropy=1)
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    engine.add(Request("u", tuple(range(8)), params, urgent=True), 0.0)
    for _ in range(3):
        engine.step(0.0)
    assert engine._scheduler.seconds_left < math.inf
    engine.step(BRIEF_SECONDS + 1)
    assert engine._scheduler.seconds_left == math.inf


def test_brief_steps_keep_no_time_for_prompts_that_there_is_no_memory_for() -> None:
    engine = Engine(FakeRunner(n_blocks=40), None, EngineConfig(max_context=160), entropy=1)
    for i in range(12):
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        engine.add(Request(f"r{i}", (i, i + 1, i + 2), params, urgent=i == 0), 0.0)
    started: set[str] = set()
    while len(started) < 12:
        started |= {e.request_id for e in engine.step(0.0) if isinstance(e, TokenEvent)}
    long = Request("long", tuple(range(40)) * 3, SamplingParams(max_tokens=1))
    engine.add(long, 0.0)
    told = [e.request_id for e in engine.step(0.0) if isinstance(e, TokenEvent)]
    assert len(told) == 12  # as many fit, and would not into its half
    assert engine.stats.waiting == 1
