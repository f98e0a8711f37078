"""What the control groups of this process allow: CPU time and memory.

A limit binds wherever it is set between the process's own group and the root, so every ancestor
is asked and the tightest wins. Sources: the kernel's cgroup-v1/ and cgroup-v2.rst, and proc(5) for
the formats of ``/proc/self/cgroup`` and ``/proc/self/mountinfo``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tidemill.hardware.hostfiles import ROOT, read_int, read_text
from tidemill.records import dataclass

# v1 says "no limit" with a huge number rounded to pages; nothing real is near it.
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """The tightest memory limit: its size and what is left of it, in bytes."""

    limit: int
    headroom: int


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time that the process may use (1.5 = one and a half), None if unlimited."""
    quotas = []
    for folder, version in _folders("cpu", root):
        if version == 2:
            quota = _quota_v2(read_text(folder / "cpu.max"))
        else:
            quota = _ratio(
                read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
            )
        if quota is not None:
            quotas.append(quota)
    return min(quotas, default=None)


def memory_limit(root: Path = ROOT) -> CgroupMemory | None:
    """The limit with the least left under it, None if there is none.

    Inactive page cache counts as free: the kernel drops it before it kills anyone.
    """
    limits = []
    for folder, version in _folders("memory", root):
        if version == 2:
            limit, used = read_int(folder / "memory.max"), read_int(folder / "memory.current")
            high = read_int(folder / "memory.high")  # throttled hard above it: as good as a limit
            limit = min((n for n in (limit, high) if n is not None), default=None)
            cache = _stat(folder / "memory.stat", "inactive_file")
        else:
            limit = read_int(folder / "memory.limit_in_bytes")
            used = read_int(folder / "memory.usage_in_bytes")
            cache = _stat(folder / "memory.stat", "total_inactive_file")
        if limit is not None and 0 < limit < _UNLIMITED:
            in_use = max(0, (used or 0) - cache)
            limits.append(CgroupMemory(limit, max(0, limit - in_use)))
    return min(limits, key=lambda m: m.headroom, default=None)


def _folders(controller: str, root: Path) -> Iterator[tuple[Path, int]]:
    """The folders of the process's groups for a controller, innermost first, and the version.

    On a hybrid system a controller is in one hierarchy only; the other has no such files, which
    the callers read as no limit.
    """
    mounts = list(_mounts(read_text(root / "proc/self/mountinfo") or ""))
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        unified = hierarchy == "0" and names == ""
        if not unified and controller not in names.split(","):
            continue
        for mount in mounts:
            if unified != (mount.kind == "cgroup2"):
                continue
            if not unified and controller not in mount.options:
                continue
            yield from ((f, 2 if unified else 1) for f in _ancestors(mount, path, root))
            break


@dataclass(frozen=True, slots=True)
class _Mount:
    root: str
    """Which group of the hierarchy is mounted (not "/" in some containers)."""
    point: str
    kind: str
    options: frozenset[str]


def _mounts(mountinfo: str) -> Iterator[_Mount]:
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - ")
        fields, types = head.split(), tail.split()
        if len(fields) >= 5 and len(types) >= 3 and types[0] in ("cgroup", "cgroup2"):
            yield _Mount(fields[3], fields[4], types[0], frozenset(types[2].split(",")))


def _ancestors(mount: _Mount, path: str, root: Path) -> Iterator[Path]:
    point = root / mount.point.lstrip("/")
    try:
        below = PurePosixPath(path).relative_to(mount.root)
    except ValueError:
        # The process's group is outside of what is mounted here (a container without its own
        # cgroup namespace): the mounted top is the nearest group that can be seen.
        below = PurePosixPath()
    parts = [part for part in below.parts if part not in ("/", "..", ".")]
    for depth in range(len(parts), -1, -1):
        yield point.joinpath(*parts[:depth])


def _quota_v2(text: str | None) -> float | None:
    fields = (text or "").split()
    if not fields or fields[0] == "max":
        return None
    try:
        return _ratio(int(fields[0]), int(fields[1]) if len(fields) > 1 else 100_000)
    except ValueError:
        return None


def _ratio(quota: int | None, period: int | None) -> float | None:
    if quota is None or period is None or quota <= 0 or period <= 0:
        return None
    return quota / period


def _stat(path: Path, key: str) -> int:
    for line in (read_text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.isdigit():
            return int(value)
    return 0
