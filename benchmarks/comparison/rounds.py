"""Interleaved rounds: in each, every work is measured by one engine after the other.

A machine that drifts hits all of them alike, and ratios are taken within a round. Before the rounds
an engine that has several settings to choose from tries each of them once on each work, and keeps
the fastest. What fails or takes too long is recorded as such and not tried again on that work.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from comparison.worker import Worker, WorkerError
from comparison.works import LOWER_IS_BETTER
from peers.protocol import Figures, Limits, Model, Settings, Work


@dataclass
class Record:
    """What became of one work on one model by one peer; ``rounds`` has None for a round lost."""

    settings: Settings | None = None
    tried: list[tuple[Settings, Figures | str]] = field(default_factory=list)
    rounds: list[Figures | None] = field(default_factory=list)
    error: str | None = None


Records = dict[tuple[str, str], Record]  # by name of work and name of peer


@dataclass(frozen=True)
class Bounds:
    """Hard limits in seconds: of one measurement, and of the first, which loads the model."""

    measure: float = 240.0
    load: float = 900.0


class PeerProcess:
    """A peer as the rounds see it: its process is started when needed and closed after a round."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        cwd: Path,
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.hello: dict[str, Any] = {}
        self._command, self._cwd, self._log, self._env = command, cwd, log, env
        self._worker: Worker | None = None
        self._fresh = True

    def greet(self, seconds: float = 120.0) -> None:
        """Ask who it is. Raises WorkerError if it does not answer."""
        self.hello = self._ask({"op": "hello"}, seconds)

    @property
    def slow_start(self) -> bool:
        return bool(self.hello.get("slow_start"))

    def variants(self, model: Model, work: Work, threads: int, bounds: Bounds) -> list[Settings]:
        found = self._ask(self._request("variants", model, work, threads), bounds.measure)
        return list(found) or [{}]

    def measure(
        self, model: Model, work: Work, threads: int, settings: Settings, limits: Limits,
        bounds: Bounds,
    ) -> Figures:  # fmt: skip
        request = self._request("measure", model, work, threads)
        request |= {"settings": settings, "limits": asdict(limits)}
        seconds = bounds.measure + (bounds.load if self._fresh else 0)
        figures = {name: float(value) for name, value in self._ask(request, seconds).items()}
        self._fresh = False
        missing = [name for name in work.figures if not figures.get(name, 0) > 0]
        if missing:
            raise WorkerError(f"gave no {' and no '.join(missing)}: {figures}")
        return figures

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker, self._fresh = None, True

    @staticmethod
    def _request(op: str, model: Model, work: Work, threads: int) -> dict[str, Any]:
        return {"op": op, "model": asdict(model), "work": asdict(work), "threads": threads}

    def _ask(self, request: Mapping[str, Any], seconds: float) -> Any:
        if self._worker is None or not self._worker.alive:
            self._worker = Worker(self._command, cwd=self._cwd, log=self._log, env=self._env)
            self._fresh = True
        self._worker.resume()
        try:
            return self._worker.ask(request, seconds)
        finally:
            self._worker.pause()


def compare(
    model: Model,
    works: Mapping[str, Work],
    peers: Sequence[PeerProcess],
    *,
    rounds: int,
    threads: int,
    bounds: Bounds,
    seconds: float = float("inf"),
    known: Mapping[tuple[str, str], Settings] | None = None,
    before_round: Callable[[int], None] = lambda _: None,
    after_round: Callable[[Records], None] = lambda _: None,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> Records:
    """Measure every work by every peer.

    Rounds are whole: another is begun only if it would end within ``seconds`` of this call, as long
    as the last one took; the first is always measured. ``known``: the settings of a work and peer
    that were found out before, and are not again.
    """
    until = time.monotonic() + seconds
    records: Records = {(work, peer.name): Record() for work in works for peer in peers}
    speed = [work for work in works.values() if work.kind == "speed"]
    limits = Limits(
        max((work.context for work in speed), default=1),
        max((work.streams for work in speed), default=1),
    )

    def attempt(peer: PeerProcess, work: Work, settings: Settings) -> Figures | str:
        begin = time.monotonic()
        try:
            figures = peer.measure(model, work, threads, settings, limits, bounds)
        except WorkerError as error:
            say(f"  {model.name}, {work.name}, {peer.name}: {error}")
            return str(error)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        note = "".join(f" [{k}: {v}]" for k, v in settings.items())
        took = f"in {time.monotonic() - begin:.0f} s"
        say(f"  {model.name}, {work.name}, {peer.name}: {shown} {took}{note}")
        return figures

    try:
        for peer in peers:
            for name, work in works.items():
                record = records[name, peer.name]
                record.settings = (known or {}).get((name, peer.name))
                if record.settings is None:
                    _choose(peer, model, work, threads, bounds, record, attempt)
            if not peer.slow_start:
                peer.close()
        for number in range(rounds):
            begin = time.monotonic()
            before_round(number)
            # Every other round in the other order: no engine always follows the same one.
            ordered = peers if number % 2 == 0 else peers[::-1]
            for name, work in works.items():
                for peer in ordered:
                    record = records[name, peer.name]
                    if record.error is not None or record.settings is None:
                        continue
                    outcome = attempt(peer, work, record.settings)
                    if isinstance(outcome, str):
                        record.error = outcome
                        record.rounds.append(None)
                    else:
                        record.rounds.append(outcome)
            for peer in peers:
                if not peer.slow_start:
                    peer.close()
            after_round(records)
            if 2 * time.monotonic() - begin > until:
                break
    finally:
        for peer in peers:
            peer.close()
    return records


def _choose(
    peer: PeerProcess,
    model: Model,
    work: Work,
    threads: int,
    bounds: Bounds,
    record: Record,
    attempt: Callable[[PeerProcess, Work, Settings], Figures | str],
) -> None:
    """Find the settings with which ``peer`` does ``work`` best."""
    try:
        variants = peer.variants(model, work, threads, bounds)
    except WorkerError as error:
        record.error = str(error)
        return
    if len(variants) == 1:
        record.settings = variants[0]
        return
    record.tried = [(settings, attempt(peer, work, settings)) for settings in variants]
    worked = [(s, figures) for s, figures in record.tried if not isinstance(figures, str)]
    if not worked:
        record.error = str(record.tried[0][1])
        return
    record.settings = max(worked, key=lambda pair: _merit(work, pair[1]))[0]


def _merit(work: Work, figures: Figures) -> float:
    """Higher is better; of two rates the time that both would take together counts."""
    names = work.figures
    if names[0] in LOWER_IS_BETTER:
        return -figures[names[0]]
    tokens = {"prefill": work.prompt, "decode": work.generate}
    return -sum(tokens[name] / figures[name] for name in names)


def environment_of(threads: int, benchmarks: Path) -> dict[str, str]:
    """What every peer's process is given: the same threads, no network, no foreign settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "OPENBLAS_", "MKL_"))}
    return {
        **kept,
        "PYTHONPATH": str(benchmarks),
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
