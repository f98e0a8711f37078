"""What to measure next: the commands that would confirm the advice or overturn it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tidemill.advise.answers import Answers
from tidemill.advise.facts import Engine
from tidemill.advise.launch import is_repository
from tidemill.advise.rules import Case
from tidemill.records import dataclass

STARTED = ("tidemill", "llama.cpp", "vllm", "sglang", "tgi", "ollama", "openvino")
"""Engines that ``tidemill bench run`` starts itself; others are started by hand, as advised, and
given by their address. A test holds this against the bench."""

MOST_AT_ONCE = 100_000
"""Requests that ``tidemill bench run`` keeps in flight."""


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
        text = f"{role} under this load"
        if engine.id not in STARTED:
            text += f": {engine.name}, started as its documentation says"
        steps.append(Step(text, bench_command(engine, case)))
    at_edge = answers.stage == "edge" or case.part.place == "edge"
    if at_edge and chosen.id in STARTED:
        command = f"tidemill bench run --target {_target(chosen, answers)} --scenario cold-start"
        steps.append(Step("how long a start takes", command))
    steps += [
        Step(
            f"is {rival.name} better, worse, or not distinguishable?",
            f"tidemill bench compare {chosen.id} {rival.id}",
        )
        for rival in rivals[1:]
        if bench_command(chosen, case) and bench_command(rival, case)
    ]
    if answers.ttft_ms is None and answers.tpot_ms is None and answers.latency == "interactive":
        steps.append(
            Step("decide what is fast enough (load.ttft_ms, load.tpot_ms): no limit was given")
        )
    if case.in_flight > 1:
        steps.append(
            Step(f"answers at {case.in_flight} in flight are as good as at 1: compare some")
        )
    return steps


def bench_command(engine: Engine, case: Case) -> str:
    """``tidemill bench run`` for an engine under the case's load; limits in seconds, as its
    ``--slo`` has them. Empty for one that has no address."""
    answers = case.answers
    target = _target(engine, answers)
    if not target:
        return ""
    parts = [
        "tidemill bench run",
        f"--target {target}",
        f"--scenario {answers.workload}",
        f"--concurrency {min(case.in_flight, MOST_AT_ONCE)}",
    ]
    limits = [
        f"{name}={value / 1000:g}"
        for name, value in (("ttft", answers.ttft_ms), ("tpot", answers.tpot_ms))
        if value is not None
    ]
    if limits:
        parts.append(f"--slo {','.join(limits)}")
    parts.append(f"--name {engine.id}")  # that ``bench compare`` is to be given
    return " ".join(parts)


def _target(engine: Engine, answers: Answers) -> str:
    if engine.id in STARTED:
        model = f"hf://{answers.name}" if is_repository(answers.name) else answers.name
        return shlex.quote(f"{engine.id}:{model}")
    return engine.launch.url if engine.launch is not None else ""
