"""What would change the decision: found by varying every answer and deciding again.

Nothing here is written down beforehand. Each choice is tried with its other values, each number
along a ladder up and down, and where the decision changes, the nearest value that changes it is
searched for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tidemill.advise.advice import decide
from tidemill.advise.answers import AnswerError, Answers, check, in_words
from tidemill.advise.evidence import Evidence
from tidemill.advise.facts import Engine
from tidemill.advise.questions import GPUS, QUESTIONS, Question
from tidemill.advise.scores import DIMENSIONS, Dimension
from tidemill.records import dataclass

Decision = tuple[tuple[str, str], ...]

# How far numbers are varied: up and down by these factors.
LADDER = tuple(2.0**k for k in range(1, 17))


@dataclass(frozen=True, slots=True)
class Flip:
    """``key`` from ``before`` to ``after`` changes the decision to ``decision``. ``with_it`` says
    what else had to change so that the answers hold together."""

    key: str
    before: str
    after: str
    decision: Decision
    with_it: str = ""


@dataclass(frozen=True, slots=True)
class Flips:
    """All flips, how many variations were decided, and which answers change nothing alone."""

    flips: tuple[Flip, ...]
    tried: int
    without_effect: tuple[str, ...]


def find(
    answers: Answers,
    engines: Mapping[str, Engine],
    evidence: Evidence,
    weights: Mapping[Dimension, float],
) -> Flips:
    """Every single answer, and the weights, varied."""
    tried = 0

    def decision_of(case: Answers) -> Decision:
        nonlocal tried
        tried += 1
        return decide(case, engines, evidence, weights)

    now = decision_of(answers)
    flips: list[Flip] = []
    without = []
    for question in QUESTIONS:
        if question.name in ("current", "name"):  # no rule looks at them
            continue
        found = list(_vary(question, answers, now, decision_of))
        flips += found
        if not found:
            without.append(question.key)
    for dimension in DIMENSIONS:
        alone = {name: 1.0 if name == dimension else 0.0 for name in DIMENSIONS}
        tried += 1
        decision = decide(answers, engines, evidence, alone)
        if decision != now:
            shown = f"{weights[dimension]:g} of {sum(weights.values()):g}"
            flips.append(Flip(f"weight of {dimension}", shown, "all of it", decision))
    return Flips(tuple(flips), tried, tuple(without))


def _vary(
    question: Question, answers: Answers, now: Decision, decide: Callable[[Answers], Decision]
) -> Iterator[Flip]:
    value = answers.get(question)
    if question.kind in ("whole", "number"):
        for up in (True, False):
            yield from _along(question, answers, now, decide, up)
        return
    for other in _others(question, value):
        varied = _with(answers, question, other)
        if varied is None:
            continue
        case, with_it = varied
        decision = decide(case)
        if decision != now:
            yield Flip(question.key, in_words(value), in_words(other), decision, with_it)


def _others(question: Question, value: Any) -> list[Any]:
    """The other values of an answer that is no number; of a list, one more and one less."""
    choices = list(question.choices or ())
    match question.kind:
        case "yes-no":
            return [not value]
        case "choice":
            return [choice for choice in choices if choice != value]
        case "choices":
            more = [(*value, choice) for choice in choices if choice not in value]
            fewer = [tuple(kept for kept in value if kept != choice) for choice in value]
            return fewer + more
    return []


def _along(
    question: Question,
    answers: Answers,
    now: Decision,
    decide: Callable[[Answers], Decision],
    up: bool,
) -> Iterator[Flip]:
    """The nearest number in one direction that changes the decision."""
    last = answers.get(question)
    for number in _ladder(question, last, up):
        varied = _with(answers, question, number)
        if varied is not None:
            decision = decide(varied[0])
            if decision != now:
                if last is None:  # even the end of the ladder differs: the other direction finds it
                    return
                nearest = _bisect(question, answers, decide, now, last, number)
                case, with_it = _with(answers, question, nearest) or varied
                before = in_words(answers.get(question))
                yield Flip(question.key, before, in_words(nearest), decide(case), with_it)
                return
        last = number


def _ladder(question: Question, value: float | None, up: bool) -> Iterator[float]:
    """Numbers away from ``value`` by the ladder's factors, within the question's bounds. From a
    number that was not given: all of the range, from its low end up or from its high end down."""
    if value is None:
        start = question.least if up else min(question.least * LADDER[-1], question.most)
        yield start
    else:
        start = value or 1
    last = start
    for factor in LADDER:
        number = start * factor if up else start / factor
        number = min(max(number, question.least), question.most)
        number = round(number) if question.kind == "whole" else number
        if number != last:
            yield number
        last = number


def _bisect(
    question: Question,
    answers: Answers,
    decide: Callable[[Answers], Decision],
    now: Decision,
    same: float,
    changed: float,
) -> float:
    """The value nearest to ``same``, which decides as now, that decides otherwise."""
    for _ in range(40):
        middle = (same + changed) / 2
        middle = round(middle) if question.kind == "whole" else float(f"{middle:.3g}")
        if middle in (same, changed):
            break
        varied = _with(answers, question, middle)
        if varied is None:
            break
        if decide(varied[0]) == now:
            same = middle
        else:
            changed = middle
    return changed


def _with(answers: Answers, question: Question, value: Any) -> tuple[Answers, str] | None:
    """The answers with one changed, and with what follows from it; None if they cannot be."""
    changed: dict[str, Any] = {question.name: value}
    if question.name == "servers":
        gpus = any(kind in GPUS for kind in value)
        if gpus and answers.gpus == 0:
            changed["gpus"] = 1
        elif not gpus and answers.gpus:
            changed |= {"gpus": 0, "gpu_memory_gb": None}
    if question.name == "audit" and value:
        changed["access_control"] = True
    if question.name == "access_control" and not value:
        changed["audit"] = False
    if question.name == "latency" and value == "batch":
        changed |= {"ttft_ms": None, "tpot_ms": None}
    changed = {
        name: new for name, new in changed.items()
        if name == question.name or new != getattr(answers, name)
    }  # fmt: skip
    try:
        case = check(dataclasses.replace(answers, **changed))
    except AnswerError:
        return None
    keys = {other.name: other.key for other in QUESTIONS}
    others = [f"{keys[n]} = {in_words(v)}" for n, v in changed.items() if n != question.name]
    return case, ", ".join(others)
