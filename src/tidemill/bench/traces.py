"""Recorded requests: what is taken of a file (``trace_files.py``), and how it is changed to fit.

Rows without tokens are requests that failed when they were recorded (0 response tokens in
BurstGPT), and are left out.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec

from tidemill.bench.arrivals import variation
from tidemill.bench.trace_files import MAX_SECONDS, TraceError, opened
from tidemill.bench.workload import MAX_TOKENS, Part, Size

MAX_REQUESTS = 1_000_000
_OVERHEAD = 256
_PER_WORD = 1.25
"""Tokens that a chat template adds, and that a word can have at most on average, about."""

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e6)]


class TraceFile(msgspec.Struct, frozen=True, tag="trace", tag_field="kind",
                forbid_unknown_fields=True):  # fmt: skip
    """The requests of ``file`` as they once came, ``speed`` times as fast, or as much faster or
    slower as makes ``rate`` requests a second of them on average.

    Of them only those from ``start`` to ``end`` (seconds since the first), and ``limit`` at most.
    Lengths are ``scale`` times as long; where a prompt and its answer then still need more than
    ``context`` tokens, they are shortened to that.
    """

    file: str
    speed: Positive = 1.0
    rate: Positive | None = None
    start: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] = 0.0
    end: Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    scale: Positive = 1.0
    context: Annotated[int, msgspec.Meta(gt=2 * _OVERHEAD, le=MAX_TOKENS)] | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and self.speed != 1:
            raise ValueError("speed or rate, not both: each follows from the other")
        if self.end is not None and self.end <= self.start:
            raise ValueError(f"a trace from {self.start:g} s to {self.end:g} s has nothing in it")

    def at(self, rate: float) -> TraceFile:
        """The same requests at another rate."""
        return msgspec.structs.replace(self, rate=rate, speed=1.0)


def context_of(tokens: int) -> int:
    """Tokens that a sequence needs whose prompt and answer are asked to have ``tokens``."""
    return round(tokens * _PER_WORD) + _OVERHEAD


class Requests(NamedTuple):
    """What is replayed of a trace. ``timestamps`` are in seconds, from any beginning, and are gone
    through ``speed`` times as fast; ``sizes`` is empty if the file has no lengths. ``notes`` say
    what it is and what was changed of it."""

    timestamps: tuple[float, ...]
    sizes: tuple[Size, ...]
    speed: float
    notes: list[str]

    @property
    def seconds(self) -> float:
        """That it lasts."""
        return _seconds(self.timestamps) / self.speed


def read(trace: TraceFile) -> Requests:
    """Raises TraceError, and OSError if the file cannot be read. It is read only as far as it is
    needed."""
    timestamps: list[float] = []
    sizes: list[Size] = []
    left_out = 0
    try:
        with open(trace.file, encoding="utf-8-sig", newline="") as file:
            requests = opened(trace.file, file)
            first = None
            for when in requests:
                first = when if first is None else first
                if when - first < trace.start:
                    continue
                if trace.end is not None and when - first >= trace.end:
                    break
                if requests.has_sizes:
                    size = requests.size()
                    if not size.input or not size.output:
                        left_out += 1
                        continue
                    sizes.append(size)
                if len(timestamps) == MAX_REQUESTS:
                    raise TraceError(
                        f"{trace.file} has more than {MAX_REQUESTS} requests: choose some of them "
                        "by --limit, --from and --to (limit, start and end in a scenario)"
                    )
                timestamps.append(when)
                if len(timestamps) == trace.limit:
                    break
    except UnicodeDecodeError:
        raise TraceError(
            f"{trace.file} is no text in UTF-8: is it compressed, or of another program?"
        ) from None
    if not timestamps:
        chosen = " from --from to --to" if trace.start or trace.end else ""
        raise TraceError(f"{trace.file} has no requests{chosen}")
    sizes = _without_lone_parts(sizes)
    if trace.scale != 1:
        sizes = [_scaled(size, trace.scale) for size in sizes]
    fitted = sizes if trace.context is None else [_cut(size, trace.context) for size in sizes]
    longest = max((size.input + size.output for size in fitted), default=0)
    if longest > MAX_TOKENS:
        raise TraceError(
            f"{trace.file}: a request of {longest} tokens is more than any model has room for: "
            "lower --scale, or give --context (scale and context in a scenario)"
        )
    cut = sum(a != b for a, b in zip(sizes, fitted, strict=True))
    speed = trace.speed
    if trace.rate is not None:
        speed = trace.rate * _seconds(timestamps) / len(timestamps)
        if not speed:
            raise TraceError(f"{trace.file}: all requests came at once, which is no rate")
    notes = _notes(trace, speed, timestamps, fitted, left_out, cut)
    return Requests(tuple(timestamps), tuple(fitted), speed, notes)


def _seconds(timestamps: Sequence[float]) -> float:
    """That requests took to come: each has its place of one average gap."""
    n = len(timestamps)
    return (timestamps[-1] - timestamps[0]) * n / (n - 1) if n > 1 else 1.0


def _without_lone_parts(sizes: list[Size]) -> list[Size]:
    """Without those parts at the ends of beginnings that only one request has."""
    times = Counter(part.name for size in sizes for part in size.parts)
    kept = []
    for size in sizes:
        n = len(size.parts)
        while n and times[size.parts[n - 1].name] < 2:
            n -= 1
        kept.append(msgspec.structs.replace(size, parts=size.parts[:n]))
    return kept


def _scaled(size: Size, factor: float) -> Size:
    tokens = max(1, round(size.input * factor))
    parts = [Part(name, round(n * factor)) for name, n in size.parts]
    return Size(tokens, max(1, round(size.output * factor)), _within(parts, tokens))


def _cut(size: Size, context: int) -> Size:
    """Shortened to what fits: the prompt, and the answer if it alone takes more than half."""
    room = int((context - _OVERHEAD) / _PER_WORD)
    tokens = min(size.input, max(room - size.output, room // 2))
    answer = min(size.output, room - tokens)
    return Size(tokens, answer, _within(size.parts, tokens))


def _within(parts: Sequence[Part], tokens: int) -> tuple[Part, ...]:
    """As much of them as a prompt of so many tokens has."""
    found = []
    for name, n in parts:
        n = min(n, tokens)
        tokens -= n
        if n:
            found.append(Part(name, n))
    return tuple(found)


def _notes(
    trace: TraceFile, speed: float, timestamps: list[float], sizes: list[Size], left_out: int,
    cut: int,
) -> list[str]:  # fmt: skip
    n = len(timestamps)
    span = timestamps[-1] - timestamps[0]
    bursts = variation(timestamps)
    digest = hashlib.sha256(msgspec.msgpack.encode((timestamps, sizes))).hexdigest()
    notes = [
        f"trace: {n} requests over {span:.0f} s"
        + (f", gaps with a coefficient of variation of {bursts:.2f}" if bursts else "")
        + (f", {speed:.4g} times as fast" if speed != 1 else "")
        + f" (SHA-256 of what was replayed: {digest[:16]})"
    ]
    if left_out:
        notes.append(f"trace: {left_out} rows without tokens, which had failed, were left out")
    if shared := sum(size.prefix for size in sizes):
        share = shared / sum(size.input for size in sizes)
        notes.append(
            f"trace: {share:.0%} of the tokens of prompts are in beginnings that are shared"
        )
    if not sizes:
        notes.append("trace: it has no lengths, they are the scenario's")
    elif trace.scale != 1:
        notes.append(f"trace: all lengths are {trace.scale:g} times what they were")
    if cut:
        notes.append(f"trace: {cut} of {n} requests were shortened to {trace.context} tokens")
    return notes
