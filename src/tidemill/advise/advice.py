"""From answers to advice: the plan's parts, a chosen engine for each, and why not the others."""

from __future__ import annotations

import datetime
from collections.abc import Container, Mapping
from typing import Literal

from tidemill.advise import risks
from tidemill.advise.answers import Answers
from tidemill.advise.evidence import Evidence, Measurement, Number, Size, weights_gb
from tidemill.advise.facts import MAX_AGE, Engine
from tidemill.advise.flow import Part, Plan, choose, traits
from tidemill.advise.launch import Commands, commands
from tidemill.advise.measuring import Step, next_steps
from tidemill.advise.rules import Case, Verdict, judge
from tidemill.advise.scores import WEIGHTS, Dimension, Score, score
from tidemill.records import dataclass

Status = Literal["qualified", "unproven", "rejected"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One engine, judged for one part. ``verdicts`` are the failures, or what is not known."""

    engine: Engine
    status: Status
    verdicts: tuple[Verdict, ...]
    score: Score | None = None
    measurement: Measurement | None = None
    size: Size | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """What is recommended for a part. ``chosen`` is None where every engine fails.

    candidates: all engines, the best first. component: an optimisation component on top, where a
    bottleneck was measured; ``components`` are all that were judged.
    """

    part: Part
    chosen: Candidate | None
    candidates: tuple[Candidate, ...]
    component: Candidate | None
    components: tuple[Candidate, ...]
    commands: Commands | None
    risks: tuple[str, ...]
    numbers: Mapping[str, Number]
    steps: tuple[Step, ...]

    @property
    def proven(self) -> bool:
        """Whether every rule passed, or something has to be found out first."""
        return self.chosen is not None and self.chosen.status == "qualified"

    def ranked(self, status: Status) -> list[Candidate]:
        return [candidate for candidate in self.candidates if candidate.status == status]


@dataclass(frozen=True, slots=True)
class Advice:
    """All that is advised. absent: numbers that would have been used, had they been there. stale:
    facts of any engine that are older than the limit."""

    answers: Answers
    plan: Plan
    choices: tuple[Choice, ...]
    weights: Mapping[Dimension, float]
    absent: tuple[str, ...]
    stale: Mapping[str, tuple[str, ...]]
    today: datetime.date


def advise(
    answers: Answers,
    engines: Mapping[str, Engine],
    *,
    today: datetime.date,
    evidence: Evidence | None = None,
    weights: Mapping[Dimension, float] = WEIGHTS,
    max_age: int = MAX_AGE,
    catalogue: Container[str] = (),
) -> Advice:
    """The advice for a case, from facts, and from numbers where there are any. catalogue: names of
    models that ``tidemill pull`` brings."""
    evidence = evidence or Evidence()
    plan = choose(traits(answers))
    choices = tuple(
        _choose(part, answers, engines, evidence, weights, catalogue) for part in plan.parts
    )
    stale = {
        engine.id: tuple(names)
        for engine in engines.values()
        if (names := engine.stale(today, max_age))
    }
    return Advice(
        answers, plan, choices, weights, _absent(answers, choices, evidence), stale, today
    )


def decide(
    answers: Answers,
    engines: Mapping[str, Engine],
    evidence: Evidence,
    weights: Mapping[Dimension, float],
) -> tuple[tuple[str, str], ...]:
    """The decision alone, to compare: for each part its class and the chosen engine's id."""
    decision = []
    for part in choose(traits(answers)).parts:
        ranked = rank(Case(part, answers, evidence), engines, weights)
        best = ranked[0]
        chosen = {
            "qualified": best.engine.id,
            "unproven": f"{best.engine.id}, unproven",
            "rejected": "no engine",
        }[best.status]
        decision.append((f"{part.engine_class} on {part.place}", chosen))
    return tuple(decision)


def rank(
    case: Case, engines: Mapping[str, Engine], weights: Mapping[Dimension, float]
) -> list[Candidate]:
    """All engines that are no components, judged: qualified ones first, by their score."""
    judged = []
    for engine in engines.values():
        if "component" not in engine.classes:
            status, verdicts = _judged(judge(engine, case))
            judged.append(Candidate(engine, status, verdicts))
    return _scored(judged, case, weights)


def _judged(verdicts: list[Verdict]) -> tuple[Status, tuple[Verdict, ...]]:
    """The status, and the verdicts that made it."""
    outcomes = {verdict.outcome for verdict in verdicts}
    if "fail" in outcomes:
        return "rejected", tuple(v for v in verdicts if v.outcome == "fail")
    if "unknown" in outcomes:
        return "unproven", tuple(v for v in verdicts if v.outcome == "unknown")
    return "qualified", ()


def _scored(
    judged: list[Candidate], case: Case, weights: Mapping[Dimension, float]
) -> list[Candidate]:
    possible = [candidate for candidate in judged if candidate.status != "rejected"]
    evidence, part, answers = case.evidence, case.part, case.answers
    measured = {c.engine.id: evidence.measurement(c.engine, part, answers) for c in possible}
    sizes = {c.engine.id: evidence.size(c.engine, part, answers) for c in possible}
    speeds = [m.output_tokens_per_second for m in measured.values() if m is not None]
    prices = [s.per_month.value for s in sizes.values() if s is not None and s.per_month]
    best, cheapest = max(speeds, default=None), min(prices, default=None)
    made = [
        Candidate(
            c.engine, c.status, c.verdicts,
            score(
                c.engine, case, weights, measured[c.engine.id], best, sizes[c.engine.id], cheapest
            ),
            measured[c.engine.id], sizes[c.engine.id],
        )
        if c.status != "rejected"
        else c
        for c in judged
    ]  # fmt: skip
    order: tuple[Status, ...] = ("qualified", "unproven", "rejected")

    def key(candidate: Candidate) -> tuple[int, int, float, int, str]:
        """Of equal scores the one that is known to run more, on more."""
        engine = candidate.engine
        breadth = len(engine.value("architectures") or ()) + len(engine.value("hardware") or ())
        open_questions = len(candidate.verdicts) if candidate.status == "unproven" else 0
        total = candidate.score.total if candidate.score else 0.0
        return order.index(candidate.status), open_questions, -total, -breadth, engine.id

    return sorted(made, key=key)


def _choose(
    part: Part,
    answers: Answers,
    engines: Mapping[str, Engine],
    evidence: Evidence,
    weights: Mapping[Dimension, float],
    catalogue: Container[str],
) -> Choice:
    case = Case(part, answers, evidence)
    candidates = tuple(rank(case, engines, weights))
    chosen = candidates[0] if candidates[0].status != "rejected" else None
    components = _components(case, engines, chosen)
    component = next((c for c in components if c.status == "qualified"), None)
    made: Commands | None = None
    found: tuple[str, ...] = ()
    numbers: dict[str, Number] = {}
    if chosen is not None:
        extra = _enabled(component, chosen)
        made = commands(chosen.engine, part, answers, extra, catalogue)
        found = tuple(risks.of(chosen.engine, case, engines.get(answers.current)))
        numbers = _numbers(chosen, answers)
    return Choice(
        part, chosen, candidates, component, components, made, found, numbers,
        tuple(next_steps(case, [c.engine for c in candidates if c.status == "qualified"],
                         chosen.engine if chosen else None, engines.get(answers.current))),
    )  # fmt: skip


def _components(
    case: Case, engines: Mapping[str, Engine], chosen: Candidate | None
) -> tuple[Candidate, ...]:
    """Every component, judged for the measured bottleneck and the chosen engine."""
    if not case.part.component or chosen is None:
        return ()
    found = []
    for engine in engines.values():
        if "component" in engine.classes:
            status, verdicts = _judged(list(_component_verdicts(engine, case, chosen.engine)))
            found.append(Candidate(engine, status, verdicts))
    order: tuple[Status, ...] = ("qualified", "unproven", "rejected")

    def key(candidate: Candidate) -> tuple[int, bool, str]:
        """Those first of which it is known how they are turned on."""
        known = chosen.engine.id in (candidate.engine.enable or {})
        return order.index(candidate.status), not known, candidate.engine.id

    return tuple(sorted(found, key=key))


def _component_verdicts(component: Engine, case: Case, engine: Engine) -> list[Verdict]:
    wanted = case.answers.bottleneck
    if component.has("addresses", wanted) is not True:
        own = ", ".join(component.value("addresses") or ("nothing that is known",))
        return [Verdict("bottleneck", "fail", f"addresses {own}, not {wanted}")]
    verdicts = [Verdict("bottleneck", "pass")]
    kinds = [kind for kind in case.kinds if component.has("hardware", kind)]
    if component.value("hardware") is not None and not kinds:
        known = [component.has("hardware", kind) for kind in case.kinds]
        outcome = "fail" if all(value is False for value in known) else "unknown"
        verdicts.append(
            Verdict("hardware", outcome, f"is not known to run on {', '.join(case.kinds)}")  # type: ignore[arg-type]
        )
    if engine.id not in (component.enable or {}) and not component.has("works_with", engine.id):
        reason = f"no source says that it works with {engine.name}"
        verdicts.append(Verdict("works with", "unknown", reason))
    return verdicts


def _enabled(component: Candidate | None, chosen: Candidate) -> str:
    if component is None:
        return ""
    known = (component.engine.enable or {}).get(chosen.engine.id)
    return "" if known is None else str(known.value)


def _numbers(chosen: Candidate, answers: Answers) -> dict[str, Number]:
    """The figures that the advice rests on, each with its origin."""
    numbers = {
        "peak requests in flight": Number(
            answers.peak_concurrency, "requests", "answered", "load.peak_concurrency"
        )
    }
    weights = weights_gb(answers)
    if weights is not None:
        numbers["weights"] = weights
    result = chosen.measurement
    if result is not None:
        where = f"{result.source}, {result.hardware}, {result.peak_concurrency} in flight"
        numbers["output"] = Number(result.output_tokens_per_second, "tokens/s", "measured", where)
        for name, value in (("TTFT p99", result.ttft_ms), ("TPOT p99", result.tpot_ms)):
            if value is not None:
                numbers[name] = Number(value, "ms", "measured", where)
    if chosen.size is not None:
        numbers["replicas"] = chosen.size.replicas
        if chosen.size.per_month is not None:
            numbers["cost per month"] = chosen.size.per_month
    return numbers


def _absent(answers: Answers, choices: tuple[Choice, ...], evidence: Evidence) -> tuple[str, ...]:
    absent = []
    chosen = [choice.chosen for choice in choices if choice.chosen is not None]
    if not chosen:
        return ()
    if any(candidate.measurement is None for candidate in chosen):
        absent.append(
            "no measurement of the recommended engine with this model, hardware and load: its "
            "performance is judged by documented features"
        )
    if any(candidate.size is None for candidate in chosen):
        absent.append("no sizing: how many machines it takes, and what they cost, is not known")
    if answers.per_month is not None and any(
        candidate.size is None or candidate.size.per_month is None for candidate in chosen
    ):
        absent.append("the budget was not checked: without a sizing there is no cost to compare")
    unanswered = [
        key
        for key, value in (
            ("model.parameters_b", answers.parameters_b),
            ("hardware.gpu_memory_gb", answers.gpu_memory_gb if answers.gpus else 0),
            ("hardware.memory_gb", 0 if answers.gpus and not answers.edge else answers.memory_gb),
        )
        if value is None
    ]
    if unanswered:
        absent.append(
            f"{' and '.join(unanswered)}: not answered, so that it was not checked everywhere "
            "whether the weights fit"
        )
    return tuple(absent)
