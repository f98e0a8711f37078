"""Answers that must look in a certain way: what is chosen is the best of what is allowed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt
import pytest

from engine.fake_runner import FakeRunner
from engine.helpers import Collector, check_blocks
from tidemill.engine.base import EngineConfig, Request
from tidemill.engine.engine import Engine
from tidemill.engine.lookup import PromptLookup
from tidemill.engine.params import SamplingParams

VOCAB = 40


class Cycle:
    """Token i must be one of sets[i % len(sets)]; complete after ``length`` tokens. Fails when it
    has taken ``fails_after`` of them."""

    def __init__(
        self, sets: Sequence[set[int]], length: int = 10**9, fails_after: int = 10**9
    ) -> None:
        self.sets = sets
        self.length = length
        self.fails_after = fails_after
        self.taken = 0
        self.threads: set[int] = set()

    def copy(self) -> Cycle:
        fresh = Cycle(self.sets, self.length, self.fails_after)
        fresh.taken = self.taken
        fresh.threads = self.threads
        return fresh

    def fill(self, mask: npt.NDArray[np.uint32]) -> None:
        self.threads.add(threading.get_ident())
        if self.taken >= self.fails_after:
            raise ValueError("too complex")
        mask[:] = 0
        for token in self.sets[self.taken % len(self.sets)]:
            mask[token // 32] |= np.uint32(1 << token % 32)

    def accept(self, token_id: int) -> bool:
        allowed = token_id in self.sets[self.taken % len(self.sets)]
        self.taken += 1
        return allowed

    @property
    def complete(self) -> bool:
        return self.taken >= self.length


ODD_EVEN = [set(range(1, VOCAB, 2)), set(range(0, VOCAB, 2)), {3, 5, 38}]


def oracle(
    runner: FakeRunner, prompt: Sequence[int], sets: Sequence[set[int]], n: int
) -> list[int]:
    tokens = list(prompt)
    for i in range(n):
        logits = runner.logits_after(tokens).copy()
        logits[[t for t in range(VOCAB) if t not in sets[i % len(sets)]]] = -np.inf
        tokens.append(int(np.argmax(logits)))
    return tokens[len(prompt) :]


def new_engine(runner: FakeRunner, **options: object) -> Engine:
    config = EngineConfig(
        max_context=64, max_batch_tokens=64, max_sequences=8, adaptive_drafts=False
    )
    return Engine(runner, None, config, entropy=1, **options)  # type: ignore[arg-type]


def request(
    name: str, prompt: Sequence[int], constraint: Cycle | None, **params: object
) -> Request:
    values = {"temperature": 0.0, "max_tokens": 12, **params}
    return Request(name, tuple(prompt), SamplingParams(**values), constraint=constraint)  # type: ignore[arg-type]


def run(engine: Engine, *requests: Request) -> Collector:
    collector = Collector()
    for each in requests:
        engine.add(each, 0.0)
    for _ in range(400):
        if not engine.has_work:
            break
        collector.take(engine.step(0.0))
        check_blocks(engine)
    assert not engine.has_work
    return collector


def direct(work: Callable[[], None]) -> Callable[[], None]:
    """An aside that does what it is given at once, and tells of failures when asked."""
    try:
        work()
    except Exception as error:
        failure = error

        def fail() -> None:
            raise failure

        return fail
    return lambda: None


@pytest.mark.parametrize("aside", [None, direct])
def test_the_best_of_what_is_allowed_is_taken(
    aside: Callable[[Callable[[], None]], Callable[[], None]] | None,
) -> None:
    runner = FakeRunner()
    prompts = {"a": [1, 2, 3], "b": [4, 5], "c": [6, 7, 8, 9, 10]}
    found = run(
        new_engine(runner, aside=aside),
        request("a", prompts["a"], Cycle(ODD_EVEN)),
        request("b", prompts["b"], None),
        request("c", prompts["c"], Cycle(ODD_EVEN[::-1])),
    ).results
    assert found["a"].tokens == oracle(runner, prompts["a"], ODD_EVEN, 12)
    assert found["b"].tokens == runner.greedy(prompts["b"], 12)
    assert found["c"].tokens == oracle(runner, prompts["c"], ODD_EVEN[::-1], 12)


@pytest.mark.parametrize(("aside", "each"), [(None, 3), (direct, 1)])
def test_what_it_costs_is_counted(
    aside: Callable[[Callable[[], None]], Callable[[], None]] | None, each: int
) -> None:
    """By a clock that goes on by a second whenever it is read: filling a mask takes one, and what
    is done beside the step is no time of the step's."""
    engine = new_engine(FakeRunner(), aside=aside, clock=map(float, count()).__next__)
    run(engine, request("a", [1, 2], Cycle(ODD_EVEN)), request("b", [3, 4], None))
    stats = engine.stats
    assert (sum(stats.mask_seconds.counts), stats.mask_seconds.total) == (12, 12)
    assert stats.constraint_seconds == 12 * each + 12  # and a second to follow each token


