"""How fast the simulation is: requests a second of CPU time, by replicas and requests.

    python benchmarks/simulation_rate.py [--full]

Step times are those of an accelerator, roughly (a straight line). Prompts have about 1000 tokens,
answers about 150; how much of the places they take is in the table. Policies that look at the
replicas run in one process, the others in one for each core. --full: a million requests on a
thousand replicas, too.
"""

from __future__ import annotations

import argparse
import resource
import time

from tidemill.bench.arrivals import Gamma
from tidemill.bench.scenario import Scenario
from tidemill.bench.workload import LogNormal, Shape
from tidemill.simulate.base import FrontEnd, Origin, ReplicaSpec, StepWork
from tidemill.simulate.play import Deployment
from tidemill.simulate.predict import predict


class Accelerator:
    """8 ms a step and a little for each token."""

    origin: Origin = "data sheet"
    source = "a straight line"
    band = 0.1

    def seconds(self, work: StepWork) -> float:
        tokens = work.prompt_tokens + work.decodes
        context = work.prompt_context + work.decode_context
        return 8e-3 + 2e-5 * tokens + 5e-9 * context + 1e-5 * work.rows


REPLICA = ReplicaSpec(
    name="accelerator", step_time=Accelerator(), n_blocks=6000, max_context=8192,
    max_sequences=32, max_batch_tokens=2048, max_prefill_tokens=1024, front=FrontEnd(1e-3),
)  # fmt: skip
SHAPE = Shape(
    "request", LogNormal(800, 1500, 4000), LogNormal(120, 250, 500), prefix=200, prefixes=100
)
_WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
RATE = 9.0  # requests a second and replica


def measure(replicas: int, requests: int, policy: str) -> None:
    rate = RATE * replicas
    scenario = Scenario(
        name="rate", summary="", load=Gamma(rate), shapes=(SHAPE,), seconds=requests / rate,
        warmup=10.0,
    )  # fmt: skip
    began, cpu = time.perf_counter(), cpu_seconds()
    found = predict(scenario, Deployment((REPLICA,) * replicas, policy=policy), bands=False)
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    played = rate * (scenario.seconds + scenario.warmup)
    memory = max(resource.getrusage(who).ru_maxrss for who in _WHO) / 1024
    print(
        f"| {replicas} | {played:.0f} | {policy} | {seconds:.1f} | {cpu:.1f} | "
        f"{played / cpu:.0f} | {found.limit.places:.0%} | {memory:.0f} |", flush=True,
    )  # fmt: skip


def cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in _WHO]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    print(
        "| replicas | requests | policy | seconds | CPU seconds | requests per CPU second | "
        "places in use | largest process, MiB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for policy in ("round-robin", "least-outstanding"):
        for replicas, requests in ((1, 5_000), (1, 20_000), (10, 20_000), (100, 40_000)):
            measure(replicas, requests, policy)
    if arguments.full:
        for policy in ("round-robin", "least-outstanding"):
            measure(1000, 1_000_000, policy)


if __name__ == "__main__":
    main()
