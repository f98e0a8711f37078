"""NVIDIA GPUs, as ``nvidia-smi`` tells of them (NVML; fields: ``nvidia-smi --help-query-gpu``)."""

from __future__ import annotations

import datetime
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence

from tidemill.records import dataclass

_FIELDS = "timestamp,index,name,memory.used,memory.total,utilization.gpu,power.draw"
_FORMAT = "csv,noheader,nounits"
_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one time. ``when``: seconds of the monotonic clock; ``busy``: the share of the
    last moments in which it computed anything; memory in bytes. None: it does not tell."""

    when: float
    index: int
    name: str
    memory_used: int
    memory_total: int
    busy: float | None
    watts: float | None


def read_gpus(program: str = "nvidia-smi") -> list[GpuReading]:
    """All of them now; none where the program is not there or fails."""
    found = shutil.which(program)
    if found is None:
        return []
    try:
        done = subprocess.run(
            _command(found), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_PATIENCE, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [reading for line in done.stdout.splitlines() if (reading := parse(line)) is not None]


def parse(line: str) -> GpuReading | None:
    """A line of its CSV; None for one that is none, such as a message."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != 7:
        return None
    stamp, index, name, used, total, busy, watts = fields
    try:
        local = datetime.datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f")
        when = local.timestamp() - time.time() + time.monotonic()
        # Sizes are in MiB. What a GPU does not tell is "[N/A]" or "[Not Supported]".
        return GpuReading(
            when, int(index), name, int(used) << 20, int(total) << 20,
            None if (share := _number(busy)) is None else share / 100, _number(watts),
        )  # fmt: skip
    except ValueError:
        return None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


class GpuMonitor:
    """Keeps what ``nvidia-smi`` tells twice a second until it is closed; nothing where there is no
    such program."""

    def __init__(self, program: str = "nvidia-smi") -> None:
        self.readings: list[GpuReading] = []
        self._process: subprocess.Popen[str] | None = None
        found = shutil.which(program)
        if found is None:
            return
        self._process = subprocess.Popen(
            [*_command(found), "--loop-ms=500"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, errors="replace",
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if (reading := parse(line)) is not None:
                self.readings.append(reading)

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._reader.join()


def _command(program: str) -> Sequence[str]:
    return [program, f"--query-gpu={_FIELDS}", f"--format={_FORMAT}"]
