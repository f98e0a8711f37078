"""Which runs a report is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tidemill.bench.reporting import ReportError
from tidemill.bench.result import FORMAT, Measurement, Result
from tidemill.bench.store import Store

_LARGEST = 256 << 20
"""Bytes of a file of results."""


def choose(store: Store, which: Sequence[str]) -> list[Measurement]:
    """By id (or the beginning of one), name, or file of results; each once. Without any, the newest
    of each scenario and target. Raises ReportError and StoreError."""
    if not which:
        return [_kept(store, result) for result in newest(store.results())]
    found: dict[str, Measurement] = {}
    for text in which:
        if text.endswith(".json"):
            for result in read(Path(text)):
                found[result.id or f"{text} {len(found)}"] = Measurement(result, None)
        else:
            for result in store.results(name=text) or [store.get(text)]:
                found[result.id] = _kept(store, result)
    return list(found.values())


def newest(results: Sequence[Result]) -> Iterator[Result]:
    """Of each scenario and target the newest run, with those that belong to it: repeats of one
    name, and the other points of a curve. ``results`` are from new to old."""
    first: dict[tuple[object, ...], Result] = {}
    for result in results:
        target = result.target
        place = (result.scenario.name, target.whom, target.model, bool(result.series))
        leader = first.setdefault(place, result)
        if result is leader or (_group(result) == _group(leader) != (None, None)):
            yield result


def _group(result: Result) -> tuple[str | None, str | None]:
    return result.name, result.series


def _kept(store: Store, result: Result) -> Measurement:
    return Measurement(result, store.recording(result.id))


class _File(msgspec.Struct):
    results: list[msgspec.Raw]


class _Format(msgspec.Struct):
    format: int


def read(path: Path) -> list[Result]:
    """What ``tidemill bench run --json`` wrote. Raises ReportError."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ReportError(f"{path} is larger than {_LARGEST >> 20} MiB")
        found = msgspec.json.decode(data, type=_File).results
        for part in found:
            if (newer := msgspec.json.decode(part, type=_Format).format) > FORMAT:
                raise ReportError(f"{path} is of a newer tidemill (format {newer})")
        return [msgspec.json.decode(part, type=Result) for part in found]
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ReportError(f"{path} has no results of tidemill bench run --json: {error}") from None
