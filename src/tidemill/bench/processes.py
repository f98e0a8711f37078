"""Processes on this machine: their CPU time and children, from /proc (proc(5)), and a port."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
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


def family(pid: int) -> list[int]:
    """A process, and those that it has started, with theirs."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                found += family(int(child))
    return found


def free_port() -> int:
    """A port of the loopback interface that nobody listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


class CpuMeter:
    """CPU time of this process and of others from the making of it on."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._own = time.process_time()
        self._others = {pid: cpu_seconds(pid) for pid in pids}

    def own(self) -> float:
        return time.process_time() - self._own

    def others(self) -> dict[int, float]:
        return {pid: cpu_seconds(pid) - before for pid, before in self._others.items()}
