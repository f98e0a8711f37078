"""Files of recorded requests, read line after line: CSV by the names of its columns, and JSON.

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
can be missing: then lengths are those of the scenario.

A line of JSON is one of Mooncake's traces (https://github.com/kvcache-ai/Mooncake, FAST25-release):

    {"timestamp": 3052, "input_length": 1287, "output_length": 316, "hash_ids": [0, 42, 43]}

with the timestamp in milliseconds. Each of ``hash_ids`` stands for 512 tokens of the prompt, the
last one for what is left; it is of all tokens up to there, so that prompts begin alike as far as
their ids are the same. They can be missing, and other fields are passed over.
"""

from __future__ import annotations

import csv
import datetime
import math
from collections.abc import Iterator
from typing import Annotated, Protocol, TextIO

import msgspec

from tidemill.bench.workload import MAX_TOKENS, Part, Size

MAX_SECONDS = 1e12
BLOCK = 512
"""Tokens for which one of ``hash_ids`` stands."""

_MAX_ROW, _MAX_LINE = 1 << 16, 1 << 20
"""Characters; a row of CSV has about fifty, a line of JSON some for every 512 tokens."""

_NAMES = {
    "timestamp": ("timestamp",),
    "input_tokens": ("input_tokens", "contexttokens", "request tokens"),
    "output_tokens": ("output_tokens", "generatedtokens", "response tokens"),
    "prefix_group": ("prefix_group",),
    "prefix_tokens": ("prefix_tokens",),
}
_PAIRS = (("input_tokens", "output_tokens"), ("prefix_group", "prefix_tokens"))


class TraceError(ValueError):
    """A trace that cannot be replayed; the message says where in the file, and why."""


class Recorded(Protocol):
    """The requests of a file, one after the other: iterating gives the timestamp of each."""

    @property
    def has_sizes(self) -> bool: ...

    def __iter__(self) -> Iterator[float]: ...

    def size(self) -> Size:
        """Of the one whose timestamp was given last."""
        ...


def opened(name: str, file: TextIO) -> Recorded:
    """By how it begins. Raises TraceError."""
    lines = _Numbered(name, file)
    return Lines(lines) if lines.first.lstrip().startswith("{") else Rows(lines)


class _Numbered:
    """The lines of a file, the number of the last one, and what is wrong with it."""

    def __init__(self, name: str, file: TextIO) -> None:
        self.name = name
        self.line = 0
        self.first = file.readline(_MAX_LINE)
        self._file = file
        self._latest = -math.inf

    def each(self, most: int) -> Iterator[str]:
        """All of them, of fewer than ``most`` characters."""
        line = self.first
        while line:
            self.line += 1
            if len(line) >= most:
                raise self.wrong("is too long for a trace")
            yield line
            line = self._file.readline(_MAX_LINE)

    def wrong(self, why: str) -> TraceError:
        return TraceError(f"{self.name}, line {self.line} {why}")

    def in_order(self, when: float) -> bool:
        """Whether it does not come before the one that was asked about before."""
        before, self._latest = self._latest, when
        return when >= before


class Rows:
    """Of CSV."""

    def __init__(self, lines: _Numbered) -> None:
        self._lines = lines
        self._reader = csv.reader(lines.each(_MAX_ROW), strict=True)
        header = [title.strip() for title in self._next() or []]
        if not header:
            raise TraceError(
                f"{lines.name} is empty: it should begin with the names of its columns"
            )
        self._titles = header
        self._row = header
        self.columns = self._found(header)

    def _next(self) -> list[str] | None:
        try:
            return next(self._reader, None)
        except csv.Error as error:
            raise self._lines.wrong(f"is no CSV: {error}") from None

    def _found(self, header: list[str]) -> dict[str, int]:
        """At which place of a row each column is, as far as it is there."""
        folded = [title.casefold() for title in header]
        columns = {}
        for column, names in _NAMES.items():
            places = [place for place, title in enumerate(folded) if title in names]
            if len(places) > 1:
                both = " and ".join(repr(header[place]) for place in places)
                raise TraceError(f"{self._lines.name}: the columns {both} mean the same")
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
            raise TraceError(f"{self._lines.name} has no column {missing[0]}; it has {has}")
        return columns

    @property
    def has_sizes(self) -> bool:
        return "input_tokens" in self.columns

    def __iter__(self) -> Iterator[float]:
        while (row := self._next()) is not None:
            if not row:  # an empty line
                continue
            self._row = row
            if len(row) != len(self._titles):
                raise self._lines.wrong(
                    f"has {len(row)} fields, and not {len(self._titles)} as the first"
                )
            when = self._timestamp()
            if not self._lines.in_order(when):
                raise self._wrong("timestamp", "is before the one above it: sort the file by time")
            yield when

    def size(self) -> Size:
        tokens, answer = self._tokens("input_tokens"), self._tokens("output_tokens")
        if "prefix_group" not in self.columns:
            return Size(tokens, answer)
        group = self._field("prefix_group")
        prefix = self._tokens("prefix_tokens") if self._field("prefix_tokens") else 0
        if prefix and not group:
            raise self._wrong("prefix_tokens", "needs a prefix_group beside it")
        if prefix > tokens:
            raise self._wrong("prefix_tokens", f"is more than the {tokens} input tokens")
        return Size(tokens, answer, (Part(group, prefix),) if prefix else ())

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
        if not abs(seconds) <= MAX_SECONDS:
            raise self._wrong("timestamp", "is no number of seconds, and no date with a time")
        return seconds

    def _wrong(self, column: str, why: str) -> TraceError:
        title = self._titles[self.columns[column]]
        lines = self._lines
        return TraceError(
            f"{lines.name}, line {lines.line}, column {title!r}: {self._field(column)[:40]!r} {why}"
        )


Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=-1000 * MAX_SECONDS, le=1000 * MAX_SECONDS)]
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[int] = []


class Lines:
    """Of JSON."""

    has_sizes = True

    def __init__(self, lines: _Numbered) -> None:
        self._lines = lines
        self._request = _Line(0, 0, 0)

    def __iter__(self) -> Iterator[float]:
        for line in self._lines.each(_MAX_LINE):
            if not line.strip():
                continue
            try:
                self._request = msgspec.json.decode(line, type=_Line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise self._lines.wrong(f"is no request of a trace: {error}") from None
            when = self._request.timestamp / 1000
            if not self._lines.in_order(when):
                raise self._lines.wrong("comes before the one above it: sort the file by time")
            yield when

    def size(self) -> Size:
        tokens, ids = self._request.input_length, self._request.hash_ids
        if len(ids) > -(-tokens // BLOCK):
            raise self._lines.wrong(
                f"has {len(ids)} hash_ids for {tokens} tokens: each stands for {BLOCK}"
            )
        parts = (Part(str(id_), min(BLOCK, tokens - BLOCK * i)) for i, id_ in enumerate(ids))
        return Size(tokens, self._request.output_length, tuple(parts))
