"""One simulation as the sizing sees it: what came of a load, which limits it met, and why not."""

from __future__ import annotations

from typing import Literal, Protocol

from tidemill.bench.measures import Slo
from tidemill.records import dataclass
from tidemill.simulate.base import ReplicaSpec

Metric = Literal["ttft", "tpot", "e2e"]
METRICS: tuple[Metric, ...] = ("ttft", "tpot", "e2e")

# Shares of the time from which something counts as the reason why others wait.
_NOTICED = 0.05
_MOSTLY = 0.5
_FULL = 0.95


@dataclass(frozen=True, slots=True)
class Latency:
    """Of one metric over all requests, in seconds."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a ``load`` (see ``goal.Load``) on ``replicas``, in virtual time.

    ``failed``: of ``requests``, those that were refused. ``growing``: more came than was done, so
    that latencies say only how long was simulated. ``rate``: requests a second that were answered,
    ``in_flight``: at a time, ``output_rate``: tokens a second, of all replicas together.

    Shares of the replicas' time: ``busy`` with steps, ``prompts`` in them (of the busy time), and
    with someone waiting for a place (``no_slot``) or for KV memory (``no_memory``). ``filled``: of
    the places or of the KV memory, whichever is fuller, what is in use in the mean. ``front``: of
    the time of the replicas' front ends, which take one request after the other.
    """

    load: float
    replicas: int
    requests: int
    failed: int
    growing: bool
    latency: dict[Metric, Latency]
    rate: float
    in_flight: float
    output_rate: float
    busy: float
    prompts: float
    no_slot: float
    no_memory: float
    preemptions: int
    filled: float
    front: float

    @property
    def speed(self) -> float:
        """Tokens a second that a user sees come, of the median answer."""
        found = self.latency.get("tpot")
        return 1 / found.p50 if found is not None and found.p50 > 0 else 0.0


class Trials(Protocol):
    """The simulation of a load of the goal's kind."""

    def __call__(self, spec: ReplicaSpec, load: float, replicas: int = 1) -> Trial: ...


@dataclass(frozen=True, slots=True)
class Miss:
    """A limit that was not met."""

    metric: Metric
    value: float
    limit: float

    def __str__(self) -> str:
        return f"{self.metric.upper()} p99 {self.value:.3g} s, limit {self.limit:g} s"


def misses(trial: Trial, slo: Slo) -> list[Miss]:
    """The limits that 99 of 100 requests do not keep to, the worst first."""
    found = [
        Miss(metric, trial.latency[metric].p99, limit)
        for metric in METRICS
        if (limit := getattr(slo, metric)) is not None
        and metric in trial.latency
        and trial.latency[metric].p99 > limit
    ]
    return sorted(found, key=lambda miss: -miss.value / miss.limit)


def meets(trial: Trial, slo: Slo) -> bool:
    """Whether a load can be carried: limits met, everything answered, no backlog that grows."""
    return not trial.growing and not trial.failed and not misses(trial, slo)


def cause(trial: Trial, metric: Metric | None) -> str:
    """Why a limit was missed, by what replicas waited for; None: the load as a whole."""
    waiting_for = ""
    if trial.front >= _FULL:
        waiting_for = f"front ends are busy {min(1, trial.front):.0%} of the time"
    elif trial.no_memory >= _NOTICED or trial.preemptions > _NOTICED * trial.requests:
        waiting_for = f"KV memory is full {trial.no_memory:.0%} of the time"
    elif trial.no_slot >= _NOTICED:
        waiting_for = f"all sequences are taken {trial.no_slot:.0%} of the time"
    if metric == "e2e":
        share = trial.latency["ttft"].p99 / trial.latency["e2e"].p99
        return cause(trial, "ttft" if share >= _MOSTLY else "tpot")
    if metric == "tpot":
        if trial.prompts >= _MOSTLY:
            return f"prompts of others are in {trial.prompts:.0%} of the steps"
        return "steps of so many sequences take too long"
    if waiting_for:
        return f"requests queue: {waiting_for}"
    if trial.growing or trial.busy >= _FULL:
        return f"requests queue: it computes {trial.busy:.0%} of the time"
    return "prompts take too long to compute"