def test_guesses_change_nothing() -> None:
    """A prompt that repeats itself, so that there are guesses, many of which are not allowed."""
    runner = FakeRunner()
    sets = [{3, 5}, {7, 9}]
    prompt = [3, 7, 3, 7, 3, 7, 3, 7]
    engine = new_engine(runner, proposer=PromptLookup())
    found = run(engine, request("a", prompt, Cycle(sets)), request("b", prompt, None)).results
    assert found["a"].tokens == oracle(runner, prompt, sets, 12)
    assert found["b"].tokens == runner.greedy(prompt, 12)
    assert engine.stats.drafted_tokens > 0


def test_every_sample_follows_its_own() -> None:
    found = run(
        new_engine(FakeRunner()),
        request("a", [1, 2, 3], Cycle(ODD_EVEN), n=4, temperature=2.0, seed=3),
    ).results["a"]
    assert len(found.samples) == 4
    for sample in found.samples.values():
        assert all(t in ODD_EVEN[i % 3] for i, t in enumerate(sample.tokens))
    assert len({tuple(s.tokens) for s in found.samples.values()}) > 1


def test_an_answer_ends_when_it_is_complete() -> None:
    found = run(new_engine(FakeRunner()), request("a", [1, 2], Cycle(ODD_EVEN, length=5)))
    sample = found.results["a"].samples[0]
    assert len(sample.tokens) == 5
    assert sample.finish is not None
    assert (sample.finish.reason, sample.finish.stop_reason) == ("stop", None)


def test_what_is_preempted_goes_on_where_it_was() -> None:
    runner = FakeRunner(n_blocks=10)
    prompts = [[i, i + 1, i + 2] for i in range(4)]
    engine = new_engine(runner)
    found = run(
        engine,
        *(
            request(str(i), prompt, Cycle(ODD_EVEN), max_tokens=20)
            for i, prompt in enumerate(prompts)
        ),
    ).results
    assert engine.stats.preemptions > 0
    for i, prompt in enumerate(prompts):
        assert found[str(i)].tokens == oracle(runner, prompt, ODD_EVEN, 20)


@pytest.mark.parametrize("aside", [None, direct])
@pytest.mark.parametrize("fails_after", [0, 3])
@pytest.mark.parametrize("proposer", [None, PromptLookup])
def test_one_that_fails_takes_nobody_with_it(
    aside: Callable[[Callable[[], None]], Callable[[], None]] | None,
    fails_after: int,
    proposer: type[PromptLookup] | None,
) -> None:
    runner = FakeRunner()
    prompt = [3, 7, 3, 7, 3, 7]
    engine = new_engine(runner, aside=aside, proposer=proposer and proposer())
    found = run(
        engine,
        request("bad", prompt, Cycle([{3}, {7}], fails_after=fails_after), n=2),
        request("good", [4, 5], Cycle(ODD_EVEN)),
    ).results
    error = found["bad"].error
    assert error is not None
    assert "too complex" in error.message
    assert found["good"].tokens == oracle(runner, [4, 5], ODD_EVEN, 12)
    assert engine.stats.free_blocks + engine.stats.cached_blocks == runner.kv.n_blocks


def test_a_constraint_that_allows_nothing_ends_its_request_only() -> None:
    runner = FakeRunner()
    found = run(
        new_engine(runner), request("a", [1, 2], Cycle([{1}, set()])), request("b", [4, 5], None)
    ).results
    assert found["a"].error is not None
    assert found["b"].tokens == runner.greedy([4, 5], 12)


def test_a_failing_step_is_repeated_with_the_same_masks() -> None:
    runner = FakeRunner()
    engine = new_engine(runner, aside=direct)
    collector = Collector()
    engine.add(request("a", [1, 2], Cycle(ODD_EVEN)), 0.0)
    engine.add(request("b", [4, 5], Cycle(ODD_EVEN)), 0.0)
    collector.take(engine.step(0.0))
    runner.fail_next = 1
    while engine.has_work:
        collector.take(engine.step(0.0))
    assert collector.results["a"].tokens == oracle(runner, [1, 2], ODD_EVEN, 12)
    assert collector.results["b"].tokens == oracle(runner, [4, 5], ODD_EVEN, 12)


def test_masks_are_filled_beside_the_forward_step() -> None:
    """Each begins before the step that its token comes from, and is waited for after it."""
    runner = FakeRunner()
    order: list[str] = []
    forward = runner.forward

    def noted(batch: object) -> npt.NDArray[np.float32]:
        order.append("forward")
        return forward(batch)  # type: ignore[arg-type]

    def aside(work: Callable[[], None]) -> Callable[[], None]:
        order.append("begin")

        def wait() -> None:
            order.append("wait")
            work()

        return wait

    runner.forward = noted  # type: ignore[method-assign, assignment]
    run(new_engine(runner, aside=aside), request("a", [1, 2], Cycle(ODD_EVEN), max_tokens=3))
    assert order == ["begin", "forward", "wait"] * 3


def test_an_end_token_ends_it_where_it_is_allowed() -> None:
    runner = FakeRunner()
    found = run(
        new_engine(runner),
        request("a", [1, 2], Cycle([{1}, {2}, {9}]), stop_token_ids=[9]),
    ).results["a"]
    assert found.tokens == [1, 2, 9]
    finish = found.samples[0].finish
    assert finish is not None
    assert (finish.reason, finish.stop_reason) == ("stop", 9)
