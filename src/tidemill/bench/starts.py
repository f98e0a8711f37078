"""Cold starts: how long an engine takes from nothing to its first token, by phase."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from tidemill.bench.client import Client, Endpoint, Reply
from tidemill.bench.engines import Engine, Launch, TargetError, started
from tidemill.bench.stream import read
from tidemill.bench.workload import Workload

PHASES = ("mapped", "listening", "ready", "first_token", "second")


class Start(msgspec.Struct, frozen=True):
    """Seconds since the process was begun: its port answered, a file of the model was mapped
    (``process.Phases``), it was ready to be asked, the first token of its first answer was there.
    ``second``: the time to the first token of a second request, as a start leaves it. ``cached``:
    the share of the model's files, and of those that the engine made of it, that was in the page
    cache when it began (an engine may read but some of them); None where that cannot be told."""

    cold: bool
    cached: float | None
    listening: float
    ready: float
    first_token: float
    second: float
    mapped: float | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for times that no start takes: files may be damaged, or edited."""
        for name in PHASES:
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1e9:
                raise ValueError(f"{name} must be 0 to 1e9 seconds, not {value}")


def measure_starts(
    engine: Engine, launch: Launch, workload: Workload, repeats: int, timeout: float,
    say: Callable[[str], None],
) -> list[Start]:  # fmt: skip
    """``repeats`` starts cold and as many warm, in turns, after one that is not counted (which
    writes what the engine keeps for later ones). Cold ones only where files can be taken out of
    the page cache. Raises TargetError."""
    say("a first start, not counted")
    _start(engine, launch, workload, timeout, cold=False)
    can_evict = hasattr(os, "posix_fadvise")
    found = []
    for i in range(repeats):
        for cold in (True, False) if can_evict else (False,):
            say(f"start {i + 1} of {repeats}, {'cold' if cold else 'warm'}")
            found.append(_start(engine, launch, workload, timeout, cold=cold))
    return found


def medians(starts: Sequence[Start], *, cold: bool) -> dict[str, float]:
    """By phase, of the cold or of the warm ones; phases that an engine does not have are left
    out."""
    of_kind = [start for start in starts if start.cold == cold]
    values = {name: [getattr(start, name) for start in of_kind] for name in PHASES}
    return {
        name: statistics.median(of_phase)
        for name, of_phase in values.items()
        if of_phase and None not in of_phase
    }


def _start(
    engine: Engine, launch: Launch, workload: Workload, timeout: float, *, cold: bool
) -> Start:
    files = [*_files(launch.model), *engine.files(launch)]
    if cold:
        for file in files:
            _evict(file)
    cached = _cached_share(files)
    with started(engine, launch) as process:
        phases = process.until_ready(timeout, files)
        endpoint = Endpoint(process.url, engine.model_name(launch), extra=dict(engine.greedy))
        first, second = asyncio.run(_two_requests(endpoint, workload, timeout))
        return Start(
            cold, cached, phases.listening, phases.ready, first[1] - process.began,
            second[1] - second[0], phases.mapped,
        )  # fmt: skip


async def _two_requests(
    endpoint: Endpoint, workload: Workload, timeout: float
) -> list[tuple[float, float]]:
    """When each was sent, and when its first token came."""
    client = Client(endpoint, timeout)
    found = []
    try:
        for i in range(2):
            found.append(_times(await client.send(endpoint.body(workload.prompt(i)))))
    finally:
        client.close()
    return found


def _times(reply: Reply) -> tuple[float, float]:
    answer = read(reply)
    if answer.error is not None:
        raise TargetError(f"the first answer failed, {answer.error}: {answer.detail}")
    return reply.sent, answer.times[0]


def _files(model: Path) -> list[Path]:
    """Of a split model all files of its folder: some too many do no harm."""
    folder = model if model.is_dir() else model.parent
    if model.is_file() and "-of-" not in model.name:
        return [model]
    return [path for path in folder.rglob("*") if path.is_file()]


def _evict(path: Path) -> None:
    """Ask the operating system to drop a file from the page cache. It keeps what somebody has
    mapped or what is not written yet."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _cached_share(files: Sequence[Path]) -> float | None:
    """The share of the files' pages that is in the page cache, by mincore(2)."""
    pages = resident = 0
    for file in files:
        size = file.stat().st_size
        if not size:
            continue
        with file.open("rb") as opened, mmap.mmap(
            opened.fileno(), size, prot=mmap.PROT_READ
        ) as mapped:  # fmt: skip
            view = np.frombuffer(mapped, np.uint8)
            states = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
            failed = ctypes.CDLL(None).mincore(
                ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size),
                ctypes.c_void_p(states.ctypes.data),
            )  # fmt: skip
            del view  # or the mapping could not be closed
            if failed:
                return None
            pages += len(states)
            resident += int((states & 1).sum())
    return resident / pages if pages else None
