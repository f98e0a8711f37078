"""How far ``tidemill simulate`` is off: real runs of scenarios that nothing was fitted to, beside
what is predicted of them.

    python benchmarks/simulation_proof.py [MODEL] [--quick] [--rounds 5] [--keep] [--json FILE]

A machine that others use too is now faster and now slower, for minutes. So each round calibrates,
predicts from that, and then measures each scenario by ``bench``, on servers that it starts; what
counts is the median of the rounds' errors. Latencies count from when a request was sent, not from
when it was due: on a machine whose cores compute, the load generator is some milliseconds late,
which is no part of what is simulated. A figure has passed if its error is as small as is asked for
(throughput 5 %, TTFT and TPOT 10 % at p50 and 20 % at p99), or if the rounds' errors lie on both
sides of zero. With --keep the last calibration goes to the store, the largest error of each figure
beside it, and ``simulate`` prints it.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tidemill.bench import targets
from tidemill.bench.arrivals import Closed, Gamma
from tidemill.bench.measures import Summary, summarise
from tidemill.bench.records import Recording
from tidemill.bench.result import Settings, measure
from tidemill.bench.scenario import Scenario, prepare
from tidemill.bench.workload import LogNormal, Shape, Uniform
from tidemill.llm.loading import open_model
from tidemill.simulate import calibration as files
from tidemill.simulate.calibrate import calibrate
from tidemill.simulate.deploy import benched
from tidemill.simulate.play import Deployment
from tidemill.simulate.predict import predict
from tidemill.simulate.proof import Proof, figures, keep_proof
from tidemill.simulate.templates import template_of
from tidemill.store import resolve

LIMITS = {
    "output_rate": 0.05, "request_rate": 0.05, "ttft.p50": 0.10, "tpot.p50": 0.10,
    "ttft.p99": 0.20, "tpot.p99": 0.20,
}  # fmt: skip

CHAT = Shape("chat", LogNormal(60, 250, 800), LogNormal(80, 200, 400))
"""As of short-chat."""


def scenarios(seconds: float) -> list[Scenario]:
    def scenario(name: str, summary: str, load: Closed | Gamma, *shapes: Shape) -> Scenario:
        return Scenario(
            name=name, summary=summary, load=load, shapes=shapes, seconds=seconds, warmup=3.0
        )

    return [
        scenario("closed-chat", "four users at any time", Closed(4), CHAT),
        scenario("open-chat", "arrivals below saturation", Gamma(1.0), CHAT),
        scenario(
            "long-prompts", "long prompts, short answers", Gamma(0.4),
            Shape("document", Uniform(600, 2000), Uniform(20, 60)),
        ),
        scenario(
            "shared-prefix", "questions about few documents", Closed(3),
            Shape("question", Uniform(20, 60), Uniform(30, 90), prefix=1000, prefixes=4),
        ),
        scenario(
            "conversations", "each turn has all before it", Gamma(0.25),
            Shape("talk", Uniform(20, 80), Uniform(30, 90), turns=4, pause=1.0, prefix=200,
                  system=True),
        ),
    ]  # fmt: skip


def from_sent(recording: Recording) -> Summary:
    """Its figures as if every request had been due when it was sent."""
    records = [msgspec.structs.replace(r, due=r.sent) for r in recording.records]
    return summarise(msgspec.structs.replace(recording, records=records))


class Pair(msgspec.Struct):
    """What was predicted of a scenario in one round, and what was measured."""

    predicted: dict[str, float]
    measured: dict[str, float]

    def error(self, name: str) -> float:
        return self.predicted[name] / self.measured[name] - 1


def rows(scenario: str, pairs: Sequence[Pair]) -> Iterator[tuple[str, float, str]]:
    """Of each figure its name, its error, and its line."""
    for name, limit in LIMITS.items():
        if not all(pair.measured.get(name) for pair in pairs):
            continue
        errors = sorted(pair.error(name) for pair in pairs)
        error = statistics.median(errors)
        if abs(error) <= limit:
            verdict = "ok"
        else:
            verdict = "ok (both sides)" if errors[0] < 0 < errors[-1] else "MISSED"
        predicted, measured = (
            statistics.median(getattr(pair, side)[name] for pair in pairs)
            for side in ("predicted", "measured")
        )
        line = (
            f"| {scenario} | {name} | {predicted:.4g} | {measured:.4g} | {error:+.1%} "
            f"({errors[0]:+.1%} to {errors[-1]:+.1%}) | {limit:.0%} | {verdict} |"
        )
        yield name, error, line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quick", action="store_true", help="as of `tidemill calibrate`")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="of measuring, for each run")
    parser.add_argument("--only", nargs="*", help="names of scenarios")
    parser.add_argument("--keep", action="store_true", help="the errors, beside the calibration")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    arguments = parser.parse_args()
    template = template_of(open_model(arguments.model).tokenizer)
    target = targets.parse(f"tidemill:{arguments.model}")
    chosen = [s for s in scenarios(arguments.seconds) if s.name in (arguments.only or [s.name])]
    pairs: dict[str, list[Pair]] = {scenario.name: [] for scenario in chosen}
    for n in range(arguments.rounds):
        say(f"round {n + 1}: calibration")
        calibration = calibrate(arguments.model, threads=arguments.threads, quick=arguments.quick)
        settings = Settings(path=resolve(arguments.model), threads=calibration.threads)
        for scenario in chosen:
            say(f"round {n + 1}: {scenario.name}")
            recording = measure(scenario, target, settings, say=lambda _: None).recording
            assert recording is not None
            spec = benched(files.calibrated(calibration), prepare(scenario))
            predicted = predict(scenario, Deployment((spec,), template=template), processes=1)
            values = {name: found.value for name, found in predicted.figures.items()}
            pairs[scenario.name].append(Pair(values, figures(from_sent(recording))))
    print("| scenario | figure | predicted | measured | error (rounds) | limit | |")
    print("|---|---|---|---|---|---|---|")
    worst: dict[str, float] = {}
    for scenario in chosen:
        for name, error, line in rows(scenario.name, pairs[scenario.name]):
            print(line)
            worst[name] = max(worst.get(name, 0.0), abs(error))
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(pairs), indent=1))
    if arguments.keep:
        proof = Proof(
            made=datetime.datetime.now(datetime.UTC).date().isoformat(),
            scenarios=[scenario.name for scenario in chosen],
            errors={name: round(error, 4) for name, error in worst.items()},
        )  # fmt: skip
        say(f"kept in {keep_proof(proof, files.save(calibration))}")


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
