from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from support.recordings import at_rates, measurement
from tidemill.bench.reporting.chosen import choose, newest
from tidemill.bench.result import Measurement, Result
from tidemill.bench.store import Store, StoreError


def put(store: Store, run: Measurement) -> str:
    return store.put(*run)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "bench")


def kept(run: Measurement, **fields: object) -> Result:
    return msgspec.structs.replace(run.result, **fields)


@pytest.fixture(scope="module")
def one() -> Measurement:
    return measurement()


def test_without_names_the_newest_of_each_scenario_and_target(store: Store) -> None:
    put(store, measurement(when="2026-01-01T00:00:00+00:00"))
    newer = put(store, measurement(when="2026-01-02T00:00:00+00:00"))
    other = put(store, measurement(engine="llama.cpp"))
    starts = put(store, measurement("cold-start"))
    found = choose(store, [])
    assert {run.result.id for run in found} == {newer, other, starts}
    for run in found:
        assert (run.recording is None) == bool(run.result.starts)


def test_the_newest_brings_its_repeats_and_its_curve(one: Measurement) -> None:
    old, repeat, new = (
        kept(one, id=name, name=of) for name, of in (("1", "other"), ("2", "mine"), ("3", "mine"))
    )
    assert [result.id for result in newest([new, repeat, old])] == ["3", "2"]
    points = [run.result for run in at_rates([1.0, 2.0], engine="tidemill", speed=1, series="a")]
    stale = [msgspec.structs.replace(point, series="b") for point in points]
    found = list(newest([*points, new, *stale]))
    assert found == [*points, new]


def test_runs_without_a_name_are_no_repeats(one: Measurement) -> None:
    found = newest([kept(one, id="2"), kept(one, id="1")])
    assert [result.id for result in found] == ["2"]


def test_by_id_and_by_name(store: Store) -> None:
    first = put(store, measurement(name="before"))
    second = put(store, measurement(name="before"))
    third = put(store, measurement("rag"))
    assert {run.result.id for run in choose(store, ["before"])} == {first, second}
    assert [run.result.id for run in choose(store, [third, third])] == [third]
    with pytest.raises(StoreError, match="there is no result 'nothing'"):
        choose(store, ["nothing"])


def test_from_a_file(store: Store, one: Measurement, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    several = [one.result, kept(one, id=""), kept(one, id="")]
    path.write_bytes(msgspec.json.encode({"results": several}))
    found = choose(store, [str(path)])
    assert [run.result for run in found] == several
    assert all(run.recording is None for run in found)
