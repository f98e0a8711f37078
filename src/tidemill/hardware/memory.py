"""How much memory this process can still take without swapping or being killed."""

from __future__ import annotations

from pathlib import Path

from tidemill.hardware.cgroup import memory_limit
from tidemill.hardware.hostfiles import ROOT, read_text, sysctl
from tidemill.records import dataclass


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes; None where there is no such limit or it is unknown.

    total: RAM of the machine. host_available: the kernel's MemAvailable. cgroup_limit and
    cgroup_available: the tightest control group. rlimit_available: what RLIMIT_AS or RLIMIT_DATA
    leaves. available: the minimum of those that are known.
    """

    total: int | None
    host_available: int | None
    cgroup_limit: int | None
    cgroup_available: int | None
    rlimit_available: int | None

    @property
    def available(self) -> int | None:
        known = (self.host_available, self.cgroup_available, self.rlimit_available)
        return min((n for n in known if n is not None), default=None)

    def explain(self) -> str:
        """Which limit binds, in a few words."""
        bound = self.available
        if bound is None:
            return "unknown on this system"
        if bound == self.cgroup_available:
            return "what the control group's limit leaves"
        if bound == self.rlimit_available:
            return "what the process's resource limit (ulimit) leaves"
        return "free memory of the machine"


def available_memory() -> int | None:
    """Bytes that can still be taken, None if that is unknown here."""
    return memory_budget().available


def memory_budget(root: Path = ROOT) -> MemoryBudget:
    """The memory of this process. ``root`` stands in for the machine in tests."""
    info = _kilobyte_fields(read_text(root / "proc/meminfo") or "")
    total, host = info.get("MemTotal"), info.get("MemAvailable")
    if total is None:
        size = sysctl("hw.memsize")
        total = int(size) if size and size.isdigit() else None
    if host is None and total is not None:
        # macOS compresses and drops caches on demand; half of the RAM is a careful guess.
        host = info.get("MemFree", total // 2)
    group = memory_limit(root)
    status = _kilobyte_fields(read_text(root / "proc/self/status") or "")
    return MemoryBudget(
        total,
        host,
        group.limit if group else None,
        group.headroom if group else None,
        _rlimit_headroom(status.get("VmSize", 0), status.get("VmData", 0)),
    )


def _kilobyte_fields(text: str) -> dict[str, int]:
    """``Name:   123 kB`` lines as bytes."""
    fields = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            fields[name] = int(words[0]) * 1024
    return fields


def _rlimit_headroom(address_space: int, data: int) -> int | None:
    try:
        import resource
    except ImportError:  # not a POSIX system
        return None
    left = []
    for kind, used in ((resource.RLIMIT_AS, address_space), (resource.RLIMIT_DATA, data)):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            left.append(max(0, soft - used))
    return min(left, default=None)
