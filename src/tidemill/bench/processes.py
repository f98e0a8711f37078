"""CPU time of processes on this machine, from /proc (proc(5))."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU time, user and system, that a process has taken with all its threads; 0 if
    there is none of that number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = stat.rpartition(")")[2].split()  # the name before it can hold anything
    return (int(fields[11]) + int(fields[12])) / _TICKS


class CpuMeter:
    """CPU time of this process and of others from the making of it on."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._own = time.process_time()
        self._others = {pid: cpu_seconds(pid) for pid in pids}

    def own(self) -> float:
        return time.process_time() - self._own

    def others(self) -> dict[int, float]:
        return {pid: cpu_seconds(pid) - before for pid, before in self._others.items()}
