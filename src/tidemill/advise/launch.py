"""Ready-to-run commands and files for an engine, from the templates in its facts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from tidemill.advise.answers import Answers
from tidemill.advise.facts import Argument, Engine, Launch
from tidemill.advise.flow import Part, gpus_of, hardware_of, in_flight
from tidemill.advise.questions import GPUS
from tidemill.advise.rules import converts
from tidemill.records import dataclass

CONDITIONS = (
    "gpu", "no-gpu", "several-gpus", "stays-local", "access-control", "local-file", "by-name",
    "gguf-file", "not-gguf-file", "openvino-format", "not-openvino", "converts", "converts-by-name",
    "ready", "repository", "not-repository", "repository-offline",
)  # fmt: skip

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
SETTINGS = ("model", "folder", "context", "total_context", "slots", "gpus")


@dataclass(frozen=True, slots=True)
class Commands:
    """What to type: once to install, before the start, and to start; files to have beside it."""

    install: str
    prepare: tuple[str, ...]
    start: str
    files: Mapping[str, str]
    url: str
    note: str
    source: str


def commands(engine: Engine, part: Part, answers: Answers, extra: str = "") -> Commands | None:
    """None for an engine without a template. extra: what a component adds to the command line."""
    launch = engine.launch
    if launch is None:
        return None
    holds = _conditions(engine, part, answers)
    plain = _settings(part, answers)
    settings = {name: _quoted(value) for name, value in plain.items()}
    environment = _chosen(launch.environment, holds, settings)
    arguments = _chosen(launch.arguments, holds, settings)
    if extra:
        arguments.append(extra)
    start = " \\\n    ".join(arguments)
    if environment and start:
        start = " ".join(environment) + " " + start
    return Commands(
        install=launch.install,
        prepare=tuple(_chosen(launch.prepare, holds, settings)),
        start=start,
        files=_files(launch, holds, plain),
        url=launch.url,
        note=launch.note,
        source=launch.source.url,
    )


def _files(
    launch: Launch, holds: Mapping[str, bool], settings: Mapping[str, str]
) -> dict[str, str]:
    made = {}
    for name, lines in (launch.files or {}).items():
        text = _chosen(lines, holds, settings)
        if text:
            made[name] = "\n".join(text) + "\n"
    return made


def _chosen(
    arguments: Iterable[Argument], holds: Mapping[str, bool], settings: Mapping[str, str]
) -> list[str]:
    return [
        _PLACEHOLDER.sub(lambda match: settings[match[1]], argument.text)
        for argument in arguments
        if not argument.when or holds[argument.when]
    ]


def _conditions(engine: Engine, part: Part, answers: Answers) -> dict[str, bool]:
    on_gpu = any(
        kind in GPUS and engine.has("hardware", kind) for kind in hardware_of(part, answers)
    )
    converted = converts(engine, answers)
    a_file = is_path(answers.name)
    repository = "/" in answers.name and not a_file and "://" not in answers.name
    holds = {
        "gpu": on_gpu,
        "no-gpu": not on_gpu and "apple" not in hardware_of(part, answers),
        "several-gpus": on_gpu and gpus_of(part, answers) > 1,
        "stays-local": answers.stays_local,
        "access-control": answers.access_control,
        "local-file": a_file and not converted,
        "by-name": not a_file and not converted,
        "gguf-file": a_file and answers.format == "gguf",
        "not-gguf-file": not (a_file and answers.format == "gguf"),
        "openvino-format": answers.format == "openvino",
        "not-openvino": answers.format != "openvino",
        "converts": converted,
        "converts-by-name": converted and not a_file,
        "ready": not converted,
        "repository": repository,
        "not-repository": not repository,
        "repository-offline": repository and answers.stays_local,
    }
    assert set(holds) == set(CONDITIONS)
    return holds


def _settings(part: Part, answers: Answers) -> dict[str, str]:
    slots = in_flight(part, answers)
    return {
        "model": answers.name,
        # Where a model that has to be converted is, or is downloaded to.
        "folder": answers.name if is_path(answers.name) else "./model",
        "context": str(answers.context),
        "total_context": str(answers.context * slots),
        "slots": str(slots),
        "gpus": str(gpus_of(part, answers)),
    }


def _quoted(text: str) -> str:
    """Safe in a shell; a home directory stays one."""
    return "~/" + shlex.quote(text[2:]) if text.startswith("~/") else shlex.quote(text)


def is_path(name: str) -> bool:
    """Whether a model's name is a path."""
    return name.startswith(("/", "./", "../", "~")) or name.endswith((".gguf", ".safetensors"))
