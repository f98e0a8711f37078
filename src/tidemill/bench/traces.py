"""Recorded requests: CSV files with when each came, how long it was, and what it shared.

=============  =================================  ================================================
column         also called                        what
=============  =================================  ================================================
timestamp                                         seconds, or date and time (UTC without an offset)
input_tokens   ContextTokens, Request tokens      of the whole prompt
output_tokens  GeneratedTokens, Response tokens   of the answer
prefix_group                                      requests of one group begin with the same text ...
prefix_tokens                                     ... of so many tokens, part of ``input_tokens``
=============  =================================  ================================================

The other names are those of the Azure LLM inference traces of 2023 and 2024
(https://github.com/Azure/AzurePublicDataset) and of BurstGPT (https://github.com/HPMLL/BurstGPT).
Columns may come in any order, and small or large; others are passed over. Both columns of lengths
can be missing: then lengths are those of the scenario. Rows without tokens are requests that
failed when they were recorded (0 response tokens in BurstGPT), and are left out.
"""

from __future__ import annotations

import csv
import datetime
import hashlib
import math
from collections.abc import Iterator
from typing import Annotated, NamedTuple, TextIO

import msgspec

from tidemill.bench.arrivals import variation
from tidemill.bench.workload import MAX_TOKENS, Size

MAX_REQUESTS = 1_000_000
_MAX_LINE = 1 << 16
"""Characters; a line of a trace has about fifty."""

_MAX_SECONDS = 1e12
_NAMES = {
    "timestamp": ("timestamp",),
    "input_tokens": ("input_tokens", "contexttokens", "request tokens"),
    "output_tokens": ("output_tokens", "generatedtokens", "response tokens"),
    "prefix_group": ("prefix_group",),
    "prefix_tokens": ("prefix_tokens",),
}
_PAIRS = (("input_tokens", "output_tokens"), ("prefix_group", "prefix_tokens"))
_OVERHEAD = 256
_PER_WORD = 1.25
"""Tokens that a chat template adds, and that a word can have at most on average, about."""

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e6)]


class TraceError(ValueError):
    """A trace that cannot be replayed; the message says where in the file, and why."""


