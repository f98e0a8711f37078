"""What to measure next: the commands that would confirm the advice or overturn it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tidemill.advise.answers import Answers
from tidemill.advise.facts import Engine
from tidemill.advise.rules import Case
from tidemill.records import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, and the command for it where there is one."""

    text: str
    command: str = ""


def next_steps(
    case: Case, qualified: Sequence[Engine], chosen: Engine | None, current: Engine | None
) -> list[Step]:
    """The chosen engine, the next best and the one in use, under the case's own load."""
    if chosen is None:
        return [Step("find another model format or other hardware: see what rejected each engine")]
    answers = case.answers
    rivals = [chosen]
    others = [engine for engine in qualified if engine.id != chosen.id]
    rivals += others[:1]
    if current is not None and current not in rivals:
        rivals.append(current)
    steps = [
        Step(
            "start it once as above: facts are judged one by one, and only a start shows that "
            "format, architecture and hardware go together in it"
        ),
        Step("how far the load generator itself can be trusted here", "tidemill bench selftest"),
    ]
    for engine in rivals:
        role = (
            "the recommended engine" if engine is chosen
            else "the engine in use today" if engine is current
            else "the next best"
        )  # fmt: skip
        steps.append(Step(f"{role} under this load", bench_command(engine, answers)))
    if answers.stage == "edge" or case.part.place == "edge":
        steps.append(
            Step("how long a start takes", bench_command(chosen, answers, scenario="cold-start"))
        )
    if len(rivals) > 1:
        steps.append(
            Step(
                "better, worse, or not distinguishable? (the names that the runs were given)",
                "tidemill bench compare RUN_A RUN_B",
            )
        )
    if answers.ttft_ms is None and answers.tpot_ms is None and answers.latency == "interactive":
        steps.append(
            Step("decide what is fast enough (load.ttft_ms, load.tpot_ms): no limit was given")
        )
    if case.in_flight > 1:
        steps.append(
            Step(f"answers at {case.in_flight} in flight are as good as at 1: compare some")
        )
    return steps


def bench_command(engine: Engine, answers: Answers, scenario: str = "") -> str:
    """``tidemill bench run`` for an engine; limits in seconds, as its ``--slo`` has them."""
    target = shlex.quote(f"{engine.id}:{answers.name}")
    parts = [
        "tidemill bench run",
        f"--target {target}",
        f"--scenario {scenario or answers.workload}",
    ]
    limits = [
        f"{name}={value / 1000:g}"
        for name, value in (("ttft", answers.ttft_ms), ("tpot", answers.tpot_ms))
        if value is not None and not scenario
    ]
    if limits:
        parts.append(f"--slo {','.join(limits)}")
    return " ".join(parts)
