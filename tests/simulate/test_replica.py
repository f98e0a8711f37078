"""A replica against the engine itself: the same requests and step times give the same of all."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from engine.fake_runner import FakeRunner
from simulate.linear import Linear, spec
from tidemill.engine.base import EngineConfig, FinishEvent, PromptEvent, Request, TokenEvent
from tidemill.engine.engine import Engine
from tidemill.engine.errors import ContextLengthError, QueueFullError
from tidemill.engine.kv_blocks import block_hash, root_hash
from tidemill.engine.params import SamplingParams
from tidemill.engine.step_time import attended
from tidemill.simulate.base import ReplicaSpec, StepWork
from tidemill.simulate.jobs import Job, Placed
from tidemill.simulate.leaps import LeapingScheduler
from tidemill.simulate.replica import Replica
from tidemill.simulate.timeline import Timeline

TIME = Linear()
VOCAB = 12
MAX_WAITING = 6
MODEL = FakeRunner(vocab_size=VOCAB)


class Tokens:
    """A text whose tokens are known, named as the engine names its blocks."""

    def __init__(self, tokens: list[int], salt: str) -> None:
        self.tokens = np.array(tokens, np.int32)
        self.salt = salt

    def extend(self, names, n, block_size, sequence) -> None:
        while len(names) < n:
            parent = names[-1] if names else root_hash("", self.salt)
            start = len(names) * block_size
            names.append(block_hash(parent, self.tokens[start : start + block_size].tobytes()))


@dataclass
class Ask:
    at: float
    request: Request
    abort_at: float | None


@dataclass
class Fate:
    """What became of a request: times of sample 0's tokens, its last end, its error."""

    times: list[float]
    ended: float = math.nan
    error: str | None = None
    cached: int = 0


class Noting(FakeRunner):
    """Keeps what its last step had to compute."""

    work: StepWork | None = None

    def forward(self, batch):
        prompt = context = decodes = decode_context = 0
        for start, end, length in zip(
            batch.query_starts, batch.query_starts[1:], batch.context_lens, strict=False
        ):
            n = int(end - start)
            if n == 1:
                decodes += 1
                decode_context += int(length)
            else:
                prompt += n
                context += attended(int(length) - n, n)
        self.work = StepWork(prompt, context, decodes, decode_context, len(batch.logit_rows))
        return super().forward(batch)


def actions(asks: list[Ask]) -> list[tuple[float, bool, Ask]]:
    """Adds and aborts in order of time; at one time as they were asked for."""
    found = [(ask.at, False, ask) for ask in asks]
    found += [(ask.abort_at, True, ask) for ask in asks if ask.abort_at is not None]
    return sorted(found, key=lambda action: action[0])


def by_engine(replica: ReplicaSpec, asks: list[Ask], **config) -> tuple[dict[str, Fate], Engine]:
    n_slots = min(replica.max_sequences, replica.max_batch_tokens)
    runner = Noting(replica.n_blocks, replica.block_size, VOCAB, replica.max_batch_tokens, n_slots)
    engine = Engine(
        runner, None,
        EngineConfig(
            max_context=replica.max_context, max_sequences=replica.max_sequences,
            max_batch_tokens=replica.max_batch_tokens,
            max_prefill_tokens=replica.max_prefill_tokens, max_waiting=MAX_WAITING, **config,
        ),
        entropy=1,
    )  # fmt: skip
    fates = {ask.request.id: Fate([]) for ask in asks}
    to_do = actions(asks)
    now = 0.0
    while to_do or engine.has_work:
        if not engine.has_work:
            now = max(now, to_do[0][0])
        while to_do and to_do[0][0] <= now:
            _, abort, ask = to_do.pop(0)
            request = ask.request
            if abort:
                engine.abort(request.id)
                continue
            try:
                engine.add(request, now)
            except ContextLengthError:
                fates[request.id] = Fate([], now, "too_long")
            except QueueFullError:
                fates[request.id] = Fate([], now, "queue_full")
        runner.work = None
        began = now
        told = engine.step(now)
        if runner.work is not None:
            now += TIME.seconds(runner.work)
        for happened in told:
            fate = fates[happened.request_id]
            match happened:
                case PromptEvent():
                    fate.cached = happened.cached_tokens
                case TokenEvent(index=0):
                    fate.times.append(now)
                case FinishEvent(reason="abort"):
                    fate.ended, fate.error = began, "abort"
                case FinishEvent():
                    fate.ended = now
    assert not runner.violations
    return fates, engine


