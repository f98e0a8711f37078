"""Samples of what an engine takes, while it runs: CPU time, memory, energy, GPUs.

A thread of the bench's own process takes them, which is not the one that the load comes from. All
are read from outside the engine, and stamped with the monotonic clock, which the load generator's
window is told in too. Reading costs something, most for large processes; what it takes is kept to a
hundredth of the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidemill.bench.processes import cpu_seconds, proportional_bytes, resident_bytes
from tidemill.hardware.energy import EnergyMeters
from tidemill.hardware.gpus import GpuMonitor, GpuReading, read_gpus

_EVERY = 0.25
_LARGEST_SHARE = 0.01


class Sample(NamedTuple):
    """``cpu``: seconds that all processes have taken so far; ``memory``: bytes that they hold;
    ``joules``: of all meters of the machine since sampling began."""

    when: float
    cpu: float
    memory: int
    joules: float


class Sampler:
    """Samples from its making on until ``close``; the engine is to be begun after it, as ``watch``
    is told. ``exact``: memory is PSS, not RSS."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.exact = True
        self.energy = EnergyMeters()
        self.gpus_before = read_gpus()
        self._gpus = GpuMonitor() if self.gpus_before else None
        self._ended = threading.Event()
        self._pids: Callable[[], Sequence[int]] = list
        self._taking = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def gpus(self) -> Sequence[GpuReading]:
        return self._gpus.readings if self._gpus is not None else ()

    def watch(self, pids: Callable[[], Sequence[int]]) -> None:
        """Begin to sample the processes of an engine; which they are is asked each time."""
        self._pids = pids
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def sample(self) -> float:
        """Take one now, which it returns: where reading is slow there are few, and a window has two
        ends."""
        with self._taking:
            now = time.monotonic()
            self.take(self._pids(), now)
        return now

    def _run(self) -> None:
        while True:
            began = self.sample()
            took = time.monotonic() - began
            if self._ended.wait(max(_EVERY, took / _LARGEST_SHARE)):
                return

    def take(self, pids: Sequence[int], now: float) -> None:
        """One sample."""
        cpu = sum(cpu_seconds(pid, ended=True) for pid in pids)
        if self.samples:  # the time of a child that nobody waited for is lost
            cpu = max(cpu, self.samples[-1].cpu)
        self.energy.read()
        joules = sum(meter.joules for meter in self.energy.meters)
        self.samples.append(Sample(now, cpu, self._memory(pids), joules))

    def _memory(self, pids: Sequence[int]) -> int:
        if self.exact:
            found = [proportional_bytes(pid) for pid in pids]
            known = [size for size in found if size is not None]
            if len(known) == len(found):
                return sum(known)
            self.exact = False
        return sum(map(resident_bytes, pids))

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._gpus is not None:
            self._gpus.close()
