"""A scenario as the sizing sees it: its mean lengths, and simulations of it at any rate."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec

from tidemill.bench.arrivals import Closed
from tidemill.bench.scenario import Scenario, Starts
from tidemill.bench.statistics import rank
from tidemill.bench.traces import TraceFile
from tidemill.bench.workload import Workload
from tidemill.records import dataclass
from tidemill.simulate.base import ReplicaSpec
from tidemill.simulate.play import Deployment, play
from tidemill.simulate.sizing.fluid import Mix, ceiling, first_token
from tidemill.simulate.sizing.goal import Kind
from tidemill.simulate.sizing.trial import METRICS, Latency, Trial
from tidemill.simulate.traffic import task_tokens

_SAMPLE = 500  # conversations from which lengths are taken

_REQUESTS = 600
"""In the measured window, at least: p99 is then the sixth longest."""

_LIVES = 5
"""Times that an answer takes, which the window lasts at least."""

_FOR_EVER = 1e6  # seconds: nobody gives up


class LoadError(ValueError):
    """A scenario that cannot be sized for."""


class ScenarioLoad:
    """What a scenario's requests are like. Its own rate or concurrency is not used.

    ``mix``: their lengths. Called with a spec, a load of ``kind`` and replicas, it simulates them:
    see ``trial.Trials``. A rate counts requests, those of later turns too; in flight are as many
    conversations.
    """

    def __init__(self, scenario: Scenario, kind: Kind, seed: int = 0) -> None:
        if isinstance(scenario.load, Starts):
            raise LoadError(f"{scenario.name} measures starts: there is no load to size for")
        if isinstance(scenario.load, TraceFile):
            raise LoadError(
                f"{scenario.name} replays a trace, whose rate is what it was: size for a scenario "
                "of such lengths"
            )
        self._scenario = scenario
        self.kind = kind
        self._seed = seed
        self._arrivals = scenario.arrivals
        requests = list(_requests(scenario, seed))
        self._turns = len(requests) / _SAMPLE
        self.mix = _mix(requests, scenario.context)

    def __call__(self, spec: ReplicaSpec, load: float, replicas: int = 1) -> Trial:
        scenario = self._loaded(spec, load)
        run = play(scenario, Deployment((spec,) * replicas), seed=self._seed, exact=False)
        summary, usage = run.tally.summary(None), run.usage
        if not summary.requests:
            raise LoadError(
                f"{scenario.name}: no request came within {summary.seconds:.3g} s, in which "
                f"{_REQUESTS} should have: its bursts are too rare to size for"
            )
        time = run.seconds * replicas
        return Trial(
            load=load,
            replicas=replicas,
            requests=summary.requests,
            failed=summary.requests - summary.good,
            growing=self.kind == "rate" and run.growing,
            latency={
                metric: Latency(found["p50"].value, found["p99"].value)
                for metric in METRICS
                if (found := summary.latency.get(metric))
            },
            rate=summary.request_rate,
            in_flight=sum(run.outstanding) / 2,
            output_rate=summary.output_rate,
            busy=usage.busy / time,
            prompts=usage.prompts / usage.busy if usage.busy else 0.0,
            no_slot=usage.no_slot / time,
            no_memory=usage.no_memory / time,
            preemptions=usage.preemptions,
            filled=max(
                usage.running / time / min(spec.max_sequences, spec.max_batch_tokens),
                usage.blocks / time / spec.n_blocks,
            ),
            front=summary.request_rate * spec.front.seconds(summary.mean_prompt_tokens) / replicas,
        )

    def _loaded(self, spec: ReplicaSpec, load: float) -> Scenario:
        """The scenario with that load, and long enough for a steady state."""
        best = ceiling(spec, self.mix)
        life = first_token(spec, self.mix) + self.mix.output * best.step
        change = functools.partial(msgspec.structs.replace, self._scenario, timeout=_FOR_EVER)
        if self.kind == "in flight":
            streams = max(1, round(load))
            requests = max(_REQUESTS, _LIVES * streams)
            return change(load=Closed(streams), seconds=0.0, requests=requests, warmup=life)
        seconds = max(_REQUESTS / load, _LIVES * life)
        arrivals = self._arrivals.at(load / self._turns)
        return change(load=arrivals, seconds=seconds, requests=0, warmup=seconds / 2)


@dataclass(frozen=True, slots=True)
class _Request:
    """Tokens: ``cached`` of a prompt that others, or earlier turns, had before."""

    cached: int
    prompt: int
    output: int


def _requests(scenario: Scenario, seed: int) -> Iterator[_Request]:
    """Those of some conversations. Shared beginnings count as cached: of all that share one, only
    the first computes it."""
    workload = Workload(scenario.shapes, seed)
    for index in range(_SAMPLE):
        before = 0
        turns = workload.sizes(index).shape.turns
        for turn in range(turns):
            sizes = workload.sizes(index, turn)
            if not turn and sizes.parts:
                before = sizes.shape.prefix
            prompt = sizes.words + task_tokens(sizes)
            yield _Request(before, prompt, sizes.max_tokens)
            before += prompt + sizes.max_tokens


def _mix(requests: list[_Request], context: int) -> Mix:
    n = len(requests)
    prompts = sorted(request.prompt for request in requests)
    return Mix(
        prompt=sum(prompts) / n,
        cached=sum(request.cached for request in requests) / n,
        output=sum(request.output for request in requests) / n,
        longest=prompts[rank(n, 0.99)],
        context=context,
    )
