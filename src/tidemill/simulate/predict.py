"""A prediction: figures, how far they may be off, what limits them, and whether to believe them.

Step times are known to a few per cent only. So a scenario is played three times: with the times as
they are, and with all of them shorter and longer by the error that is stated for them. What comes
of that is the band of each figure, unless it was found out how far predictions of this machine are
off (``Proof``). Near saturation a small error of the times is a large one of what waits for them:
there the prediction says so, and gives bounds only.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

import msgspec

from tidemill.bench.arrivals import Closed
from tidemill.bench.measures import Slo, Summary
from tidemill.bench.scenario import Scenario, prepare
from tidemill.hardware import usable_cores
from tidemill.simulate.base import Origin, currency_of
from tidemill.simulate.play import Deployment, Run, expected_requests, joined, play_prepared, splits
from tidemill.simulate.proof import Proof, figures
from tidemill.simulate.traffic import Profile

_WORTH_A_PROCESS = 3000
"""Requests, of all runs together."""

_CROWDED = 0.9
"""Share of places or KV memory in use from which on an open loop counts as nearly saturated."""

_AMPLIFIED = 5.0
"""Per cent that E2E changes for one of the step times, from which on it does, too. In a queue with
one server that is 1 / (1 - utilisation), so 80 %."""


class Interval(msgspec.Struct, frozen=True):
    value: float
    low: float
    high: float


class Limit(msgspec.Struct, frozen=True):
    """What keeps it from being faster, in words; shares of the time or of what there is.
    ``busy``: replicas that compute; ``prompts``: of that, steps with prompts; ``places``,
    ``memory``: in use, of sequences and KV blocks; ``no_place``, ``no_memory``, ``behind``: of the
    time that they compute, someone waits for that, or behind prompts of others."""

    words: str
    busy: float
    prompts: float
    places: float
    memory: float
    no_place: float
    no_memory: float
    behind: float


class Prediction(msgspec.Struct, kw_only=True):
    """``figures``: those of ``summary`` by name ("ttft.p50", "output_rate" ...), with their bands.
    ``front``: what the front ends take, in words. ``saturated``: why the figures are bounds only,
    if so. ``by_shape``: of each shape, without bands. ``replica_hours`` are those of the whole run,
    ``price`` of an hour of it, in ``currency`` ("" if unknown)."""

    origin: Origin
    source: str
    front: str
    band: float
    proof: Proof | None
    summary: Summary
    by_shape: dict[str, Summary]
    figures: dict[str, Interval]
    limit: Limit
    saturated: str | None
    seconds: float
    replicas: int
    most_replicas: int
    replica_hours: float
    price: float | None
    currency: str
    failures: int
    retries: int
    preemptions: int
    added: int
    removed: int


def predict(
    scenario: Scenario, deployment: Deployment, *, slo: Slo | None = None, seed: int = 0,
    profile: Profile | None = None, proof: Proof | None = None, bands: bool = True,
    exact: bool | None = None, processes: int | None = None,
) -> Prediction:  # fmt: skip
    """``bands``: play it three times; else figures have none, and saturation is seen later.
    Raises ValueError for what cannot be, and OSError if a trace cannot be read."""
    currency = currency_of(deployment.specs)
    slo = slo or scenario.slo
    band = max(spec.step_time.band for spec in deployment.specs)
    factors = [1.0]
    if bands and band > 0:
        factors += [1 - min(band, 0.95), 1 + band]
    workers = usable_cores() if processes is None else processes
    parts = workers if len(factors) < workers and splits(scenario, deployment) else 1
    prepared = prepare(scenario, seed)
    tasks = [
        functools.partial(
            play_prepared, prepared, deployment if factor == 1 else deployment.scaled(factor),
            seed=seed, profile=profile, exact=exact if factor == 1 else False, part=(part, parts),
        )
        for factor in factors
        for part in range(parts)
    ]  # fmt: skip
    if expected_requests(prepared, profile) * len(factors) < _WORTH_A_PROCESS:
        workers = 1
    done = _carry_out(tasks, workers)
    runs = [joined(done[i : i + parts]) for i in range(0, len(done), parts)]
    base = runs[0]
    summaries = [run.tally.summary(slo) for run in runs]
    names = [shape.name for shape in prepared.workload.shapes]
    first = deployment.specs[0]
    hours = [spec.hour for spec in deployment.specs]
    return Prediction(
        origin="measured" if all(s.step_time.origin == "measured" for s in deployment.specs)
        else "data sheet",
        source="; ".join(dict.fromkeys(spec.step_time.source for spec in deployment.specs)),
        front="; ".join(dict.fromkeys(str(spec.front) for spec in deployment.specs)),
        band=band,
        proof=proof,
        summary=summaries[0],
        by_shape={} if len(names) == 1 else {n: base.tally.summary(slo, n) for n in names},
        figures=_intervals([figures(summary) for summary in summaries], proof),
        limit=_limit(base, deployment, isinstance(scenario.load, Closed)),
        saturated=_saturated(scenario, deployment, runs, summaries, factors),
        seconds=base.seconds,
        replicas=len(deployment.specs),
        most_replicas=base.counts.most,
        replica_hours=base.counts.replica_seconds / 3600,
        price=None if first.hour is None or None in hours else
        sum(hour or 0.0 for hour in hours) / len(hours) * base.counts.replica_seconds
        / (base.seconds or math.inf),
        currency=currency,
        failures=base.counts.failures,
        retries=base.counts.retries,
        preemptions=base.usage.preemptions,
        added=base.counts.added,
        removed=base.counts.removed,
    )  # fmt: skip


def _carry_out(tasks: Sequence[Callable[[], Run]], processes: int) -> list[Run]:
    if min(processes, len(tasks)) < 2:
        return [task() for task in tasks]
    # A fresh interpreter each: forking one with threads can stop it for good.
    with ProcessPoolExecutor(
        min(processes, len(tasks)), mp_context=multiprocessing.get_context("spawn"),
        initializer=_leave_interrupts_to_the_parent,
    ) as pool:  # fmt: skip
        try:
            return [running.result() for running in [pool.submit(task) for task in tasks]]
        except BaseException:  # Ctrl-C, or one failed: nobody waits for the others
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _intervals(of_runs: list[dict[str, float]], proof: Proof | None) -> dict[str, Interval]:
    base = of_runs[0]
    found = {}
    for name, value in base.items():
        values = [of_run[name] for of_run in of_runs if name in of_run]
        low, high = min(values), max(values)
        if proof is not None and (error := proof.errors.get(name)) is not None:
            low, high = value * max(0.0, 1 - error), value * (1 + error)
        found[name] = Interval(value, low, high)
    return found


def _limit(run: Run, deployment: Deployment, closed_loop: bool) -> Limit:
    usage = run.usage
    specs = deployment.specs
    time = run.counts.replica_seconds or math.inf
    places = sum(min(s.max_sequences, s.max_batch_tokens) for s in specs) / len(specs)
    blocks = sum(s.n_blocks for s in specs) / len(specs)
    busy = usage.busy or math.inf
    busy_share = usage.busy / time
    prompts = usage.prompts / busy
    no_place, no_memory = usage.no_slot / busy, usage.no_memory / busy
    behind = usage.behind / busy
    if max(no_place, no_memory, behind) > 0.05:
        if behind > max(no_place, no_memory):
            words = "computing: requests wait behind the prompts of others"
        elif no_place >= no_memory:
            words = "places (max_sequences), for which requests wait"
        else:
            words = "KV memory, for which requests wait"
    elif closed_loop and busy_share > 0.95:
        words = f"computing: {'prompts' if prompts > 0.5 else 'decoding'}"
    elif closed_loop:
        words = "the load: clients wait for answers before they ask again"
    else:
        words = "the load: hardly a request waits for its turn"
    return Limit(
        words, busy_share, prompts, usage.running / time / places, usage.blocks / time / blocks,
        no_place, no_memory, behind,
    )  # fmt: skip


def _saturated(
    scenario: Scenario, deployment: Deployment, runs: list[Run], summaries: list[Summary],
    factors: list[float],
) -> str | None:  # fmt: skip
    """Why the figures say little, if they do. Closed loops wait for what they load."""
    if isinstance(scenario.load, Closed):
        return None
    for run, factor in zip(runs, factors, strict=True):
        if factor < 1:
            continue
        slower = f" if steps take {factor - 1:.0%} longer" if factor > 1 else ""
        if run.growing:
            before, after = run.outstanding
            return f"the queue grows{slower}: from {before:.0f} requests to {after:.0f} on average"
        limit = _limit(run, deployment, False)
        if max(limit.places, limit.memory) > _CROWDED:
            what = "places" if limit.places >= limit.memory else "KV memory"
            share = max(limit.places, limit.memory)
            return f"{share:.0%} of the {what} are in use{slower}"
    if len(runs) > 1:
        fast, slow = (summary.latency.get("e2e") for summary in summaries[1:])
        if fast and slow:
            change = math.log(slow["p90"].value / fast["p90"].value)
            amplified = change / math.log(factors[2] / factors[1])
            if amplified > _AMPLIFIED:
                return f"1 % of the step times is {amplified:.0f} % of E2E at p90"
    return None
