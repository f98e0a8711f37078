"""Ready-to-run commands for an engine, from the templates in its facts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Iterable, Mapping

from tidemill.advise.answers import Answers
from tidemill.advise.facts import Argument, Engine
from tidemill.advise.flow import Part, gpus_of, hardware_of, in_flight
from tidemill.advise.questions import GPUS
from tidemill.advise.rules import converts
from tidemill.records import dataclass

CONDITIONS = (
    "gpu", "no-gpu", "several-gpus", "stays-local", "access-control", "local-file", "by-name",
    "gguf-file", "not-gguf-file", "converts", "converts-by-name", "ready", "repository",
    "not-repository", "repository-offline",
)  # fmt: skip

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
SETTINGS = ("model", "folder", "context", "total_context", "slots", "gpus")


@dataclass(frozen=True, slots=True)
class Commands:
    """What to type: once to install, before the start, and to start."""

    install: str
    prepare: tuple[str, ...]
    start: str
    url: str
    note: str
    source: str


def commands(
    engine: Engine, part: Part, answers: Answers, extra: str = "", catalogue: Container[str] = ()
) -> Commands | None:
    """None for an engine without a template. extra: what a component adds to the command line.
    catalogue: names of models that ``tidemill pull`` brings, as it does URLs; other engines are
    given the path."""
    launch = engine.launch
    if launch is None:
        return None
    name = answers.name
    path = None if launch.takes_names else pulled(name, catalogue)
    model = path or _quoted(name)
    is_local = path is not None or is_path(name)
    holds = _conditions(engine, part, answers, is_local)
    settings = _settings(part, answers, model, is_local)
    environment = _chosen(launch.environment, holds, settings)
    arguments = _chosen(launch.arguments, holds, settings)
    if extra:
        arguments.append(extra)
    start = " \\\n    ".join(arguments)
    if environment and start:
        start = " ".join(environment) + " " + start
    note = launch.note
    if not (is_local or launch.takes_names or is_repository(name)):
        note = f"Whether {engine.name} knows a model `{name}` was not looked up. {note}".strip()
    return Commands(
        install=launch.install,
        prepare=tuple(_chosen(launch.prepare, holds, settings)),
        start=start,
        url=launch.url,
        note=note,
        source=launch.source.url,
    )


def _chosen(
    arguments: Iterable[Argument], holds: Mapping[str, bool], settings: Mapping[str, str]
) -> list[str]:
    return [
        _PLACEHOLDER.sub(lambda match: settings[match[1]], argument.text)
        for argument in arguments
        if not argument.when or holds[argument.when]
    ]


def _conditions(engine: Engine, part: Part, answers: Answers, is_local: bool) -> dict[str, bool]:
    on_gpu = any(
        kind in GPUS and engine.has("hardware", kind) for kind in hardware_of(part, answers)
    )
    converted = converts(engine, answers)
    repository = is_repository(answers.name)
    holds = {
        "gpu": on_gpu,
        "no-gpu": not on_gpu and "apple" not in hardware_of(part, answers),
        "several-gpus": on_gpu and gpus_of(part, answers) > 1,
        "stays-local": answers.stays_local,
        "access-control": answers.access_control,
        "local-file": is_local and not converted,
        "by-name": not is_local and not converted,
        "gguf-file": is_local and answers.format == "gguf",
        "not-gguf-file": not (is_local and answers.format == "gguf"),
        "converts": converted,
        "converts-by-name": converted and not is_local,
        "ready": not converted,
        "repository": repository,
        "not-repository": not repository,
        "repository-offline": repository and answers.stays_local,
    }
    assert set(holds) == set(CONDITIONS)
    return holds


def _settings(part: Part, answers: Answers, model: str, is_local: bool) -> dict[str, str]:
    slots = in_flight(part, answers)
    return {
        "model": model,
        # Where a model that has to be converted is, or is downloaded to.
        "folder": model if is_local else "./model",
        "context": str(answers.context),
        "total_context": str(answers.context * slots),
        "slots": str(slots),
        "gpus": str(gpus_of(part, answers)),
    }


def _quoted(text: str) -> str:
    """Safe in a shell; a home directory stays one."""
    return "~/" + shlex.quote(text[2:]) if text.startswith("~/") else shlex.quote(text)


def pulled(name: str, catalogue: Container[str]) -> str | None:
    """In a shell, the path of a model that ``tidemill pull`` brings: of a URL, or a name of
    ``catalogue``. None for others."""
    if "://" not in name and name.lower() not in catalogue:
        return None
    return f'"$(tidemill pull --path {shlex.quote(name)})"'


def is_path(name: str) -> bool:
    """Whether a model's name is a path."""
    return name.startswith(("/", "./", "../", "~")) or name.endswith((".gguf", ".safetensors"))


def is_repository(name: str) -> bool:
    """Whether it is ``owner/model``, of the Hugging Face hub."""
    return "/" in name and "://" not in name and not is_path(name)
