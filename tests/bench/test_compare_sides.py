"""What is compared, by ids, names and files: scenario by scenario."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from support import runs
from tidemill.bench.compare import CompareError, compare
from tidemill.bench.compare.sides import pairs
from tidemill.bench.store import Store, StoreError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "bench")


def put(store: Store, seed: int = 0, **fields: object) -> str:
    result, recording = runs.run(30, seed=seed)
    return store.put(msgspec.structs.replace(result, **fields), recording)


def test_ids_names_and_files(store: Store, tmp_path: Path) -> None:
    id = put(store)
    for seed in (1, 2):
        put(store, seed, name="mine")
    file = tmp_path / "out.json"
    file.write_bytes(msgspec.json.encode({"results": [store.get(id)]}))
    ((a, b),) = pairs(id, "mine", store)
    assert [len(s.results) for s in (a, b)] == [1, 2]
    assert None not in b.recordings
    ((a, b),) = pairs(str(file), id[:-1], store)
    assert a.recordings == [None]
    assert a.first == b.first


def test_scenarios_are_compared_one_by_one(store: Store) -> None:
    other = runs.result("rag").scenario
    for name in ("a", "b"):
        for scenario in ({}, {"scenario": other}):
            put(store, name=name, **scenario)
    put(store, name="c", scenario=other)
    assert sorted(a.first.scenario.name for a, _ in pairs("a", "b", store)) == ["rag", "short-chat"]
    ((a, _),) = pairs("a", "b", store, "rag")
    assert a.first.scenario.name == "rag"
    ((a, c),) = pairs("a", "c", store)
    assert a.first.scenario == c.first.scenario == other
    with pytest.raises(CompareError, match="no result of scenario short-chat"):
        pairs("a", "c", store, "short-chat")
    put(store, name="d")
    ((c, d),) = pairs("c", "d", store)  # one each: how they differ is for compare to say
    with pytest.raises(CompareError, match="rag and short-chat"):
        compare(c, d)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no file of"), (b"[1, 2]", "no file of"), (b'{"results": [{"a": 1}]}', "no file of"),
        (b'{"results": []}', "no results"), (b"[" * 100_000, "no file of"),
        (b"\xff" * 20, "no file of"),
    ],
)  # fmt: skip
def test_files_that_are_none_of_ours(
    store: Store, tmp_path: Path, content: bytes, said: str
) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(CompareError, match=said):
        pairs(str(file), str(file), store)
    with pytest.raises(StoreError, match="there is no result"):
        pairs("nothing", "nothing", store)
    with pytest.raises(FileNotFoundError):
        pairs("nothing.json", "nothing.json", store)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("requests", 0), ("good", -1), ("output_rate", 1e300), ("attained", 1.5), ("short", 10**6),
        ("verdicts", {"right": 10**6}), ("seconds", 0), ("errors", {"timeout": 7}),
        ("latency", {}), ("latency", {"ttft": {}, "e2e": {}}), ("goodput", None),
        ("examples", {"timeout": "late"}),
    ],
)  # fmt: skip
def test_figures_that_no_run_has(tmp_path: Path, store: Store, field: str, value: object) -> None:
    result = msgspec.to_builtins(store.get(put(store)), str_keys=True)
    result["summary"][field] = value
    file = tmp_path / "x.json"
    file.write_bytes(msgspec.json.encode({"results": [result]}))
    with pytest.raises(CompareError, match="no file of"):
        pairs(str(file), str(file), store)


def test_a_file_of_a_newer_version(tmp_path: Path, store: Store) -> None:
    result = msgspec.to_builtins(store.get(put(store)), str_keys=True)
    file = tmp_path / "x.json"
    file.write_bytes(msgspec.json.encode({"results": [{"format": 2, "new": result}]}))
    with pytest.raises(CompareError, match=r"x\.json is of a newer tidemill \(format 2\)"):
        pairs(str(file), str(file), store)
