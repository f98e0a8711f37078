"""How many threads are worth starting: the cores that this process may really use."""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path

from tidemill.hardware.cgroup import cpu_quota
from tidemill.hardware.hostfiles import ROOT, parse_cpu_list, read_text, sysctl
from tidemill.records import dataclass


@dataclass(frozen=True, slots=True)
class CoreBudget:
    """The three bounds on useful threads, and their minimum.

    online: logical CPUs of the machine. allowed: those in the affinity mask (cpusets included).
    physical: distinct physical cores among the allowed ones. quota: CPUs' worth of time from
    control groups, None if unlimited. usable: min(quota, allowed, physical), at least 1.
    """

    online: int
    allowed: int
    physical: int
    quota: float | None
    usable: int

    def explain(self) -> str:
        """How the number came about, in one line."""
        quota = "no CPU quota" if self.quota is None else f"CPU quota {self.quota:g}"
        return (
            f"{self.usable} = min of {self.physical} physical cores, {self.allowed} of "
            f"{self.online} logical CPUs allowed, {quota}"
        )


def usable_cores() -> int:
    """The number of compute threads to start on this machine."""
    return core_budget().usable


def core_budget(root: Path = ROOT, affinity: Set[int] | None = None) -> CoreBudget:
    """The cores of this process. ``root`` and ``affinity`` stand in for the machine in tests."""
    if affinity is None:
        affinity = _affinity()
    listed = read_text(root / "sys/devices/system/cpu/online")
    online = len(parse_cpu_list(listed)) if listed else 0
    online = online or os.cpu_count() or 1
    physical = _physical_cores(root, affinity)
    quota = cpu_quota(root)
    usable = min(len(affinity), physical)
    if quota is not None:
        usable = min(usable, whole_cores(quota))
    return CoreBudget(online, len(affinity), physical, quota, max(1, usable))


def whole_cores(quota: float) -> int:
    """Threads for a fractional quota: rounded down, unless less than a quarter is missing.

    One thread too many does not run slower by its share: the group is stopped for the rest of
    every period, with the other threads spinning at a barrier that nobody can reach.
    """
    return max(1, int(quota + 0.25))


def _affinity() -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity masks
        return frozenset(range(os.cpu_count() or 1))


def _physical_cores(root: Path, allowed: Set[int]) -> int:
    """Distinct cores under the allowed CPUs: SMT siblings share one core's arithmetic units."""
    performance = sysctl("hw.perflevel0.physicalcpu") or sysctl("hw.physicalcpu")
    if performance is not None and performance.isdigit():  # macOS
        return max(1, int(performance))
    cores: set[object] = set()
    for cpu in allowed:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = read_text(topology / "core_cpus_list")
        if siblings is None:  # its name before Linux 5.3
            siblings = read_text(topology / "thread_siblings_list")
        cores.add(parse_cpu_list(siblings) if siblings else cpu)
    return max(1, len(cores))
