"""The interview as a form: what is in its fields, and what that says."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tidemill.advise.answers import (
    AnswerError,
    Answers,
    accept,
    contradictions,
    unchecked,
    understand,
)
from tidemill.advise.questions import BY_KEY, QUESTIONS, Question
from tidemill.advise.scores import DIMENSIONS, WEIGHTS, Dimension, parse_weights
from tidemill.records import dataclass

_WEIGHTS: dict[str, Dimension] = {f"weight.{name}": name for name in DIMENSIONS}
"""Fields that are no questions."""

# Choices up to so many are all in view; more are in a list that opens.
MOST_IN_VIEW = 5


@dataclass(frozen=True, slots=True)
class Form:
    """``typed``: the texts in the fields by name; several for a question of several choices.
    ``errors``: by field what is wrong with it, "" for what is no field's. Without any there are
    ``answers``, and ``shares``: the weights."""

    typed: Mapping[str, tuple[str, ...]]
    errors: Mapping[str, list[str]]
    answers: Answers | None
    shares: Mapping[Dimension, float]

    def text(self, name: str) -> str:
        return next(iter(self.typed.get(name, ())), "")

    @staticmethod
    def control(question: Question) -> str:
        """What kind of field a question has."""
        match question.kind:
            case "choices":
                return "boxes"
            case "yes-no":
                return "buttons"
            case "choice":
                few = len(question.choices or ()) <= MOST_IN_VIEW
                return "buttons" if few else "list"
        return "line"

    @staticmethod
    def options(question: Question) -> Mapping[str, str]:
        """What can be chosen, and what it means."""
        return {"yes": "", "no": ""} if question.kind == "yes-no" else question.choices or {}


def filled(answers: Answers, weights: Mapping[Dimension, float]) -> Form:
    """The form with these answers in it."""
    typed = {question.key: _shown(answers.get(question)) for question in QUESTIONS}
    typed |= {field: (f"{weights[name]:g}",) for field, name in _WEIGHTS.items()}
    return Form(typed, {}, answers, weights)


def read(fields: Iterable[tuple[str, str]], engines: Collection[str]) -> Form:
    """A form that was sent: the pairs of its query. A field that is empty was not answered."""
    typed: dict[str, tuple[str, ...]] = {}
    for name, text in fields:
        typed.setdefault(name, ())
        if text.strip():
            typed[name] += (text.strip(),)
    errors: dict[str, list[str]] = {}

    def wrong(name: str, message: str) -> None:
        errors.setdefault(name, []).append(message.removeprefix(f"{name}: "))

    values: dict[str, Any] = {}
    for name, texts in typed.items():
        question = BY_KEY.get(name)
        if question is None and name not in _WEIGHTS:
            wrong("", f"{name}: there is no such question")
        elif question is not None and (texts or question.kind == "choices"):
            try:
                values[name] = accept(question, understand(question, ",".join(texts) or "-"))
            except AnswerError as error:
                wrong(name, str(error))
    answers = None
    if not errors:
        try:
            answers = unchecked(values, engines)
        except AnswerError as error:
            for question in error.questions:
                wrong(question.key, str(error))
    if answers is not None:
        for message in contradictions(answers):
            for question in AnswerError(message).questions:
                wrong(question.key, message)
    shares: Mapping[Dimension, float] = {}
    try:
        shares = _weights(typed)
    except ValueError as error:
        wrong(next(iter(_WEIGHTS)), str(error))
    return Form(typed, errors, None if errors else answers, shares)


def _weights(typed: Mapping[str, tuple[str, ...]]) -> Mapping[Dimension, float]:
    if not _WEIGHTS.keys() & typed.keys():  # an address that somebody wrote
        return WEIGHTS
    given = {name: "".join(typed.get(field, ())) or "0" for field, name in _WEIGHTS.items()}
    return parse_weights(",".join(f"{name}={text}" for name, text in given.items()))


def _shown(value: Any) -> tuple[str, ...]:
    """An answer as it stands in its field."""
    if value is None:
        return ()
    if isinstance(value, bool):
        return ("yes" if value else "no",)
    if isinstance(value, tuple):
        return value
    return (f"{value:.15g}" if isinstance(value, float) else str(value),)
