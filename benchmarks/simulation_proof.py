"""How far ``tidemill simulate`` is off: real runs of scenarios that nothing was fitted to, beside
what is predicted of them.

    tidemill calibrate smollm2
    python benchmarks/simulation_proof.py [--calibration FILE] [--rounds 3] [--keep] [--json FILE]

Each scenario is measured ``rounds`` times by ``bench``, on servers that it starts; the rounds are
interleaved, so that a slow spell of the machine meets all of them, and played with the calibration.
Latencies count from when a request was sent, not from when it was due: on a machine whose cores
compute, the load generator is some milliseconds late, which is no part of what is simulated. A
figure has passed if it is as near to the median of the runs as is asked for
(throughput 5 %, TTFT and TPOT 10 % at p50 and 20 % at p99), or if it lies between the runs. With
--keep the largest error of each figure goes beside the calibration, and ``simulate`` prints it.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
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
from tidemill.simulate.deploy import benched
from tidemill.simulate.play import Deployment
from tidemill.simulate.predict import Prediction, predict
from tidemill.simulate.proof import Proof, errors_of, figures, keep_proof
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


def rows(
    scenario: Scenario, predicted: Prediction, measured: list[Summary]
) -> tuple[list[str], dict[str, float]]:
    """A line for each figure, and the errors."""
    runs = [figures(summary) for summary in measured]
    middle = {name: statistics.median(r[name] for r in runs) for name in LIMITS if name in runs[0]}
    values = {name: found.value for name, found in predicted.figures.items()}
    errors = errors_of(values, middle)
    lines = []
    for name, error in errors.items():
        low, high = min(r[name] for r in runs), max(r[name] for r in runs)
        within = error <= LIMITS[name]
        between = low <= values[name] <= high
        verdict = "ok" if within else "ok (between the runs)" if between else "MISSED"
        off = values[name] / middle[name] - 1
        lines.append(
            f"| {scenario.name} | {name} | {values[name]:.4g} | {middle[name]:.4g} | {low:.4g} to "
            f"{high:.4g} | {off:+.1%} | {LIMITS[name]:.0%} | {verdict} |"
        )
    return lines, errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--calibration", type=Path, help="(default: the newest in the store)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0, help="of measuring, for each run")
    parser.add_argument("--only", nargs="*", help="names of scenarios")
    parser.add_argument("--keep", action="store_true", help="the errors, beside the calibration")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    arguments = parser.parse_args()
    path: Path | None = arguments.calibration
    if path is None:
        path = next((path for path, _ in files.stored()), None)
        if path is None:
            sys.exit("no calibration: `tidemill calibrate smollm2` makes one")
    calibration = files.load(path)
    template = template_of(open_model(calibration.model, offline=True).tokenizer)
    settings = Settings(path=resolve(calibration.model), threads=calibration.threads)
    target = targets.parse(f"tidemill:{calibration.model}")
    chosen = [s for s in scenarios(arguments.seconds) if s.name in (arguments.only or [s.name])]
    measured: dict[str, list[Summary]] = {scenario.name: [] for scenario in chosen}
    for n in range(arguments.rounds):
        for scenario in chosen:
            print(f"round {n + 1}: {scenario.name}", file=sys.stderr, flush=True)
            recording = measure(scenario, target, settings, say=lambda _: None).recording
            assert recording is not None
            measured[scenario.name].append(from_sent(recording))
    print("| scenario | figure | predicted | measured (median) | runs | error | limit | |")
    print("|---|---|---|---|---|---|---|---|")
    worst: dict[str, float] = {}
    kept = {}
    for scenario in chosen:
        spec = benched(files.calibrated(calibration), prepare(scenario))
        predicted = predict(scenario, Deployment((spec,), template=template), processes=1)
        lines, errors = rows(scenario, predicted, measured[scenario.name])
        print("\n".join(lines))
        kept[scenario.name] = {"predicted": predicted, "measured": measured[scenario.name]}
        for name, error in errors.items():
            worst[name] = max(worst.get(name, 0.0), error)
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1))
    if arguments.keep:
        proof = Proof(
            made=datetime.datetime.now(datetime.UTC).date().isoformat(),
            scenarios=[scenario.name for scenario in chosen],
            errors={name: round(error, 4) for name, error in worst.items()},
        )  # fmt: skip
        print(f"kept in {keep_proof(proof, path)}", file=sys.stderr)


if __name__ == "__main__":
    main()
