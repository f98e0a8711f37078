"""Many replicas behind a router, in virtual time: who gets which request, who dies, who is added.

    send -> policy -> front end of a replica, one request after the other -> its engine

Everything is deterministic: what is drawn comes from seeds, and what happens at one time has a
fixed order (timeline.py).
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from typing import Literal

from tidemill.records import dataclass
from tidemill.simulate.base import ReplicaSpec, StepWork
from tidemill.simulate.changes import Autoscale, Failure, Failures
from tidemill.simulate.jobs import Job
from tidemill.simulate.replica import OnGap, Replica
from tidemill.simulate.routing import Policy
from tidemill.simulate.timeline import Action, Stepping, Timeline

State = Literal["starting", "up", "draining", "down", "gone"]
_CONTEXT = 512  # tokens of the sequences by which replicas are compared


class Member:
    """A replica in the cluster. ``jobs``: what was sent to it and has not ended, by id().
    ``weight``: tokens a second, all places taken. ``life``: which of its lives this is.
    ``since``: from when on its time is still to be counted."""

    def __init__(self, number: int, spec: ReplicaSpec, on_gap: OnGap, now: float) -> None:
        self.number = number
        self.spec = spec
        self.weight = _capacity(spec)
        self.outstanding = 0
        self.replica = Replica(spec, on_gap=on_gap)
        self.state: State = "up"
        self.jobs: dict[int, Job] = {}
        self.front_free = now
        self.life = 0
        self.since = now


@dataclass(slots=True)
class Counts:
    """What happened. ``most``: replicas at once. ``replica_seconds``: of all that were there,
    starting ones and such as are repaired included."""

    failures: int = 0
    retries: int = 0
    added: int = 0
    removed: int = 0
    most: int = 0
    replica_seconds: float = 0.0


class Cluster:
    """Plays jobs on ``specs``. ``on_end`` is told of each that has ended, well or not."""

    def __init__(
        self,
        specs: Sequence[ReplicaSpec],
        policy: Policy,
        *,
        on_end: Callable[[Job], None],
        on_gap: OnGap = lambda seconds, n: None,
        failures: Failures | None = None,
        autoscale: Autoscale | None = None,
        seed: int = 0,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        """``part`` (i, n): only the replicas i, i + n ... are played, which makes sense where the
        policy is static and nothing fails or is scaled. New replicas are as the first. Raises
        ValueError for what cannot be."""
        if not specs:
            raise ValueError("a cluster needs at least one replica")
        if autoscale is not None and not autoscale.least <= len(specs) <= autoscale.most:
            raise ValueError(
                f"{len(specs)} replicas to begin with are not between {autoscale.least} and "
                f"{autoscale.most}, the limits of scaling"
            )
        self.counts = Counts(most=len(specs))
        self.members: list[Member] = []
        self._specs = specs
        self._policy = policy
        self._on_end = on_end
        self._on_gap = on_gap
        self._failures = failures or Failures()
        self._autoscale = autoscale
        self._rng = random.Random(f"failures {seed}")
        self._part, self._parts = part
        self._by_replica: dict[int, Member] = {}
        self._where: dict[int, Member] = {}  # by id() of jobs
        self._up: list[Member] = []
        self._unsent: list[Job] = []  # while nobody is up
        self._timeline = Timeline(self._on_step)
        self._changed = 0.0
        for spec in specs:
            self._await_failure(self._join(spec))
        self._list_up()
        for failure in self._failures.planned:
            if failure.replica >= len(specs):
                raise ValueError(f"replica {failure.replica} cannot fail: there is none")
            self.call(failure.at, functools.partial(self._fail_as_planned, failure))
        if autoscale is not None:
            self.call(autoscale.interval, functools.partial(self._scale, autoscale))

    # ---- for those who load it

    @property
    def now(self) -> float:
        return self._timeline.now

    def call(self, at: float, action: Action) -> None:
        self._timeline.call(at, action)

    def send(self, job: Job) -> bool:
        """Now. False if that is not the business of this part of the cluster."""
        if not self._up:
            self._unsent.append(job)
            return True
        member = self._up[self._policy.choose(job.key, self._up)]
        if member.number % self._parts != self._part:
            return False
        job.tries += 1
        self._where[id(job)] = member
        member.jobs[id(job)] = job
        member.outstanding += 1
        begun = max(self.now, member.front_free)
        member.front_free = begun + member.spec.front.seconds(job.prompt_tokens)
        self.call(member.front_free, functools.partial(self._hand_in, member, job, job.tries))
        return True

    def give_up(self, job: Job) -> None:
        """Its client no longer waits; the engine hears of it before its next step."""
        if (member := self._where.get(id(job))) is not None:
            self._take_out(member, job)
            member.replica.abort(job, self.now)
            self._timeline.follow(member.replica)
        else:
            self._unsent.remove(job)
        self._end(job, "timeout")

    def run(self, going: Callable[[], bool]) -> None:
        """As long as ``going`` says; it ends when nothing more can happen, too: what is then still
        there, because no replica is, is lost."""
        self._timeline.run(going)
        for job in self._unsent:
            self._end(job, "lost")
        self._unsent = []
        for member in self.members:
            self._count_time(member)

    # ---- jobs

    def _hand_in(self, member: Member, job: Job, attempt: int) -> None:
        if id(job) in member.jobs and job.tries == attempt:  # it may have died in between
            member.replica.submit(job, self.now)
            self._timeline.follow(member.replica)

    def _on_step(self, stepping: Stepping) -> None:
        assert isinstance(stepping, Replica)
        ended = stepping.end() if stepping.ending else stepping.begin()
        if ended:
            member = self._by_replica[id(stepping)]
            for job in ended:
                if id(job) in member.jobs:  # or it was given up before
                    self._take_out(member, job)
                    self._on_end(job)
            if member.state == "draining" and not member.jobs:
                self._leave(member)
        self._timeline.follow(stepping)

    def _take_out(self, member: Member, job: Job) -> None:
        del member.jobs[id(job)], self._where[id(job)]
        member.outstanding -= 1

    def _end(self, job: Job, error: str) -> None:
        job.error = error
        job.ended = self.now
        self._on_end(job)

    # ---- members

    def _join(self, spec: ReplicaSpec) -> Member:
        member = Member(len(self.members), spec, self._on_gap, self.now)
        self.members.append(member)
        self._by_replica[id(member.replica)] = member
        return member

    def _leave(self, member: Member) -> None:
        self._count_time(member)
        member.state = "gone"
        self.counts.removed += 1

    def _count_time(self, member: Member) -> None:
        if member.state != "gone":
            self.counts.replica_seconds += self.now - member.since
            member.since = self.now

    def _list_up(self) -> None:
        self._up = [member for member in self.members if member.state == "up"]

    def _start(self, member: Member, seconds: float) -> None:
        """Have it up after so many seconds, unless it is removed before."""

        def ready() -> None:
            if member.state != "starting":
                return
            member.state = "up"
            member.front_free = self.now
            self._list_up()
            self._await_failure(member)
            unsent, self._unsent = self._unsent, []
            for job in unsent:
                self.send(job)

        if member.state == "gone":
            return
        member.state = "starting"
        self.call(self.now + seconds, ready)

    # ---- failures

    def _await_failure(self, member: Member) -> None:
        mtbf = self._failures.mtbf
        if mtbf is None:
            return
        life = member.life

        def fail() -> None:
            if member.life == life:
                mttr = self._failures.mttr
                self._fail(member, self._rng.expovariate(1 / mttr) if mttr else 0.0)

        self.call(self.now + self._rng.expovariate(1 / mtbf), fail)

    def _fail_as_planned(self, failure: Failure) -> None:
        self._fail(self.members[failure.replica], failure.seconds)

    def _fail(self, member: Member, seconds: float) -> None:
        if member.state not in ("up", "draining"):
            return
        self.counts.failures += 1
        member.life += 1
        member.replica.drop()
        jobs = list(member.jobs.values())
        for job in jobs:
            self._take_out(member, job)
        if member.state == "draining":
            self._leave(member)
        elif seconds < math.inf:
            member.state = "down"
            start = functools.partial(self._start, member, self._failures.start)
            self.call(self.now + seconds, start)
        else:
            self._leave(member)
        self._list_up()
        for job in jobs:
            if job.tries > self._failures.retries:
                self._end(job, "lost")
            else:
                self.counts.retries += 1
                job.clear()
                self.send(job)

    # ---- scaling

    def _scale(self, autoscale: Autoscale) -> None:
        self.call(self.now + autoscale.interval, functools.partial(self._scale, autoscale))
        present = [m for m in self.members if m.state in ("starting", "up", "down")]
        outstanding = sum(m.outstanding for m in self.members) + len(self._unsent)
        places = sum(m.spec.max_sequences for m in present) / max(1, len(present))
        wanted = autoscale.wanted(outstanding, places or self._specs[0].max_sequences)
        if wanted > len(present):
            for _ in range(wanted - len(present)):
                self._start(self._join(self._specs[0]), autoscale.start)
                self.counts.added += 1
            self._changed = self.now
        elif wanted < len(present) and self.now - self._changed >= autoscale.cooldown:
            # Those first that are not there yet, then those with the least to do.
            present.sort(key=lambda m: (m.state == "up", m.outstanding, -m.number))
            for member in present[: len(present) - wanted]:
                member.state = "draining"
                if not member.jobs:
                    self._leave(member)
            self._changed = self.now
            self._list_up()
        there = sum(m.state != "gone" for m in self.members)
        self.counts.most = max(self.counts.most, there)


def _capacity(spec: ReplicaSpec) -> float:
    n = spec.max_sequences
    context = n * min(_CONTEXT, spec.max_context)
    seconds = spec.step_time.seconds(StepWork(0, 0, n, context, n))
    if not 0 < seconds < math.inf:
        raise ValueError(f"{spec.name}: a step of {n} tokens takes {seconds} s")
    return n / seconds
