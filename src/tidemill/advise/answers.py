"""What was answered: read from a file or an interview, checked, written back."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Collection, Mapping
from typing import Any

from tidemill.advise.questions import BY_KEY, GPUS, QUESTIONS, SECTIONS, Question
from tidemill.records import dataclass

# Most characters of an answers file: a thousand times what one needs.
MAX_FILE = 1 << 20


class AnswerError(ValueError):
    """An answer that cannot be, or two that contradict each other; names them as
    ``section.name``."""

    @property
    def questions(self) -> list[Question]:
        """Those that it names."""
        return [question for question in QUESTIONS if question.key in str(self)]


@dataclass(frozen=True, slots=True)
class Answers:
    """One field for each question; see ``questions.py``. ``assumed`` are the keys of those that
    were not answered and have their defaults."""

    stage: str
    current: str
    workload: str
    peak_concurrency: int
    latency: str
    ttft_ms: float | None
    tpot_ms: float | None
    bottleneck: str
    servers: tuple[str, ...]
    edge: tuple[str, ...]
    gpus: int
    gpu_memory_gb: float | None
    memory_gb: float | None
    operations: str
    name: str
    parameters_b: float | None
    architecture: str
    format: str
    bits: int
    context: int
    changes: str
    custom_operators: bool
    special_tokens: bool
    stays_local: bool
    access_control: bool
    audit: bool
    per_month: float | None
    assumed: tuple[str, ...] = ()

    def get(self, question: Question) -> Any:
        return getattr(self, question.name)


def defaults() -> Answers:
    """What is taken where nothing is answered."""
    return from_values({})


def from_values(values: Mapping[str, Any], engines: Collection[str] = ()) -> Answers:
    """Answers from ``{"load.peak_concurrency": 8, ...}``. Raises AnswerError.

    engines: the ids that ``case.current`` may name; any, if empty.
    """
    return check(unchecked(values, engines))


def unchecked(values: Mapping[str, Any], engines: Collection[str] = ()) -> Answers:
    """The same, though they may contradict each other: see ``contradictions``."""
    for key in values:
        if key not in BY_KEY:
            begun = [known for known in BY_KEY if known.startswith(key)]
            near = begun or difflib.get_close_matches(key, BY_KEY, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise AnswerError(f"{key}: there is no such question{hint}")
    fields = {
        question.name: accept(question, values[question.key])
        if question.key in values
        else question.default
        for question in QUESTIONS
    }
    current = fields["current"]
    if engines and current not in (*engines, "none"):
        near = difflib.get_close_matches(str(current), engines, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(engines)}"
        raise AnswerError(f"case.current: no engine {_told(current)} is known{hint}")
    assumed = tuple(question.key for question in QUESTIONS if question.key not in values)
    return Answers(**fields, assumed=assumed)  # type: ignore[arg-type]


def read(text: str, where: str, engines: Collection[str] = ()) -> Answers:
    """Answers from TOML. Raises AnswerError that names ``where``."""
    if len(text) > MAX_FILE:
        raise AnswerError(f"{where}: more than {MAX_FILE} characters are no file of answers")
    try:
        table = tomllib.loads(text.removeprefix("\ufeff"))  # some editors write that mark
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"{where}: not valid TOML: {error}") from None
    values = {}
    for section, entries in table.items():
        if section not in SECTIONS:
            near = difflib.get_close_matches(section, SECTIONS, n=1)
            hint = f"did you mean [{near[0]}]" if near else f"known are {', '.join(SECTIONS)}"
            raise AnswerError(f"{where}: there is no section [{section}]; {hint}")
        if not isinstance(entries, dict):
            raise AnswerError(f"{where}: {section} is a section: [{section}], not a value")
        values.update({f"{section}.{name}": value for name, value in entries.items()})
    try:
        return from_values(values, engines)
    except AnswerError as error:
        raise AnswerError(f"{where}: {error}") from None


def write(answers: Answers) -> str:
    """The answers as TOML, each with its question above it."""
    lines = []
    for section, title in SECTIONS.items():
        lines += [f"[{section}]  # {title}"]
        for question in QUESTIONS:
            if question.section != section:
                continue
            value = answers.get(question)
            lines.append(f"# {question.ask}")
            if question.choices:
                lines.append(f"#   {', '.join(question.choices)}")
            shown = "" if value is None else _toml(value)
            lines.append(f"# {question.name} =" if value is None else f"{question.name} = {shown}")
        lines.append("")
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = "".join(
            f"\\u{ord(c):04X}" if c in '"\\' or ord(c) < 32 or ord(c) == 127 else c for c in value
        )
        return f'"{escaped}"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)


# ---- one answer --------------------------------------------------------------------------------


def understand(question: Question, text: str) -> Any:
    """What was typed, in the question's type, for ``accept`` to check; None: not given. Choices can
    be given by their number; several, with commas; none of them is ``-``. Raises AnswerError."""
    choices = list(question.choices or ())

    def chosen(word: str) -> str:
        number = int(word) if word.isascii() and word.isdigit() and len(word) < 4 else 0
        return choices[number - 1] if 1 <= number <= len(choices) else word

    match question.kind:
        case "yes-no":
            words = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
            if text.lower() not in words:
                raise AnswerError(f"{question.key}: {_told(text)} is neither yes nor no")
            return words[text.lower()]
        case "choice":
            return chosen(text)
        case "choices":
            return [] if text == "-" else [chosen(word) for word in text.replace(",", " ").split()]
        case "whole" | "number":
            if text == "-" and question.default is None:
                return None
            try:
                return int(text) if question.kind == "whole" else float(text)
            except ValueError:
                number = "whole number" if question.kind == "whole" else "number"
                raise AnswerError(f"{question.key}: {_told(text)} is not a {number}") from None
    return text


def accept(question: Question, value: object) -> Any:
    """The value in the question's type. Raises AnswerError."""
    key = question.key
    match question.kind:
        case "yes-no":
            if not isinstance(value, bool):
                raise AnswerError(f"{key}: {_told(value)} is neither true nor false")
            return value
        case "whole":
            if not isinstance(value, int) or isinstance(value, bool):
                raise AnswerError(f"{key}: {_told(value)} is not a whole number")
            return _bounded(question, value)
        case "number":
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise AnswerError(f"{key}: {_told(value)} is not a number")
            if isinstance(value, float) and not math.isfinite(value):
                raise AnswerError(f"{key}: {value} is not a finite number")
            return float(_bounded(question, value))
        case "choice":
            return _chosen(question, value)
        case "choices":
            if not isinstance(value, (list, tuple)):
                raise AnswerError(f'{key}: {_told(value)} is not a list such as ["cpu-x86"]')
            return tuple(dict.fromkeys(_chosen(question, entry) for entry in value))
        case "text":
            if not isinstance(value, str) or not value.strip():
                raise AnswerError(f"{key}: {_told(value)} is not a text that says something")
            if not value.isprintable() or len(value) > 1000:
                raise AnswerError(f"{key}: control characters, or longer than 1000 characters")
            return value.strip()


