"""What an engine is to the bench: how it is found, called, made ready and asked."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from tidemill.bench.processes import kill_session

if TYPE_CHECKING:
    from tidemill.bench.engines.process import EngineProcess

MODEL_NAME = "model"
"""What an engine that was started here calls its model, if it can be told."""

Form = Literal["GGUF file", "Hugging Face folder", "OpenVINO folder"]

Proof = Literal["tested with the engine", "checked against its documentation only"]
"""How its command line and its answers are known to be right."""

_PATIENCE = 120
"""Seconds for an engine to tell its version; those on PyTorch take ten and more."""

_LONGEST = 1 << 16
"""Bytes of what it says then."""


class TargetError(ValueError):
    """Whoever is to be measured cannot be: the message says why, and what to do."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """``model`` is a file or folder. ``sequences`` of ``context`` tokens each at once. ``folder``:
    for files that the engine needs, which it finds there again when it is started once more.
    ``keys``: of tenants by their names. ``binary``: the program or interpreter, if not the one that
    is found. ``arguments`` are added to the command line."""

    model: Path
    context: int
    sequences: int
    threads: int
    folder: Path
    keys: dict[str, str] = {}
    binary: str | None = None
    arguments: tuple[str, ...] = ()


class Engine:
    """One engine. What most have in common is here; each says what it has otherwise.

    takes: forms of models. tenants: it tells tenants apart. takes_threads: it uses as many as it is
    told. health: the path that answers 200 when it can be asked. greedy, full_length: fields of a
    request's body that make answers greedy, and exactly as long as ``max_tokens`` (none: it cannot
    be made to).
    """

    name: ClassVar[str]
    program: ClassVar[str]
    install: ClassVar[str]
    takes: ClassVar[tuple[Form, ...]]
    proof: ClassVar[Proof] = "checked against its documentation only"
    default_model: ClassVar[str | None] = None
    tenants: ClassVar[bool] = False
    takes_threads: ClassVar[bool] = True
    health: ClassVar[str] = "/health"
    greedy: ClassVar[Mapping[str, Any]] = {"temperature": 0}
    full_length: ClassVar[Mapping[str, Any]] = {"ignore_eos": True}

    _version: ClassVar[str] = r"(?m)^(?:[A-Za-z][\w-]* )?v?(\d+\.\d\S*)\s*$"
    """Where the version is in what the program says of itself."""

    def find(self, binary: str | None) -> str:
        """The program's path. Raises TargetError, which says how to install it."""
        found = shutil.which(binary or self.program)
        if found is None and binary is not None:
            raise TargetError(f"{binary} is no program that can be run")
        if found is None:
            raise TargetError(
                f"{self.program} is not on PATH: install {self.name} ({self.install}), or say "
                "where it is with --binary"
            )
        return found

    def version(self, binary: str | None) -> str:
        """Raises TargetError if it is not there, or is something else."""
        said = said_by(self.find(binary), *self._version_arguments())
        found = re.search(self._version, said)
        if found is None:
            raise TargetError(f"this is no {self.program}: {said.strip()[:300]}")
        return found[1].strip()

    def _version_arguments(self) -> tuple[str, ...]:
        return ("--version",)

    def check(self, model: Path) -> None:
        """Raises TargetError if the engine does not take models of this form."""
        form = form_of(model)
        if form not in self.takes:
            raise TargetError(
                f"{self.name} takes {_a(self.takes)}, and {model} is "
                f"{'something else' if form is None else _a((form,))}. {_OTHER_FORM[self.takes[0]]}"
            )

    def command(self, launch: Launch, port: int) -> list[str]:
        raise NotImplementedError

    def environment(self, launch: Launch, port: int) -> dict[str, str]:
        return {}

    def model_name(self, launch: Launch) -> str:
        """What it is to be asked for."""
        return MODEL_NAME

    def prepare(self, process: EngineProcess, launch: Launch, seconds: float) -> None:
        """What has to be done between its answering at ``health`` and the first request."""

    def files(self, launch: Launch) -> list[Path]:
        """Files that it has made of the model, and reads when it starts."""
        return []


class Module(Engine):
    """An engine that is a Python package: its program is the interpreter that has it."""

    package: ClassVar[str]
    program = "python"

    def find(self, binary: str | None) -> str:
        return super().find(binary or sys.executable)

    def version(self, binary: str | None) -> str:
        python = self.find(binary)
        said = said_by(
            python, "-c", f"import importlib.metadata as m; print(m.version({self.package!r}))"
        ).strip()
        if re.fullmatch(r"\d\S*", said) is None:
            raise TargetError(
                f"{python} has no {self.package}: install it ({self.install}), or name an "
                "interpreter that has it with --binary"
            )
        return said


_OTHER_FORM: Mapping[Form, str] = {
    "GGUF file": "Give a .gguf file of the same model, or convert it with llama.cpp's "
    "convert_hf_to_gguf.py",
    "Hugging Face folder": "Give the folder of the original model (config.json and safetensors), "
    "as `hf download OWNER/NAME --local-dir FOLDER` makes it",
    "OpenVINO folder": "Give a .gguf file, or convert the original model with `optimum-cli export "
    "openvino`",
}


def form_of(model: Path) -> Form | None:
    """What a model is by what is there; None for none of these."""
    if model.is_dir():
        if (model / "openvino_model.xml").is_file():
            return "OpenVINO folder"
        return "Hugging Face folder" if (model / "config.json").is_file() else None
    return "GGUF file" if model.suffix == ".gguf" or _begins_as_gguf(model) else None


def _begins_as_gguf(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(4) == b"GGUF"
    except OSError:
        return False


def _a(forms: tuple[Form, ...]) -> str:
    articles = {"H": "a", "G": "a", "O": "an"}
    return " or ".join(f"{articles[form[0]]} {form}" for form in forms)


@functools.cache
def said_by(program: str, *arguments: str) -> str:
    """What a program prints, as far as it is short; asked once, as some take long. Whatever it has
    started ends with it. Raises TargetError."""
    late = threading.Event()
    try:
        process = subprocess.Popen(
            [program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise TargetError(f"{program} does not run: {error}") from None

    def give_up() -> None:
        late.set()
        kill_session(process.pid)

    timer = threading.Timer(_PATIENCE, give_up)
    timer.start()
    with process:
        assert process.stdout is not None
        try:
            said = process.stdout.read(_LONGEST)
        finally:
            timer.cancel()
            kill_session(process.pid)
    if late.is_set():
        raise TargetError(f"{program} does not run: no answer within {_PATIENCE:g} s")
    return said.decode(errors="replace")
