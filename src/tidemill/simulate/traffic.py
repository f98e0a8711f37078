"""The load of a scenario as jobs: what ``bench`` would send, when, and how long it would be.

Prompts are those of the bench, number for number and seed for seed, by their lengths. Open and
closed loops, conversations, timeouts and the measured window work as in ``bench/run.py``.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterable, Iterator

import msgspec

from tidemill.bench.arrivals import Closed, Gamma
from tidemill.bench.run import PAUSE_AFTER_ERROR
from tidemill.bench.scenario import Prepared, Starts
from tidemill.bench.workload import PromptSizes
from tidemill.records import dataclass
from tidemill.simulate.cluster import Cluster
from tidemill.simulate.figures import Tally
from tidemill.simulate.jobs import Job, Placed
from tidemill.simulate.timeline import Action

_SHORTEST_PERIOD = 1.0
"""Of a profile, in seconds: what changes faster is burstiness."""

_CHARACTERS = 4
"""Of a task's text in a token, about."""


@dataclass(frozen=True, slots=True)
class Template:
    """Tokens that a chat template adds. ``before``: to the first question, if no system message is
    given; else ``before_system`` and ``after_system``, to the question. ``after``: from a question
    to its answer. ``between``: from an answer to the next question."""

    before: int = 0
    before_system: int = 0
    after_system: int = 0
    after: int = 0
    between: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """How the rate changes: ``points`` of seconds and the factor of the rate from then on; they
    come again every ``period`` seconds, if there is one."""

    points: tuple[tuple[float, float], ...]
    period: float | None = None

    def __post_init__(self) -> None:
        times = [at for at, _ in self.points]
        if not times or times[0] != 0 or not all(a < b for a, b in itertools.pairwise(times)):
            raise ValueError("a profile begins at 0 s, and each point comes after the one before")
        if not all(0 <= factor < math.inf for _, factor in self.points):
            raise ValueError("the factors of a profile are from 0 on")
        if self.period is None:
            if not self.points[-1][1]:
                raise ValueError("a profile that does not come again ends with a factor above 0")
        elif not max(times[-1], _SHORTEST_PERIOD) < self.period < math.inf:
            raise ValueError(
                "the period of a profile is longer than all its points, and than "
                f"{_SHORTEST_PERIOD:g} s"
            )
        elif not any(factor for _, factor in self.points):
            raise ValueError("a profile has a factor above 0")

    def warp(self, offsets: Iterable[float]) -> Iterator[float]:
        """When requests are due that would be at ``offsets`` if all factors were 1."""
        segments = self._segments()
        begin, end, factor = next(segments)
        past = 0.0  # of the offsets, before this segment
        for offset in offsets:
            while not factor or offset - past > factor * (end - begin):
                past += factor * (end - begin) if factor else 0.0
                begin, end, factor = next(segments)
            yield begin + (offset - past) / factor

    def offset(self, seconds: float) -> float:
        """What would be due at ``seconds`` is due at that, if all factors were 1."""
        found = 0.0
        for begin, end, factor in self._segments():
            found += factor * (min(end, seconds) - begin)
            if end >= seconds:
                break
        return found

    def _segments(self) -> Iterator[tuple[float, float, float]]:
        ends = [at for at, _ in self.points[1:]] + [self.period or math.inf]
        for cycle in itertools.count():
            start = cycle * (self.period or 0.0)
            for (at, factor), end in zip(self.points, ends, strict=True):
                yield start + at, start + end, factor


class _Talk:
    """A conversation. ``tokens``: of all said so far, the answer to the last question included."""

    __slots__ = ("index", "pause", "stream", "text", "tokens", "turn", "turns")

    def __init__(self, index: int, stream: _Stream | None) -> None:
        self.index = index
        self.stream = stream
        self.turn = 0
        self.turns = 1
        self.pause = 0.0
        self.tokens = 0
        self.text = Placed(b"")