def _told(value: object) -> str:
    """What was answered, short."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _bounded(question: Question, value: float) -> float:
    if not question.least <= value <= question.most:
        bounds = f"{question.least:g} and {question.most:g}"
        raise AnswerError(f"{question.key}: {_told(value)} is not between {bounds}")
    return value


def _chosen(question: Question, value: object) -> str:
    choices = question.choices or {}
    if not isinstance(value, str) or value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        known = ", ".join(choices)
        raise AnswerError(f"{question.key}: {_told(value)} is not one of {known}{hint}")
    return value


def in_words(value: Any) -> str:
    """An answer as a person reads it."""
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " and ".join(value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---- answers together --------------------------------------------------------------------------


def check(answers: Answers) -> Answers:
    """The answers, if they can be true together. Raises AnswerError that names those that
    cannot."""
    for message in contradictions(answers):
        raise AnswerError(message)
    return answers


def contradictions(answers: Answers) -> list[str]:
    """Which answers cannot be true together, and why."""
    gpu_kinds = [kind for kind in answers.servers if kind in GPUS]
    found = [
        (
            answers.name.startswith("-"),
            f"model.name: {answers.name!r} begins with a dash, which commands take for an option",
        ),
        (
            not answers.servers and not answers.edge,
            "hardware.servers and hardware.edge are both empty: it has to run on something",
        ),
        (
            answers.stage == "edge" and not answers.edge,
            'case.stage is "edge", but hardware.edge is empty: name what is there',
        ),
        (
            bool(gpu_kinds) and answers.gpus == 0,
            f"hardware.servers has {' and '.join(gpu_kinds)}, but hardware.gpus is 0",
        ),
        (
            answers.gpus > 0 and not gpu_kinds,
            f"hardware.gpus is {answers.gpus}, but hardware.servers names no GPUs "
            f"({', '.join(GPUS)})",
        ),
        (
            answers.gpu_memory_gb is not None and answers.gpus == 0,
            "hardware.gpu_memory_gb is given, but hardware.gpus is 0",
        ),
        (
            answers.latency == "batch" and answers.ttft_ms is not None,
            'load.ttft_ms is given, but load.latency is "batch": hours do not matter there',
        ),
        (
            answers.latency == "batch" and answers.tpot_ms is not None,
            'load.tpot_ms is given, but load.latency is "batch": hours do not matter there',
        ),
        (
            answers.workload == "edge-single-user" and answers.peak_concurrency > 1,
            'load.workload is "edge-single-user", but load.peak_concurrency is '
            f"{answers.peak_concurrency}",
        ),
        (
            answers.workload == "offline-batch" and answers.latency == "interactive",
            'load.workload is "offline-batch", but load.latency is "interactive"',
        ),
        (
            answers.workload == "voice-turn" and answers.latency == "batch",
            'load.workload is "voice-turn", but load.latency is "batch"',
        ),
        (
            answers.bottleneck == "communication" and answers.gpus < 2,
            'load.bottleneck is "communication", which needs at least two GPUs, but hardware.gpus '
            f"is {answers.gpus}",
        ),
        (
            answers.audit and not answers.access_control,
            "data.audit is true, but data.access_control is false: who asked cannot be recorded "
            "of users who do not say who they are",
        ),
    ]
    return [message for wrong, message in found if wrong]
