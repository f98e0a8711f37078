"""Engines as child processes: how each is started, when it is ready, how it is ended.

All listen on a free port of this machine only, and hold as many sequences of as many tokens as the
load needs (``Launch``). Otherwise they run as they do by default, but that guessing ahead is off:
answers to prompts of random words repeat themselves, which would flatter whoever guesses.
"""

from __future__ import annotations

import ctypes
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Protocol

import msgspec

from tidemill import __version__
from tidemill.bench.processes import family, free_port

MODEL_NAME = "model"
"""What an engine that was started here calls its model."""

_END_SECONDS = 15.0


class TargetError(ValueError):
    """Whoever is to be measured cannot be: the message says why, and what to do."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """``model`` is a file or folder. ``sequences`` of ``context`` tokens each at once. ``keys``: of
    tenants by their names. ``binary``: the program, if not the one on PATH. ``arguments`` are
    added to the command line."""

    model: Path
    context: int
    sequences: int
    threads: int
    keys: dict[str, str] = {}
    binary: str | None = None
    arguments: tuple[str, ...] = ()


class Engine(Protocol):
    name: str
    default_model: str | None
    tenants: bool
    """Whether it tells tenants apart."""

    def version(self, binary: str | None) -> str:
        """Raises TargetError, which says how to install it, if it is not there."""

    def command(self, launch: Launch, port: int, folder: Path) -> list[str]:
        """``folder`` is for files that it needs, until it is ended."""

    def caches(self, model: Path) -> list[Path]:
        """Files that it has made of the model, and reads when it starts."""


class Tidemill:
    name = "tidemill"
    default_model: str | None = "smollm2"
    tenants = True

    def version(self, binary: str | None) -> str:
        if binary is not None:
            raise TargetError("--binary is for llama.cpp; Tidemill is this one")
        return __version__

    def command(self, launch: Launch, port: int, folder: Path) -> list[str]:
        command = [
            sys.executable, "-m", "tidemill", "serve", str(launch.model), "--name", MODEL_NAME,
            "--port", str(port), "--threads", str(launch.threads),
            "--max-sequences", str(launch.sequences), "--context", str(launch.context),
            "--speculative", "off", "--log-level", "warning",
        ]  # fmt: skip
        if launch.keys:
            command += ["--api-key-file", str(_key_file(launch.keys, folder))]
        return [*command, *launch.arguments]

    def caches(self, model: Path) -> list[Path]:
        from tidemill.store.packed import is_source_in, list_packed

        return [file.path for file in list_packed() if is_source_in(file, model)]


class LlamaCpp:
    name = "llama.cpp"
    default_model: str | None = None
    tenants = False

    _INSTALL: ClassVar[str] = (
        "llama-server is not on PATH: install llama.cpp (`brew install llama.cpp`, `winget install "
        "llama.cpp`, or a build from https://github.com/ggml-org/llama.cpp/releases), or say where "
        "it is with --binary"
    )

    def version(self, binary: str | None) -> str:
        try:
            done = subprocess.run(
                [self._program(binary), "--version"], stdin=subprocess.DEVNULL, timeout=30,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TargetError(f"llama-server does not run: {error}") from None
        found = re.search(r"version: *(.+)", done.stdout)
        if found is None:
            raise TargetError(f"this is no llama-server: {done.stdout.strip()[:300]}")
        return found[1].strip()

    def _program(self, binary: str | None) -> str:
        found = shutil.which(binary or "llama-server")
        if found is None:
            raise TargetError(
                self._INSTALL if binary is None else f"{binary} is no program that can be run"
            )
        return found

    def command(self, launch: Launch, port: int, folder: Path) -> list[str]:
        return [
            self._program(launch.binary), "-m", str(launch.model), "--alias", MODEL_NAME,
            "--host", "127.0.0.1", "--port", str(port), "-t", str(launch.threads),
            "-np", str(launch.sequences), "-c", str(launch.sequences * launch.context),
            "--jinja", *launch.arguments,
        ]  # fmt: skip

    def caches(self, model: Path) -> list[Path]:
        return []


ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in (Tidemill(), LlamaCpp())}

BY_HAND: Mapping[str, tuple[str, str]] = {
    "vllm": ("vllm serve MODEL", "http://127.0.0.1:8000/v1"),
    "sglang": ("python -m sglang.launch_server --model-path MODEL", "http://127.0.0.1:30000/v1"),
    "ollama": ("ollama serve", "http://127.0.0.1:11434/v1"),
}
"""Engines that are not started here: how they are by hand, and where they then listen."""


def _key_file(keys: Mapping[str, str], folder: Path) -> Path:
    import hashlib

    lines = []
    for tenant, key in keys.items():
        name = msgspec.json.encode(tenant).decode()
        digest = hashlib.sha256(key.encode()).hexdigest()
        lines += ["[[tenants]]", f"name = {name}", f'sha256 = ["{digest}"]', ""]
    path = folder / "keys.toml"
    path.write_text("\n".join(lines), "utf-8")
    return path


class EngineProcess:
    """An engine that was started; ``listening`` and ``ready`` tell when, in seconds from then."""

    def __init__(self, name: str, command: Sequence[str], port: int, log: Path) -> None:
        self.command = list(command)
        self.url = f"http://127.0.0.1:{port}/v1"
        self._name = name
        self._port = port
        self._log = log
        self.began = time.monotonic()
        with log.open("wb") as output:
            # A session of its own, so that Ctrl-C is ours alone and we end it.
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, preexec_fn=_end_with_parent(),
            )  # fmt: skip

    @property
    def pids(self) -> tuple[int, ...]:
        """Its process, and those that it has started."""
        return tuple(family(self._process.pid))

    def until_ready(self, seconds: float) -> tuple[float, float]:
        """Seconds from its start until it listened, and until it could be asked. Raises
        TargetError, with what it said, if it ends or does not become ready."""
        self._until(self._listens, seconds)
        listening = time.monotonic() - self.began
        self._until(self._is_ready, seconds)
        return listening, time.monotonic() - self.began

    def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        while not condition():
            if self._process.poll() is not None:
                why = f"ended with status {self._process.returncode}"
            elif time.monotonic() - self.began > seconds:
                why = f"was not ready within {seconds:g} s"
            else:
                time.sleep(0.002)
                continue
            raise TargetError(f"{self._name} {why}: {self.last_words()}")

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=5):
            return True
        return False

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def last_words(self) -> str:
        """The end of what it has printed."""
        lines = self._log.read_bytes()[-8192:].decode(errors="replace").split("\n")
        return "\n".join(line for line in lines[-12:] if line.strip()) or "it said nothing"

    def close(self) -> None:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        with suppress(ProcessLookupError):  # all of its session, whoever is left
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def started(engine: Engine, launch: Launch) -> Iterator[EngineProcess]:
    """An engine that is being started, and is ended in the end."""
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        folder = Path(name)
        port = free_port()
        command = engine.command(launch, port, folder)
        process = EngineProcess(engine.name, command, port, folder / "log")
        try:
            yield process
        finally:
            process.close()


def _end_with_parent() -> Callable[[], None] | None:
    """What makes a process end when we are killed (Linux); loaded here, not between fork and
    exec."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    return lambda: prctl(set_parent_death_signal, signal.SIGTERM) and None