def by_replica(spec: ReplicaSpec, asks: list[Ask], **config) -> tuple[dict[str, Fate], Replica]:
    jobs = {}
    for ask in asks:
        request, params = ask.request, ask.request.params
        prompt = list(request.prompt_token_ids)
        answer = MODEL.greedy(prompt, params.max_tokens, frozenset(params.stop_token_ids))
        jobs[request.id] = Job(
            text=Tokens(prompt + answer, request.salt), prompt_tokens=len(prompt),
            output_tokens=len(answer), max_tokens=params.max_tokens, n=params.n,
            priority=request.priority, urgent=request.urgent, keep_times=True,
        )  # fmt: skip
    replica = Replica(spec, max_waiting=MAX_WAITING, **config)

    def on_step(stepping) -> None:
        _ = stepping.end() if stepping.ending else stepping.begin()
        timeline.follow(stepping)

    timeline = Timeline(on_step)

    def act(job: Job, abort: bool) -> None:
        (replica.abort if abort else replica.submit)(job, timeline.now)
        timeline.follow(replica)

    for at, abort, ask in actions(asks):
        timeline.call(at, lambda job=jobs[ask.request.id], abort=abort: act(job, abort))
    timeline.run(lambda: True)
    fates = {
        name: Fate(job.times.tolist(), job.ended, job.error, job.cached_tokens)
        for name, job in jobs.items()
    }
    return fates, replica


@st.composite
def workloads(draw) -> list[Ask]:
    beginnings = [[i % VOCAB for i in range(24)], [(3 * i) % VOCAB for i in range(24)]]
    asks = []
    at = 0.0
    for number in range(draw(st.integers(1, 14))):
        shared = draw(st.sampled_from(beginnings))[: draw(st.sampled_from([0, 8, 11, 24]))]
        own = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30))
        params = SamplingParams(
            temperature=0.0,
            max_tokens=draw(st.integers(0, 40)),
            stop_token_ids=tuple(draw(st.lists(st.integers(0, VOCAB - 1), max_size=1))),
            n=draw(st.sampled_from([1, 1, 1, 2, 3])),
        )
        request = Request(
            str(number), (*shared, *own), params, priority=draw(st.sampled_from([0, 0, 1])),
            salt=draw(st.sampled_from(["", "", "x"])),
            urgent=draw(st.sampled_from([False] * 7 + [True])),
        )  # fmt: skip
        # Multiples of what steps take, so that arrivals coincide with their ends.
        at += draw(st.integers(0, 40)) * draw(st.sampled_from([2**-8, 2**-4, 0.0]))
        abort = None
        if draw(st.integers(0, 5)) == 0:
            abort = at + draw(st.integers(0, 60)) * 2**-6
        asks.append(Ask(at, request, abort))
    return asks


specs = st.builds(
    spec,
    n_blocks=st.sampled_from([12, 20, 64]),
    block_size=st.sampled_from([1, 4, 8]),
    max_context=st.sampled_from([64, 100]),
    max_sequences=st.sampled_from([1, 3, 8]),
    max_batch_tokens=st.sampled_from([8, 32]),
    max_prefill_tokens=st.sampled_from([3, 8, 16]),
)


@given(specs, workloads(), st.booleans(), st.sampled_from([0, 1, 8]))
@settings(
    derandomize=True, max_examples=150, deadline=None, suppress_health_check=list(HealthCheck)
)
def test_it_is_the_engine(
    replica_spec: ReplicaSpec, asks: list[Ask], caching: bool, max_preemptions: int
) -> None:
    config = {"prefix_caching": caching, "max_preemptions": max_preemptions}
    true, engine = by_engine(replica_spec, asks, **config)
    simulated, replica = by_replica(replica_spec, asks, **config)
    assert simulated == true
    stats, usage = engine.stats, replica.usage
    assert usage.preemptions == stats.preemptions
    assert usage.steps == stats.steps
    assert usage.output_tokens == stats.generated_tokens
    assert usage.prompt_tokens == stats.prompt_tokens
    assert usage.cached_tokens == stats.cached_prompt_tokens
    assert replica._kv.cached == stats.cached_blocks
    assert replica._kv.free == stats.free_blocks
    assert replica._scheduler._growth == engine._scheduler._growth
    if stats.preemptions:
        event("preempted")
    if stats.cached_prompt_tokens:
        event("found in the prefix cache")


