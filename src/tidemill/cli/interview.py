"""The interview of ``tidemill advise``: a question at a time, with a way back."""

from __future__ import annotations

import platform
import sys
from typing import Any

import click

from tidemill.advise.answers import (
    AnswerError,
    Answers,
    accept,
    from_values,
    in_words,
    understand,
)
from tidemill.advise.questions import GPUS, QUESTIONS, SECTIONS, Question, kind_of_processor

HELP = "Enter takes the value in [brackets]; ? explains, < goes back, Ctrl-C leaves."


class Interview:
    """Asks on stderr, so that the report alone goes to stdout; reads lines from stdin."""

    def __init__(self, engines: tuple[str, ...]) -> None:
        self.values: dict[str, Any] = {}
        """The answers so far, by key; on the way back they are proposed."""
        self.engines = engines

    def run(self) -> Answers:
        """The answers. Raises click.Abort at the end of input."""
        _say(HELP)
        at, section = 0, ""
        while at < len(QUESTIONS):
            question = QUESTIONS[at]
            if question.section != section:
                section = question.section
                _say(f"\n{SECTIONS[section]}")
            if not _matters(question, self.values):
                self.values.pop(question.key, None)
                at += 1
                continue
            if self._ask(question):
                at += 1
            else:
                at = max(0, at - 1)
                while at and not _matters(QUESTIONS[at], self.values):
                    at -= 1
                section = ""
        return self._agree()

    def _agree(self) -> Answers:
        """Answers that hold together: those that do not are asked again."""
        while True:
            try:
                return from_values(self.values, self.engines)
            except AnswerError as error:
                _say(f"\nThese answers cannot both be: {error}")
                for question in error.questions or QUESTIONS:
                    while not self._ask(question):
                        pass

    def _ask(self, question: Question) -> bool:
        """Ask until there is an answer; False: go back."""
        proposed = self.values.get(question.key, _default(question, self.values))
        choices = list(question.choices or ())
        _say(f"\n{question.ask}")
        for number, choice in enumerate(choices, 1):
            meaning = (question.choices or {})[choice]
            _say(f"  {number:>2}  {choice:<18} {meaning}".rstrip())
        if question.kind == "choices":
            _say("      several: numbers with commas; none: -")
        while True:
            line = _read(f"[{_shown(question, proposed)}] ")
            if line == "<":
                return False
            if line == "?":
                _say(question.help or f"It is {question.key} in an answers file.")
                continue
            try:
                value = proposed if line == "" else understand(question, line)
                if value is None:
                    self.values.pop(question.key, None)
                else:
                    self.values[question.key] = accept(question, value)
                    if question.key == "case.current":
                        from_values({question.key: value}, self.engines)
            except AnswerError as error:
                _say(f"{error}")
                continue
            return True


def _matters(question: Question, values: dict[str, Any]) -> bool:
    """Whether the question can make a difference after what was answered."""
    match question.key:
        case "hardware.gpus" | "hardware.gpu_memory_gb":
            return any(kind in GPUS for kind in values.get("hardware.servers", ()))
        case "load.ttft_ms" | "load.tpot_ms":
            return values.get("load.latency") != "batch"
        case "data.audit":
            return bool(values.get("data.access_control"))
    return True


def _default(question: Question, values: dict[str, Any]) -> Any:
    """The question's default, or what fits to what was answered before, and to this machine."""
    trying = values.get("case.stage") == "trying"  # likely on the machine at hand
    match question.key:
        case "hardware.servers" if trying:
            return (kind_of_processor(platform.machine(), platform.system()),)
        case "hardware.memory_gb" if trying:
            from tidemill.hardware import memory_budget

            total = memory_budget().total
            return None if total is None else round(total / 1e9, 1)
        case "hardware.gpus":
            return 1
        case "load.latency" if values.get("load.workload") == "offline-batch":
            return "batch"
        case "load.peak_concurrency" if values.get("load.workload") == "edge-single-user":
            return 1
        case "model.format" if values.get("hardware.servers") and "cpu" not in str(
            values["hardware.servers"]
        ):
            return "safetensors"
        case "model.bits" if values.get("model.format") == "safetensors":
            return 16
    return question.default


def _shown(question: Question, value: Any) -> str:
    if value is None:
        return "no limit" if question.section in ("load", "budget") else "not known"
    return in_words(value)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _read(prompt: str) -> str:
    click.echo(prompt, err=True, nl=False)
    line = sys.stdin.readline(4096)
    if not line:
        click.echo(err=True)
        raise click.Abort
    return line.strip()
