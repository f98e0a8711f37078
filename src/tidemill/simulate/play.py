"""A scenario on a deployment, played once: what came of it."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from dataclasses import fields, replace

from tidemill.bench.arrivals import Closed, Gamma, Trace
from tidemill.bench.scenario import Prepared, Scenario, Starts, prepare
from tidemill.records import dataclass
from tidemill.simulate.base import ReplicaSpec
from tidemill.simulate.changes import Autoscale, Failures
from tidemill.simulate.cluster import Cluster, Counts
from tidemill.simulate.figures import Tally
from tidemill.simulate.replica import Usage
from tidemill.simulate.routing import policy
from tidemill.simulate.traffic import Profile, Template, Traffic

MOST_REQUESTS = 200_000_000
"""Of a run: more take days, and more memory than there is."""

_FEW = 1000
"""Requests of which each can keep the times of all its tokens, and intervals be bootstrapped."""

_BY_CHANCE = 3
"""Standard deviations."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is simulated: replicas, and how requests find theirs. ``template``: of the model's
    chats."""

    specs: tuple[ReplicaSpec, ...]
    policy: str = "least-outstanding"
    failures: Failures | None = None
    autoscale: Autoscale | None = None
    template: Template | None = None

    def scaled(self, factor: float) -> Deployment:
        """With all that takes time taking ``factor`` times as long."""
        return replace(self, specs=tuple(spec.scaled(factor) for spec in self.specs))


@dataclass(slots=True)
class Run:
    """What came of one playing. ``seconds``: until the last request had ended. ``usage``: of all
    replicas."""

    tally: Tally
    counts: Counts
    usage: Usage
    seconds: float

    @property
    def outstanding(self) -> tuple[float, float]:
        """Requests that were due and had not ended, on average, in the first half of the window
        and in the second."""
        opened, closed = self.tally.opened, self.tally.closed
        middle = (opened + closed) / 2
        return self.tally.outstanding(opened, middle), self.tally.outstanding(middle, closed)

    @property
    def growing(self) -> bool:
        """Whether the queue of an open loop grows: more is outstanding in the second half than in
        the first, by more than chance does to the arrivals of a Poisson process."""
        before, after = self.outstanding
        return after - before > _BY_CHANCE * math.sqrt(before + 1)


def play(
    scenario: Scenario, deployment: Deployment, *, seed: int = 0, profile: Profile | None = None,
    exact: bool | None = None, part: tuple[int, int] = (0, 1),
) -> Run:  # fmt: skip
    """``exact``: keep the times of all tokens (None: if they are few). ``part``: see ``Cluster``.
    Raises ValueError for what cannot be, and OSError if a trace cannot be read."""
    return play_prepared(
        prepare(scenario, seed), deployment, seed=seed, profile=profile, exact=exact, part=part
    )


def play_prepared(
    prepared: Prepared, deployment: Deployment, *, seed: int, profile: Profile | None,
    exact: bool | None, part: tuple[int, int],
) -> Run:  # fmt: skip
    """As ``play``, of a scenario whose trace, if it has one, has been read."""
    expected = expected_requests(prepared, profile)
    if expected > MOST_REQUESTS:
        raise ValueError(
            f"{prepared.scenario.name}: about {expected:.2g} requests are more than can be "
            f"simulated ({MOST_REQUESTS:.2g}): make it shorter, or the load smaller"
        )
    if exact is None:
        exact = expected <= _FEW
    tally = Tally([shape.name for shape in prepared.workload.shapes], exact=exact)
    traffic = Traffic(
        prepared, seed, tally, template=deployment.template, profile=profile, keep_times=exact,
        probe=len(deployment.specs) == 1,
    )  # fmt: skip
    cluster = Cluster(
        deployment.specs, policy(deployment.policy, seed), on_end=traffic.ended,
        on_gap=tally.gap, failures=deployment.failures, autoscale=deployment.autoscale, seed=seed,
        part=part,
    )  # fmt: skip
    # There are many objects and hardly a cycle: collections would take half of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        traffic.play(cluster)
    finally:
        if collecting:
            gc.enable()
    if tally.closed == math.inf:
        raise ValueError(f"{prepared.scenario.name}: every replica was gone before the load stood")
    usage = added([member.replica.usage for member in cluster.members])
    return Run(tally, cluster.counts, usage, cluster.now)


def splits(scenario: Scenario, deployment: Deployment) -> bool:
    """Whether each replica can be played by itself: nobody looks at another one."""
    open_loop = not isinstance(scenario.load, Closed)
    single = all(shape.turns == 1 for shape in scenario.shapes)
    steady = deployment.failures is None and deployment.autoscale is None
    static = policy(deployment.policy, 0).static
    return open_loop and single and steady and static and len(deployment.specs) > 1


def joined(runs: Sequence[Run]) -> Run:
    """One of the runs of all parts."""
    first, *rest = runs
    for run in rest:
        first.tally.merge(run.tally)
    usage = added([run.usage for run in runs])
    seconds = max(run.seconds for run in runs)
    counts = replace(first.counts, replica_seconds=seconds * first.counts.most)
    return Run(first.tally, counts, usage, seconds)


def added(usages: Sequence[Usage]) -> Usage:
    return Usage(
        **{field.name: sum(getattr(u, field.name) for u in usages) for field in fields(Usage)}
    )


def expected_requests(prepared: Prepared, profile: Profile | None = None) -> float:
    """About how many there will be."""
    scenario, load = prepared.scenario, prepared.load
    seconds = scenario.warmup + scenario.seconds
    if isinstance(load, Gamma):
        return load.rate * (seconds if profile is None else profile.offset(seconds))
    if isinstance(load, Trace):
        return len(load.timestamps)
    if isinstance(load, Starts):
        return 0
    return max(scenario.requests, load.concurrency * max(1.0, seconds / 10))