@st.composite
def jobs(draw) -> list[Job]:
    at = 0.0
    found = []
    for number in range(draw(st.integers(1, 25))):
        at += draw(st.floats(0, 3))
        text = Placed(b"c%d " % number, ((b"b", draw(st.sampled_from([0, 40]))),))
        found.append(
            Job(
                text=text,
                prompt_tokens=draw(st.integers(41, 300)),
                output_tokens=draw(st.integers(1, 400)),
                due=at,
                keep_times=draw(st.booleans()),
            )
        )
        found[-1].counted = True
    return found


def played(replica_spec: ReplicaSpec, jobs: list[Job]) -> tuple[list[object], Replica, list]:
    gaps: list[tuple[float, int]] = []

    def on_gap(seconds: float, n: int) -> None:
        gaps.extend([(seconds, 1)] * n)

    replica = Replica(replica_spec, on_gap=on_gap)

    def on_step(stepping) -> None:
        _ = stepping.end() if stepping.ending else stepping.begin()
        timeline.follow(stepping)

    def submit(job: Job) -> None:
        replica.submit(job, timeline.now)
        timeline.follow(replica)

    timeline = Timeline(on_step)
    for job in jobs:
        job.clear()
        timeline.call(job.due, lambda job=job: submit(job))
    timeline.run(lambda: True)
    fates = [
        (job.first, job.last, job.ended, job.cached_tokens, job.times and job.times.tolist())
        for job in jobs
    ]
    return fates, replica, sorted(gaps)


@given(jobs(), st.sampled_from([40, 90, 400]), st.sampled_from([2, 6]))
@settings(derandomize=True, max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_leaps_are_single_steps(asked: list[Job], n_blocks: int, n_slots: int) -> None:
    uneven = Linear(0.0137, 0.0021, 1.7e-6, 0.0005)
    replica_spec = spec(
        step_time=uneven, n_blocks=n_blocks, max_context=1000, max_sequences=n_slots
    )
    by_leaps = played(replica_spec, asked)
    alike = LeapingScheduler.alike
    leaps = 0

    def never(self, most: int) -> int:
        nonlocal leaps
        leaps += alike(self, most) > 1
        return 0

    LeapingScheduler.alike = never
    try:
        by_steps = played(replica_spec, asked)
    finally:
        LeapingScheduler.alike = alike
    assert by_leaps[0] == by_steps[0]
    assert by_leaps[2] == by_steps[2]
    one, other = by_leaps[1].usage, by_steps[1].usage
    assert (one.steps, one.output_tokens, one.preemptions) == (
        other.steps, other.output_tokens, other.preemptions
    )  # fmt: skip
    assert math.isclose(one.busy, other.busy, rel_tol=1e-9)
    assert by_leaps[1]._scheduler._growth == by_steps[1]._scheduler._growth
    if leaps:
        event("leapt")


def test_a_request_that_is_too_long_and_a_full_queue_are_refused() -> None:
    replica = Replica(spec(max_context=64, max_sequences=1), max_waiting=1)
    sent = [Job(text=Placed(b"%d" % i), prompt_tokens=10, output_tokens=5) for i in range(3)]
    long = Job(text=Placed(b"l"), prompt_tokens=60, output_tokens=5)
    replica.submit(long, 0.0)
    replica.submit(sent[0], 0.0)
    assert [job.error for job in replica.begin()] == ["too_long"]
    replica.submit(sent[1], 0.0)
    replica.submit(sent[2], 0.0)
    replica.end()
    assert [job.error for job in replica.begin()] == ["queue_full"]
    assert sent[2].ended == replica._steps.began
