"""The machine that is measured on: its limits, and whether it is quiet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

QUIET = 0.10  # the most of the processors' time that others may have


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
    """What was measured of the hardware, all threads together: GB/s, and 10^9 products a second."""

    processor: str
    threads: int
    read_gbytes: float
    products: dict[str, float]

    def __str__(self) -> str:
        products = ", ".join(f"{name} {rate:.0f}" for name, rate in self.products.items())
        return (
            f"{self.processor}, {self.threads} threads: {self.read_gbytes:.1f} GB/s read; "
            f"products (10^9/s): {products}"
        )


def measure_limits(threads: int) -> Limits:
    """Read bandwidth, and the bare arithmetic of float32, of 4 by 8 bits and of 8 by 8 bits, as
    ``tidemill bench kernel`` measures them."""
    from tidemill import _native
    from tidemill.hardware.bandwidth import measure_bandwidth
    from tidemill.hardware.cpu import cpu_info
    from tidemill.weights.base import TensorType

    read = max(measure_bandwidth(0.5, threads).bytes_per_second for _ in range(3)) / 1e9
    types = {"float32": TensorType.F32, "4x8 bit": TensorType.Q4_1, "8x8 bit": TensorType.Q8_0}
    products = {
        name: _native.peak_products(int(type_), threads, 0.5) / 1e9 for name, type_ in types.items()
    }
    return Limits(cpu_info().model, threads, read, products)