class _Stream:
    """One of those of a closed loop; ``begun``: its first request has ended."""

    __slots__ = ("begun",)

    def __init__(self) -> None:
        self.begun = False


class Traffic:
    """Sends a scenario's requests to a cluster; ``tally`` is told of each that has ended.

    ``probe``: like the bench, begin with one request by itself (the cluster must be whole then).
    """

    def __init__(
        self, prepared: Prepared, seed: int, tally: Tally, *, template: Template | None = None,
        profile: Profile | None = None, keep_times: bool = False, probe: bool = True,
    ) -> None:  # fmt: skip
        scenario, load = prepared.scenario, prepared.load
        if isinstance(load, Starts):
            raise ValueError(f"{scenario.name} measures starts, which are not simulated")
        if profile is not None and not isinstance(load, Gamma):
            raise ValueError(f"{scenario.name}: only a rate can follow a profile")
        self._scenario = scenario
        self._load = load
        self._workload = prepared.workload
        self._seed = seed
        self._shapes = {shape.name: i for i, shape in enumerate(self._workload.shapes)}
        self._tally = tally
        plain = scenario.api == "completions"
        self._template = Template() if plain or template is None else template
        self._profile = profile
        self._keep_times = keep_times
        self._probe = probe
        self._numbers = itertools.count(0 if probe else 1)
        self._under_way: dict[int, tuple[Job, _Talk]] = {}  # by id() of the job, the oldest first
        self._expiring = False
        self._to_come = 0  # what was asked to be called later, and may send something
        self._closing = math.inf
        self._finished = 0  # requests, within the window
        self._beginners = 0  # streams whose first request has not ended

    def play(self, cluster: Cluster) -> None:
        """All of it, until what was sent has ended."""
        self._cluster = cluster
        if self._probe:
            self._send(self._talk(), 0.0)
        else:
            self._begin()
        cluster.run(lambda: bool(self._under_way) or self._to_come > 0)

    def _later(self, at: float, action: Action) -> None:
        def act() -> None:
            self._to_come -= 1
            action()

        self._to_come += 1
        self._cluster.call(at, act)

    def _begin(self) -> None:
        """The load itself."""
        start = self._cluster.now
        if isinstance(self._load, Closed):
            n = self._beginners = self._load.concurrency
            for i in range(n):
                begin = functools.partial(self._next, _Stream())
                self._later(start + self._scenario.warmup * i / n, begin)
        else:
            opened = start + self._scenario.warmup
            self._closing = opened + self._scenario.seconds
            self._tally.opened, self._tally.closed = opened, self._closing
            offsets = self._load.due(random.Random(self._seed))
            if self._profile is not None:
                offsets = self._profile.warp(offsets)
            self._arrive(start, offsets)

    def _arrive(self, start: float, offsets: Iterator[float]) -> None:
        """Have the next request of an open loop sent when it is due, and then the one after it."""
        due = start + next(offsets, math.inf)
        if due >= self._closing:
            return

        def send() -> None:
            self._send(self._talk(), due)
            self._arrive(start, offsets)

        self._later(due, send)

    def _next(self, stream: _Stream) -> None:
        """The next request of a stream of a closed loop."""
        if self._closing == math.inf:
            self._send(self._talk(stream), self._cluster.now)

    # ---- requests

    def _talk(self, stream: _Stream | None = None) -> _Talk:
        return _Talk(next(self._numbers), stream)

    def _send(self, talk: _Talk, due: float) -> None:
        job = self._job(talk, due)
        if self._cluster.send(job):
            self._under_way[id(job)] = (job, talk)
            if not self._expiring:
                self._expiring = True
                self._cluster.call(due + self._scenario.timeout, self._expire)

    def _job(self, talk: _Talk, due: float) -> Job:
        sizes = self._workload.sizes(talk.index, talk.turn)
        shape = sizes.shape
        question = sizes.words + task_tokens(sizes) + self._template.after
        if talk.turn:
            prompt = talk.tokens + self._template.between + question
        else:
            talk.text = Placed(b"c%d " % talk.index, self._parts(sizes))
            talk.turns, talk.pause = shape.turns, shape.pause
            prompt = talk.text.parts[-1][1] + question
        talk.tokens = prompt + sizes.max_tokens
        alone = shape.turns > 1 or not sizes.parts
        job = Job(
            text=talk.text, prompt_tokens=prompt, output_tokens=sizes.max_tokens, due=due,
            conversation=talk.index, turn=talk.turn, shape=self._shapes[shape.name],
            key=talk.text.conversation if alone else talk.text.parts[-1][0],
            keep_times=self._keep_times,
        )  # fmt: skip
        job.counted = self._tally.opened <= due < self._closing
        return job

    def _parts(self, sizes: PromptSizes) -> tuple[tuple[bytes, int], ...]:
        """What a prompt begins with and has in common with others, as ``Placed`` has it: what the
        template puts before it first."""
        template = self._template
        system = bool(sizes.parts) and sizes.shape.system
        end = template.before_system if system else template.before
        parts = [] if system else [(b"b ", end)]
        for name, tokens in sizes.parts:
            end += tokens
            parts.append((b"b" + name.encode() + b" ", end))
        if system:
            parts[-1] = (parts[-1][0], end + template.after_system)
        return tuple(parts)

    def _expire(self) -> None:
        """Give up what has taken too long; come again when the next may have."""
        self._expiring = False
        while self._under_way and not self._expiring:
            job, _ = next(iter(self._under_way.values()))
            deadline = job.due + self._scenario.timeout
            if deadline <= self._cluster.now:
                self._cluster.give_up(job)
            else:
                self._expiring = True
                self._cluster.call(deadline, self._expire)

    # ---- ends

    def ended(self, job: Job) -> None:
        """For the cluster to tell of jobs that have ended."""
        _, talk = self._under_way.pop(id(job))
        if talk.stream is not None:
            self._count(talk.stream)
        self._tally.add(job)
        if talk.index == 0:  # the probe
            self._begin()
            return
        now = self._cluster.now
        goes_on = job.error is None and talk.turn + 1 < talk.turns
        pause = talk.pause if goes_on else 0.0
        if talk.stream is not None and job.error is not None:
            pause += PAUSE_AFTER_ERROR
        due = now + pause
        if goes_on:
            talk.turn += 1
            self._later(due, functools.partial(self._go_on, talk, due))
        elif talk.stream is not None:
            self._later(due, functools.partial(self._next, talk.stream))

    def _go_on(self, talk: _Talk, due: float) -> None:
        if due < self._closing:
            self._send(talk, due)

    def _count(self, stream: _Stream) -> None:
        """An answer of a closed loop: does the window open or close with it?"""
        now = self._cluster.now
        if not stream.begun:
            stream.begun = True
            self._beginners -= 1
            if not self._beginners:
                self._tally.opened = now
                self._cluster.call(now + self._scenario.seconds, self._expire_window)
        elif self._tally.opened <= now and self._closing == math.inf:
            self._finished += 1
            if now - self._tally.opened >= self._scenario.seconds:
                self._close_if_full()

    def _expire_window(self) -> None:
        # Where all streams rest there is no request whose end could close the window.
        if self._closing == math.inf and not self._under_way:
            self._close_if_full()

    def _close_if_full(self) -> None:
        if self._finished >= self._scenario.requests:
            self._closing = self._tally.closed = self._cluster.now


def task_tokens(sizes: PromptSizes) -> int:
    """Of a task in a prompt, its tools' descriptions included; about."""
    task = sizes.shape.task
    if task is None:
        return 0
    tools = len(msgspec.json.encode(task.tools)) if task.tools else 0
    return (len(sizes.task) + tools) // _CHARACTERS
