"""What a user names to be compared: an id, a name, or a file of ``bench run --json``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidemill.bench.compare.base import CompareError, Side
from tidemill.bench.result import Measurement, NewerFormatError, Result, decode
from tidemill.bench.store import Store

_MAX_FILE = 256 << 20


class _File(msgspec.Struct):
    results: list[msgspec.Raw]


def pairs(a: str, b: str, store: Store, scenario: str | None = None) -> list[tuple[Side, Side]]:
    """A pair of sides for each scenario that both have; where they have one each, these, so that
    ``compare`` says how they differ. Raises CompareError, StoreError."""
    of_a, of_b = (_by_scenario(text, store, scenario) for text in (a, b))
    common = [name for name in of_a if name in of_b]
    if not common and len(of_a) == len(of_b) == 1:
        return list(zip(of_a.values(), of_b.values(), strict=True))
    if not common:
        raise CompareError(
            f"A and B have no scenario in common: {', '.join(of_a)} and {', '.join(of_b)}"
        )
    return [(of_a[name], of_b[name]) for name in common]


def _by_scenario(text: str, store: Store, scenario: str | None) -> dict[str, Side]:
    found: dict[str, Side] = {}
    for result, recording in runs_of(text, store):
        name = result.scenario.name
        if scenario in (None, name):
            side = found.setdefault(name, Side(text, [], []))
            side.results.append(result)
            side.recordings.append(recording)
    if not found:
        raise CompareError(f"{text} has no result of scenario {scenario}")
    return found


def runs_of(text: str, store: Store) -> list[Measurement]:
    """All that a user names by ``text``. Raises CompareError, StoreError, OSError."""
    if text.endswith(".json"):
        return [Measurement(result, None) for result in _read(Path(text))]
    results = store.results(name=text) or [store.get(text)]
    return [Measurement(result, store.recording(result.id)) for result in results]


def _read(path: Path) -> list[Result]:
    """Raises OSError if it cannot be read."""
    with path.open("rb") as file:
        data = file.read(_MAX_FILE + 1)
    if len(data) > _MAX_FILE:
        raise CompareError(f"{path} is larger than {_MAX_FILE >> 20} MiB")
    try:
        found = [decode(raw) for raw in msgspec.json.decode(data, type=_File).results]
    except NewerFormatError as error:
        raise CompareError(f"{path} is {error}") from None
    except (ValueError, RecursionError) as error:  # msgspec's are ValueErrors
        raise CompareError(f"{path} is no file of `bench run --json`: {error}") from None
    if not found:
        raise CompareError(f"{path} has no results")
    return found
