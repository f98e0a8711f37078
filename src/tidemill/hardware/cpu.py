"""The CPU: its name, instruction sets, caches and NUMA nodes."""

from __future__ import annotations

import platform
from pathlib import Path

from tidemill.hardware.hostfiles import (
    ROOT,
    parse_cpu_list,
    parse_size,
    read_int,
    read_text,
    sysctl,
)
from tidemill.records import dataclass


@dataclass(frozen=True, slots=True)
class Cache:
    """One kind of cache: ``size`` bytes each, ``count`` of them in the machine."""

    level: int
    kind: str
    size: int
    count: int


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """What the CPU is. ``features`` are those that the operating system lets programs use."""

    architecture: str
    model: str
    features: tuple[str, ...]
    caches: tuple[Cache, ...]
    numa_nodes: int


def cpu_info(root: Path = ROOT) -> CpuInfo:
    from tidemill import _native

    return CpuInfo(
        architecture=platform.machine() or "unknown",
        model=_model_name(root),
        features=tuple(_native.cpu_features()),
        caches=_caches(root),
        numa_nodes=_numa_nodes(root),
    )


def _model_name(root: Path) -> str:
    cpuinfo = read_text(root / "proc/cpuinfo") or ""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    if "model name" in fields:
        return fields["model name"]
    board = read_text(root / "sys/firmware/devicetree/base/model")
    if "CPU implementer" in fields:  # arm64 kernels give numbers, not names
        part = f"{fields['CPU implementer']} part {fields.get('CPU part', '?')}"
        return f"arm64 {part}" + (f" ({board.rstrip(chr(0))})" if board else "")
    return sysctl("machdep.cpu.brand_string") or platform.processor() or "unknown"


def _caches(root: Path) -> tuple[Cache, ...]:
    """Caches by level; one that several CPUs share is counted once."""
    seen: dict[tuple[int, str, int], set[str]] = {}
    for index in root.glob("sys/devices/system/cpu/cpu[0-9]*/cache/index[0-9]*"):
        level, kind = read_int(index / "level"), read_text(index / "type")
        size = parse_size(read_text(index / "size") or "")
        if level is not None and kind and size:
            shared = read_text(index / "shared_cpu_list") or index.parent.parent.name
            seen.setdefault((level, kind.lower(), size), set()).add(shared)
    return tuple(Cache(*key, count=len(shared)) for key, shared in sorted(seen.items()))


def _numa_nodes(root: Path) -> int:
    nodes = read_text(root / "sys/devices/system/node/online")
    return max(1, len(parse_cpu_list(nodes))) if nodes else 1
