"""How an engine is asked to measure a piece of work, and how it answers.

A peer is one file in this folder that ends in ``main(ThePeer())``. It is run twice:

    python -m peers.NAME install          in the project's interpreter: makes what the peer needs,
                                          outside the tree; prints {"python": its interpreter}
    THAT python -m peers.NAME serve       reads one JSON request a line from standard input and
                                          answers each with one JSON line on standard output

Requests are {"op": "hello"}, {"op": "variants", ...} and {"op": "measure", ...}; an answer is
{"ok": ...} or {"error": "why"}. Only the standard library is imported here, since each peer
has an interpreter of its own with nothing else in common.

What is timed is the same for every engine that is called through an API (``ApiPeer``), Tidemill
included: the time from handing in token ids until the last token is there, greedy, without reuse of
earlier prompts. With n sequences of p prompt tokens each,

    prefill = n p / T(1)                      tokens per second, T(1): one new token each
    decode  = n g / (T(g + 1) - T(1))         tokens per second, g: tokens after the first

The llama.cpp family brings benchmark tools of its own and is measured by those, which time the
forward passes alone; llama.cpp also through the API of its server.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, TextIO

Settings = dict[str, Any]
Figures = dict[str, float]
BENCHMARKS = Path(__file__).resolve().parent.parent


class NotApplicable(Exception):
    """This peer cannot do this work or take this model; the message says why."""


@dataclass(frozen=True)
class Model:
    """A model to be measured: the GGUF file, and the same weights as a Hugging Face folder.

    ``folder`` is None where no chosen peer needs it or it was not written; ``file_type`` is that of
    most weights ("Q4_1"). ``text`` has many words, for engines that take no token ids.
    """

    name: str
    path: str
    file_type: str
    architecture: str
    vocab_size: int
    context: int
    folder: str | None = None
    folder_error: str | None = None
    text: str = ""


@dataclass(frozen=True)
class Work:
    """``streams`` sequences of ``prompt`` tokens each, continued by ``generate`` tokens.

    kind "speed" gives the figures "prefill" and "decode" in tokens per second, those asked for in
    ``figures``; "start" gives "seconds" from starting a process to its first token, with
    the file in the page cache; "memory" gives "MiB", the peak resident memory of a process
    that computes the prompt within ``context`` tokens.
    """

    name: str
    kind: Literal["speed", "start", "memory"]
    prompt: int
    generate: int = 0
    streams: int = 1
    repeats: int = 1
    figures: tuple[str, ...] = ()

    @property
    def context(self) -> int:
        """Tokens that one sequence needs."""
        return self.prompt + self.generate + 1


@dataclass(frozen=True)
class Limits:
    """What a loaded engine must be able to hold, so that it is loaded once for several works."""

    context: int
    streams: int

    @classmethod
    def of(cls, work: Work) -> Limits:
        return cls(work.context, work.streams)


class Peer:
    """An engine. Subclasses set ``name`` and answer ``version`` and ``measure``."""

    name: ClassVar[str]
    wants: ClassVar[Literal["gguf", "folder"]] = "gguf"
    # Loading takes minutes: the process is kept over all rounds, stopped while others measure.
    slow_start: ClassVar[bool] = False
    # What is timed, said in the table's notes.
    timed: ClassVar[str]

    def install(self) -> Path:
        """Make what is needed, once; the interpreter that serves."""
        return Path(sys.executable)

    def version(self) -> str:
        raise NotImplementedError

    def variants(self, model: Model, work: Work) -> list[Settings]:
        """Settings that an expert would try for this work; the fastest is then kept."""
        return [{}]

    def measure(
        self, model: Model, work: Work, threads: int, settings: Settings, limits: Limits
    ) -> Figures:
        raise NotImplementedError


class ApiPeer(Peer):
    """An engine that is called: subclasses ``load`` it and ``generate``."""

    timed = (
        "its API: token ids in, last token out; decode = tokens after the first / time after the "
        "first"
    )

    def __init__(self) -> None:
        self._loaded: tuple[object, ...] | None = None
        self._warm: set[Work] = set()  # works that the engine loaded now has met

    def load(self, model: Model, threads: int, settings: Settings, limits: Limits) -> None:
        """Load the model in place of the one loaded before, if any."""
        raise NotImplementedError

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Sequence[int]:
        """Continue all prompts together; how many tokens each was continued by."""
        raise NotImplementedError

    def first_token_seconds(self) -> float | None:
        """When the last ``generate`` of one prompt had its first token, where the engine tells.
        Else two runs are compared, which says little of a few tokens after a long prompt."""
        return None

    def warm_up(self, model: Model, work: Work) -> None:
        """Some engines make kernels for the shapes they meet; a long prompt is too dear for it."""
        shape = work if work.prompt <= 1024 else Work("warm", "speed", 512, generate=3)
        self.timed_generate(prompts_of(shape, model, seed=0), min(4, shape.generate + 1))

    def measure(
        self, model: Model, work: Work, threads: int, settings: Settings, limits: Limits
    ) -> Figures:
        if work.kind != "speed":
            request = json.dumps(
                {"model": asdict(model), "work": asdict(work), "threads": threads,
                 "settings": settings}
            )  # fmt: skip
            return process_figures(work, [*_this_program(), "answer", request])
        key = (model, threads, json.dumps(settings), limits)
        if self._loaded != key:
            self._loaded = None
            self.load(model, threads, settings, limits)
            self._loaded = key
            self._warm = set()
        if work not in self._warm:
            self.warm_up(model, work)
            self._warm.add(work)
        totals = {"first": 0.0, "all": 0.0}
        for repeat in range(work.repeats):
            # Other prompts each time: whatever a prefix cache kept is of no use.
            seed = time.time_ns() + repeat
            prompts = prompts_of(work, model, seed)
            before = totals["first"]
            totals["first"] += self.timed_generate(prompts, 1)
            if "decode" in work.figures:
                prompts = prompts_of(work, model, seed + 1_000_003)
                seconds = self.timed_generate(prompts, work.generate + 1)
                first = self.first_token_seconds() if work.streams == 1 else None
                if first is not None:
                    seconds += (totals["first"] - before) - first
                totals["all"] += seconds
        figures = {"prefill": work.repeats * work.streams * work.prompt / totals["first"]}
        if "decode" in work.figures:
            after = totals["all"] - totals["first"]
            if after <= 0:
                raise RuntimeError("decoding took no measurable time; generate more tokens")
            figures["decode"] = work.repeats * work.streams * work.generate / after
        return {name: figures[name] for name in work.figures}

    def timed_generate(self, prompts: list[list[int]], new_tokens: int) -> float:
        begin = time.perf_counter()
        counts = self.generate(prompts, new_tokens)
        seconds = time.perf_counter() - begin
        if len(counts) != len(prompts) or any(count != new_tokens for count in counts):
            raise RuntimeError(
                f"asked for {len(prompts)} answers of {new_tokens} tokens, got {list(counts)[:8]}"
            )
        return seconds

    def answer(self, model: Model, work: Work, threads: int, settings: Settings) -> None:
        """What a fresh process does for "start" and "memory": load, and one short answer."""
        said = _own_output()
        self.load(model, threads, settings, Limits.of(work))
        self.timed_generate(prompts_of(work, model, seed=1), 1)
        said.write("first token\n")
        said.flush()


def prompts_of(work: Work, model: Model, seed: int) -> list[list[int]]:
    """Prompts of random token ids, those of the special tokens left out."""
    rng = random.Random(seed)
    last = min(model.vocab_size, 32000) - 1
    return [[rng.randint(300, last) for _ in range(work.prompt)] for _ in range(work.streams)]


# ---- figures about a process ----


def process_figures(
    work: Work, command: Sequence[str], env: dict[str, str] | None = None
) -> Figures:
    """Run ``command``, which prints something at its first token, for "start" or "memory"."""
    if work.kind == "start":
        time_to_output(command, env)  # warms the page cache
        return {"seconds": time_to_output(command, env)}
    return {"MiB": peak_resident(command, env) / (1 << 20)}


def time_to_output(command: Sequence[str], env: dict[str, str] | None = None) -> float:
    """Seconds from starting ``command`` to its first visible character on standard output."""
    with _elsewhere() as folder:
        begin = time.perf_counter()
        with subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            out, err, errors = process.stdout.fileno(), process.stderr.fileno(), b""
            waiting = {out, err}
            while waiting:
                for ready in select.select(list(waiting), [], [])[0]:
                    data = os.read(ready, 65536)
                    if not data:
                        waiting.discard(ready)
                    elif ready == err:
                        errors = (errors + data)[-4000:]
                    elif data.strip():
                        seconds = time.perf_counter() - begin
                        process.kill()
                        return seconds
    raise RuntimeError(f"printed nothing (exit status {process.returncode}): {tail(errors)}")


# Runs its arguments and writes the peak of what it ran, in KiB. A process of its own, and a small
# one, because the kernel lets a child begin with the peak of whoever starts it.
_WATCH = """
import resource, subprocess, sys
null = subprocess.DEVNULL
ended = subprocess.run(sys.argv[1:], stdin=null, stdout=null, stderr=null)
print(ended.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_resident(command: Sequence[str], env: dict[str, str] | None = None) -> int:
    """Peak resident bytes of ``command``'s process, as the kernel tells at its end: asking while it
    runs would miss what it touches last."""
    with _elsewhere() as folder:
        watched = subprocess.run(
            [sys.executable, "-S", "-c", _WATCH, *command], cwd=folder, env=env, check=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    code, kibibytes = map(int, watched.stdout.split())
    if code != 0:
        raise RuntimeError(f"exit status {code} while its memory was watched")
    return kibibytes << 10


def high_water(pid: int) -> int:
    """The most resident bytes that a process has had so far; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def _elsewhere() -> tempfile.TemporaryDirectory[str]:
    """A folder to run tools in: some leave log files where they are started."""
    return tempfile.TemporaryDirectory(prefix="peer-")


def tail(errors: bytes) -> str:
    """The last lines of what a process said, short enough for a table's note."""
    return " | ".join(errors.decode(errors="replace").strip().splitlines()[-3:])[-400:]


# ---- serving ----


def main(peer: Peer) -> None:
    """The command line of a peer's file."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "install":
        answer = _guarded(lambda: {"python": str(peer.install())})
        print(json.dumps(answer), flush=True)
    elif command == "serve":
        _serve(peer)
    elif command == "answer" and isinstance(peer, ApiPeer):
        request = json.loads(sys.argv[2])
        peer.answer(
            _as(Model, request["model"]), _as(Work, request["work"]), request["threads"],
            request["settings"],
        )  # fmt: skip
        os._exit(0)  # some runtimes hang or crash while they are taken down; that is not measured
    else:
        raise SystemExit("usage: python -m peers.NAME install | serve")


def _serve(peer: Peer) -> None:
    die_with_parent()
    answers = _own_output()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the harness ends us
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(_guarded(lambda r=request: _handle(peer, r))) + "\n")  # type: ignore[misc]
        answers.flush()
    os._exit(0)


def _handle(peer: Peer, request: dict[str, Any]) -> Any:
    if request["op"] == "hello":
        return {
            "name": peer.name, "version": peer.version(), "timed": peer.timed,
            "wants": peer.wants, "slow_start": peer.slow_start,
        }  # fmt: skip
    model, work = _as(Model, request["model"]), _as(Work, request["work"])
    if peer.wants == "folder" and model.folder is None:
        raise NotApplicable(model.folder_error or "there is no Hugging Face folder of this model")
    if request["op"] == "variants":
        return peer.variants(model, work)
    return peer.measure(
        model, work, request["threads"], request["settings"], _as(Limits, request["limits"])
    )


def die_with_parent() -> None:
    """The harness stops idle peers; if it is killed, they must not stay behind stopped (Linux)."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _own_output() -> TextIO:
    """Standard output for us alone: whatever a library prints there goes to standard error."""
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return own


def _this_program() -> list[str]:
    """The command that started this module with ``-m``."""
    spec = sys.modules["__main__"].__spec__
    assert spec is not None, "a peer's file is run with python -m"
    return [sys.executable, "-m", spec.name]


def _guarded(action: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"ok": action()}
    except NotApplicable as error:
        return {"error": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"[:600]}


def _as(kind: Any, values: dict[str, Any]) -> Any:
    """A dataclass from its JSON form; lists become the tuples that they were."""
    known = {field.name for field in fields(kind)}
    return kind(
        **{k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known}
    )
