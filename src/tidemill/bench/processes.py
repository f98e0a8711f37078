"""Processes on this machine: their families, CPU time and memory, from /proc (proc(5)); a port.

A process that ended meanwhile has no CPU time and no memory, and is no error.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from pathlib import Path

from tidemill.hardware.hostfiles import ROOT

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int, *, ended: bool = False, root: Path = ROOT) -> float:
    """Seconds of CPU time, user and system, that a process has taken with all its threads; with
    ``ended``, and those of its children that have ended, with theirs."""
    fields = _stat(pid, root)
    return sum(map(int, fields[11 : 15 if ended else 13])) / _TICKS


def born(pid: int, root: Path = ROOT) -> int | None:
    """When it began, in ticks since the system did, which tells it from another of its number."""
    fields = _stat(pid, root)
    return int(fields[19]) if fields else None


def lives(pid: int, birth: int | None, root: Path = ROOT) -> bool:
    """Whether the process of that number is still the one that was ``born`` then, and has not ended
    (one that nobody has waited for yet has)."""
    fields = _stat(pid, root)
    return bool(fields) and int(fields[19]) == birth and fields[0] not in "ZX"


def _stat(pid: int, root: Path) -> list[str]:
    """Fields from the third on, which is the state."""
    try:
        stat = (root / f"proc/{pid}/stat").read_text()
    except OSError:
        return []
    return stat.rpartition(")")[2].split()  # the name before it can hold anything


def family(pid: int) -> list[int]:
    """A process, and those that it has started, with theirs."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                found += family(int(child))
    return found


def proportional_bytes(pid: int, root: Path = ROOT) -> int | None:
    """Resident memory in which a page that n processes map counts 1/n (PSS); None where the system
    does not tell: Linux before 4.14, or a process of somebody else."""
    path = root / f"proc/{pid}/smaps_rollup"
    try:
        rollup = path.read_text()
    except ProcessLookupError:  # ending
        return 0
    except FileNotFoundError:
        return None if path.parent.exists() else 0
    except OSError:
        return None
    for line in rollup.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def resident_bytes(pid: int, root: Path = ROOT) -> int:
    """Resident memory, shared pages included (RSS)."""
    try:
        return int((root / f"proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0


def maps_any(pids: Iterable[int], files: Set[str]) -> bool:
    """Whether one of the processes has one of the files mapped."""
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            if any(line.split(maxsplit=5)[-1] in files for line in lines):
                return True
    return False


def kill_session(leader: int) -> None:
    """All processes of the session that ``leader`` began, as far as they are in its group."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def end_with_parent() -> Callable[[], None] | None:
    """What, called in a new process, makes it end when its parent is killed (Linux); loaded here,
    not between fork and exec."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    return lambda: prctl(set_parent_death_signal, signal.SIGTERM) and None


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
