"""The machine that is measured on: its limits, and whether it is quiet."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

QUIET = 0.10  # the most of the processors' time that others may have
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Load:
    """Shares of the processors' time taken by others, before a round."""

    busy: float
    stolen: float
    average: float  # the one-minute load average

    @property
    def quiet(self) -> bool:
        return self.busy + self.stolen <= QUIET

    def __str__(self) -> str:
        text = (
            f"processors {self.busy:.0%} busy, {self.stolen:.0%} stolen by the host, load average "
            f"{self.average:.2f}"
        )
        return text if self.quiet else f"{text}: NOT QUIET, figures are not to be trusted"


def load_between(before: str, after: str, loadavg: str) -> Load:
    """The load from two readings of /proc/stat and one of /proc/loadavg."""
    first, second = _cpu_times(before), _cpu_times(after)
    spent = [b - a for a, b in zip(first, second, strict=True)]
    total = max(1, sum(spent))
    idle, stolen = spent[3] + spent[4], spent[7]
    return Load((total - idle - stolen) / total, stolen / total, float(loadavg.split()[0]))


def measure_load(seconds: float = 1.0) -> Load:
    stat = Path("/proc/stat")
    before = stat.read_text()
    time.sleep(seconds)
    return load_between(before, stat.read_text(), Path("/proc/loadavg").read_text())


def _cpu_times(stat: str) -> Sequence[int]:
    """user, nice, system, idle, iowait, irq, softirq, steal, in ticks over all processors."""
    for line in stat.splitlines():
        if line.startswith("cpu "):
            return [int(ticks) for ticks in line.split()[1:9]]
    raise ValueError("/proc/stat has no line of all processors")


@dataclass(frozen=True)
class Limits:
    """What was measured of the hardware; rates of products in GMAC/s, None where not measured."""

    processor: str
    threads: int
    read_gbytes: float
    products: dict[str, float] | None
    why_no_products: str = ""

    def __str__(self) -> str:
        text = f"{self.processor}, {self.threads} threads: {self.read_gbytes:.1f} GB/s read"
        if self.products is None:
            return f"{text}; products not measured: {self.why_no_products}"
        p = self.products
        return (
            f"{text}; {p['float32']:.0f} GMAC/s float32, {p['8x8']:.0f} 8 bit x 8 bit, "
            f"{p['4x8']:.0f} 4 bit x 8 bit in groups"
        )


def measure_limits(threads: int) -> Limits:
    """Read bandwidth and products per second (a small C++ program, built for this processor)."""
    from tidemill.hardware.bandwidth import measure_bandwidth
    from tidemill.hardware.cpu import cpu_info

    read = max(measure_bandwidth(0.5, threads).bytes_per_second for _ in range(3)) / 1e9
    products, why = None, ""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "peak"
        try:
            subprocess.run(
                ["g++", "-O2", "-march=native", "-pthread", str(_HERE / "peak.cpp"),
                 "-o", str(program)],
                check=True, capture_output=True, timeout=120,
            )  # fmt: skip
            done = subprocess.run(
                [str(program), str(threads)], check=True, capture_output=True, timeout=120
            )
            products = {name: float(rate) for name, rate in json.loads(done.stdout).items()}
        except FileNotFoundError:
            why = "there is no g++"
        except subprocess.SubprocessError as error:
            said = getattr(error, "stderr", None) or str(error).encode()
            why = said.decode(errors="replace").strip().splitlines()[0]
    return Limits(cpu_info().model, threads, read, products, why)
