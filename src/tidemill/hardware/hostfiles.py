"""Reading small files of ``/proc`` and ``/sys``, and the list and size notations in them."""

from __future__ import annotations

import platform
from pathlib import Path

ROOT = Path("/")
MAX_CPUS = 1 << 16


def read_text(path: Path) -> str | None:
    """The content, stripped; None if the file is missing or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    text = read_text(path)
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def parse_cpu_list(text: str) -> frozenset[int]:
    """The kernel's list format, as in ``0-3,8,10-11``; a damaged entry is left out."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        try:
            start, stop = int(first), int(last or first)
        except ValueError:
            continue
        if 0 <= start <= stop < MAX_CPUS:
            cpus.update(range(start, stop + 1))
    return frozenset(cpus)


def parse_size(text: str) -> int | None:
    """Bytes of a size as sysfs writes it: ``32K``, ``1024K``, ``32M``."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    scale = units.get(text[-1:].upper(), 1)
    try:
        return int(text.rstrip("KMGkmg")) * scale
    except ValueError:
        return None


def sysctl(name: str) -> str | None:
    """A value of macOS's ``sysctl``; None elsewhere."""
    if platform.system() != "Darwin":
        return None
    import subprocess

    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
