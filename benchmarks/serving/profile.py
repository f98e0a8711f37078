"""Which libraries the CPU time of a server's processes is spent in, by Linux perf."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

KERNELS = "_native"
"""Our library that computes; all else is Python, what it calls, and the operating system."""


def shares(pids: Sequence[int], load: Callable[[], object]) -> dict[tuple[int, str], float]:
    """The share of samples by process and library while ``load`` runs; nothing without perf."""
    perf = shutil.which("perf")
    if perf is None:
        load()
        return {}
    with tempfile.TemporaryDirectory(prefix="perf-") as folder:
        data = str(Path(folder) / "data")
        watching = subprocess.Popen(
            [perf, "record", "-q", "-e", "cpu-clock", "-F", "499", "-o", data,
             "-p", ",".join(map(str, pids))],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            load()
        finally:
            watching.terminate()
            watching.wait()
        said = subprocess.run(
            [perf, "report", "-i", data, "--stdio", "-q", "--sort", "pid,dso", "-t", "|"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    return parsed(said.stdout)


def parsed(report: str) -> dict[tuple[int, str], float]:
    """The lines of ``perf report --sort pid,dso -t '|'``: share, pid:command, library."""
    found: Counter[tuple[int, str]] = Counter()
    for line in report.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == 3 and (share := re.fullmatch(r"([\d.]+)%?", fields[0])):
            pid = re.match(r"\d+", fields[1])
            if pid:
                found[int(pid[0]), fields[2]] += float(share[1]) / 100
    return dict(found)


def overhead(
    found: dict[tuple[int, str], float], front_end: int
) -> tuple[float, float, float] | None:
    """Shares of all CPU time: of the process that speaks HTTP; of what is not kernels in the others
    (Python and its libraries); of the operating system in the others."""
    total = sum(found.values())
    if not total:
        return None
    http = sum(share for (pid, _), share in found.items() if pid == front_end)
    others = {key: share for key, share in found.items() if key[0] != front_end}
    system = sum(share for (_, name), share in others.items() if name.startswith("[kernel"))
    kernels = sum(share for (_, name), share in others.items() if name.startswith(KERNELS))
    python = sum(others.values()) - system - kernels
    return http / total, python / total, system / total