class TraceFile(msgspec.Struct, frozen=True, tag="trace", tag_field="kind",
                forbid_unknown_fields=True):  # fmt: skip
    """The requests of ``file`` as they once came, ``speed`` times as fast.

    Of them only those from ``start`` to ``end`` (seconds since the first), and ``limit`` at most.
    Lengths are ``scale`` times as long; where a prompt and its answer then still need more than
    ``context`` tokens, they are shortened to that.
    """

    file: str
    speed: Positive = 1.0
    start: Annotated[float, msgspec.Meta(ge=0, le=_MAX_SECONDS)] = 0.0
    end: Annotated[float, msgspec.Meta(gt=0, le=_MAX_SECONDS)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    scale: Positive = 1.0
    context: Annotated[int, msgspec.Meta(gt=2 * _OVERHEAD, le=MAX_TOKENS)] | None = None

    def __post_init__(self) -> None:
        if self.end is not None and self.end <= self.start:
            raise ValueError(f"a trace from {self.start:g} s to {self.end:g} s has nothing in it")


def context_of(tokens: int) -> int:
    """Tokens that a sequence needs whose prompt and answer are asked to have ``tokens``."""
    return round(tokens * _PER_WORD) + _OVERHEAD


class Requests(NamedTuple):
    """What is replayed of a trace. ``timestamps`` are in seconds, from any beginning; ``sizes`` is
    empty if the file has no lengths. ``notes`` say what it is and what was changed of it."""

    timestamps: tuple[float, ...]
    sizes: tuple[Size, ...]
    notes: list[str]

    @property
    def seconds(self) -> float:
        """As it was recorded: each request has its place of one average gap."""
        n = len(self.timestamps)
        return (self.timestamps[-1] - self.timestamps[0]) * n / (n - 1) if n > 1 else 1.0


def read(trace: TraceFile) -> Requests:
    """Raises TraceError, and OSError if the file cannot be read. It is read only as far as it is
    needed."""
    timestamps: list[float] = []
    sizes: list[Size] = []
    left_out = 0
    try:
        with open(trace.file, encoding="utf-8-sig", newline="") as file:
            rows = _Rows(trace.file, file)
            has_sizes = "input_tokens" in rows.columns
            first = None
            for when in rows:
                first = when if first is None else first
                if when - first < trace.start:
                    continue
                if trace.end is not None and when - first >= trace.end:
                    break
                if has_sizes:
                    size = rows.size()
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
    notes = _notes(trace, timestamps, fitted, left_out, cut)
    return Requests(tuple(timestamps), tuple(fitted), notes)


class _Rows:
    """The rows of a file one after the other: each gives its timestamp, and its size if asked."""

    def __init__(self, name: str, file: TextIO) -> None:
        self._name = name
        self._reader = csv.reader(self._lines(file), strict=True)
        self.line = 0
        header = [title.strip() for title in self._next() or []]
        if not header:
            raise TraceError(f"{name} is empty: it should begin with the names of its columns")
        self._titles = header
        self._row = header
        self.columns = self._found(header)

    def _lines(self, file: TextIO) -> Iterator[str]:
        while line := file.readline(_MAX_LINE):
            self.line += 1
            if len(line) == _MAX_LINE:
                raise TraceError(f"{self._name}, line {self.line} is too long for a trace")
            yield line

    def _next(self) -> list[str] | None:
        try:
            return next(self._reader, None)
        except csv.Error as error:
            raise TraceError(f"{self._name}, line {self.line}: {error}") from None

    def _found(self, header: list[str]) -> dict[str, int]:
        """At which place of a row each column is, as far as it is there."""
        folded = [title.casefold() for title in header]
        columns = {}
        for column, names in _NAMES.items():
            places = [place for place, title in enumerate(folded) if title in names]
            if len(places) > 1:
                both = " and ".join(repr(header[place]) for place in places)
                raise TraceError(f"{self._name}: the columns {both} mean the same")
            if places:
                columns[column] = places[0]
        missing = [
            column
            for pair in _PAIRS
            if len(columns.keys() & set(pair)) == 1
            for column in pair
            if column not in columns
        ]
        if "timestamp" not in columns:
            missing.insert(0, "timestamp")
        if "prefix_group" in columns and "input_tokens" not in columns:
            missing.append("input_tokens")
        if missing:
            has = ", ".join(repr(title[:40]) for title in header[:20])
            raise TraceError(f"{self._name} has no column {missing[0]}; it has {has}")
        return columns

    def __iter__(self) -> Iterator[float]:
        previous = -math.inf
        while (row := self._next()) is not None:
            if not row:  # an empty line
                continue
            self._row = row
            if len(row) != len(self._titles):
                raise TraceError(
                    f"{self._name}, line {self.line} has {len(row)} fields, and not "
                    f"{len(self._titles)} as the first"
                )
            when = self._timestamp()
            if when < previous:
                raise self._wrong("timestamp", "is before the one above it: sort the file by time")
            previous = when
            yield when

    def size(self) -> Size:
        """Of the row whose timestamp was given last."""
        tokens, answer = self._tokens("input_tokens"), self._tokens("output_tokens")
        if "prefix_group" not in self.columns:
            return Size(tokens, answer)
        group = self._field("prefix_group")
        prefix = self._tokens("prefix_tokens") if self._field("prefix_tokens") else 0
        if prefix and not group:
            raise self._wrong("prefix_tokens", "needs a prefix_group beside it")
        if prefix > tokens:
            raise self._wrong("prefix_tokens", f"is more than the {tokens} input tokens")
        return Size(tokens, answer, group, prefix)

    def _field(self, column: str) -> str:
        return self._row[self.columns[column]].strip()

    def _tokens(self, column: str) -> int:
        try:
            number = float(self._field(column))
            if 0 <= number <= MAX_TOKENS and number.is_integer():
                return int(number)
        except ValueError:
            pass
        raise self._wrong(column, f"is no whole number from 0 to {MAX_TOKENS}")

    def _timestamp(self) -> float:
        text = self._field("timestamp")
        try:
            seconds = float(text)
        except ValueError:
            try:
                moment = datetime.datetime.fromisoformat(text)
            except ValueError:
                seconds = math.nan
            else:
                seconds = moment.replace(tzinfo=moment.tzinfo or datetime.UTC).timestamp()
        if not abs(seconds) <= _MAX_SECONDS:
            raise self._wrong("timestamp", "is no number of seconds, and no date with a time")
        return seconds

    def _wrong(self, column: str, why: str) -> TraceError:
        title = self._titles[self.columns[column]]
        return TraceError(
            f"{self._name}, line {self.line}, column {title!r}: {self._field(column)[:40]!r} {why}"
        )


def _scaled(size: Size, factor: float) -> Size:
    tokens = max(1, round(size.input * factor))
    prefix = min(tokens, round(size.prefix * factor))
    return Size(tokens, max(1, round(size.output * factor)), size.group, prefix)


def _cut(size: Size, context: int) -> Size:
    """Shortened to what fits: the prompt, and the answer if it alone takes more than half."""
    room = int((context - _OVERHEAD) / _PER_WORD)
    tokens = min(size.input, max(room - size.output, room // 2))
    answer = min(size.output, room - tokens)
    return Size(tokens, answer, size.group, min(size.prefix, tokens))


def _notes(
    trace: TraceFile, timestamps: list[float], sizes: list[Size], left_out: int, cut: int
) -> list[str]:
    n = len(timestamps)
    span = timestamps[-1] - timestamps[0]
    bursts = variation(timestamps)
    digest = hashlib.sha256(msgspec.msgpack.encode((timestamps, sizes))).hexdigest()
    notes = [
        f"trace: {n} requests over {span:.0f} s"
        + (f", gaps with a coefficient of variation of {bursts:.2f}" if bursts else "")
        + (f", {trace.speed:g} times as fast" if trace.speed != 1 else "")
        + f" (SHA-256 of what was replayed: {digest[:16]})"
    ]
    if left_out:
        notes.append(f"trace: {left_out} rows without tokens, which had failed, were left out")
    if not sizes:
        notes.append("trace: it has no lengths, they are the scenario's")
    elif trace.scale != 1:
        notes.append(f"trace: all lengths are {trace.scale:g} times what they were")
    if cut:
        notes.append(f"trace: {cut} of {n} requests were shortened to {trace.context} tokens")
    return notes
