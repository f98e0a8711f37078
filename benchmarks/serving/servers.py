"""Servers as child processes: how each is started to serve many streams as well as it can."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from peers.llama_cpp import LlamaCpp
from peers.llama_cpp_server import GREEDY
from peers.protocol import die_with_parent, tail
from tidemill.bench.processes import family, free_port

MODEL_NAME = "model"
_START_SECONDS = 120.0


@dataclass(frozen=True)
class Limits:
    """What a server must be able to hold at once: so many sequences of so many tokens."""

    streams: int
    context: int
    threads: int


class Kind(Protocol):
    """A server program. ``extra`` goes into each request: greedy, and as long as asked for."""

    name: str
    extra: dict[str, Any]

    def command(self, model: Path, port: int, limits: Limits) -> list[str]: ...


@dataclass(frozen=True)
class Tidemill:
    """Without guessing ahead, as the other: the answers to random prompts repeat themselves."""

    name: str = "tidemill"
    extra: dict[str, Any] = field(default_factory=lambda: {"temperature": 0, "ignore_eos": True})

    def command(self, model: Path, port: int, limits: Limits) -> list[str]:
        return [
            sys.executable, "-m", "tidemill", "serve", str(model), "--name", MODEL_NAME,
            "--port", str(port), "--threads", str(limits.threads),
            "--max-sequences", str(limits.streams), "--context", str(limits.context),
            "--speculative", "off", "--log-level", "warning",
        ]  # fmt: skip


@dataclass(frozen=True)
class LlamaServer:
    """``llama-server`` with a slot for each stream; batches are continuous and prefixes are kept in
    the slots by default. ``settings`` are those that were fastest where they were tried."""

    name: str = "llama-server"
    extra: dict[str, Any] = field(
        default_factory=lambda: {"temperature": 0, "ignore_eos": True, **GREEDY}
    )
    settings: tuple[str, ...] = ("-fa", "on", "-no-kvu")

    def command(self, model: Path, port: int, limits: Limits) -> list[str]:
        tools = LlamaCpp()
        tools.install()
        return [
            str(tools.tools / "llama-server"), "-m", str(model), "--alias", MODEL_NAME,
            "--host", "127.0.0.1", "--port", str(port), "-t", str(limits.threads),
            "-np", str(limits.streams), "-c", str(limits.streams * limits.context),
            # Copies of prompts that no slot holds cost time, and none comes again here.
            "--cache-ram", "0", *self.settings,
        ]  # fmt: skip


class ServerProcess:
    """A server that is ready, and stopped (SIGSTOP) unless it is measured."""

    def __init__(self, kind: Kind, model: Path, limits: Limits, log: Path) -> None:
        self.kind = kind
        self.port = free_port()
        command = kind.command(model, self.port, limits)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                preexec_fn=die_with_parent,
            )  # fmt: skip
        try:
            self._until_ready(log)
        except BaseException:
            self.close()
            raise
        self.pause()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def pids(self) -> tuple[int, ...]:
        """The process that was started, and those that it has started."""
        return tuple(family(self._process.pid))

    def pause(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        family = self.pids
        for number in (signal.SIGCONT, signal.SIGKILL):
            for pid in family:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        self._process.wait()

    def _until_ready(self, log: Path) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise RuntimeError(f"{self.kind.name} does not start: {tail(log.read_bytes())}")
