"""How fast this machine reads memory: the bound on single-stream decoding."""

from __future__ import annotations

from tidemill.hardware.cores import usable_cores
from tidemill.hardware.cpu import cpu_info
from tidemill.hardware.memory import available_memory
from tidemill.records import dataclass

_LEAST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """A measured streaming-read rate: bytes per second over ``threads`` threads together."""

    bytes_per_second: float
    threads: int
    working_set: int
    """Bytes read over and over: several times the caches, so that it is memory that is read."""


def measure_bandwidth(seconds: float = 0.5, threads: int | None = None) -> Bandwidth:
    """Stream through memory with ``threads`` (default: the usable cores) for ``seconds``.

    The working set is four times the last-level caches, at least 256 MiB, and at most a quarter of
    the memory available. Raises MemoryError if even that cannot be had, ValueError on
    threads outside 1..4096 or seconds outside 0..60.
    """
    from tidemill import _native

    threads = usable_cores() if threads is None else threads
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    caches = cpu_info().caches
    last_level = max((c.level for c in caches), default=0)
    cached = sum(c.size * c.count for c in caches if c.level == last_level)
    size = max(_LEAST_BYTES, 4 * cached)
    free = available_memory()
    if free is not None:
        size = min(size, free // 4)
    per_thread = max(1 << 20, size // threads)
    rate = _native.read_bandwidth(per_thread, threads, seconds)
    return Bandwidth(rate, threads, per_thread * threads)
