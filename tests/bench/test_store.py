from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import runs
from tidemill.bench.records import Record, Recording, Window
from tidemill.bench.result import Measured, Result, without_secrets
from tidemill.bench.starts import Start
from tidemill.bench.store import _COLUMNS, MissingDuckDB, Store, StoreError, relative

seconds = st.floats(-1e6, 1e6, allow_nan=False)
counts = st.none() | st.integers(0, 2**62)
records = st.builds(
    Record,
    index=st.integers(0, 2**62), shape=st.text(), due=seconds, sent=seconds, ended=seconds,
    times=st.lists(seconds), prompt_tokens=counts, cached_tokens=counts, output_tokens=counts,
    error=st.none() | st.text(), detail=st.text(), warmup=st.booleans(), turn=st.integers(0, 1000),
    asked=st.integers(0, 2**62), verdict=st.sampled_from([None, "right", "wrong", "malformed"]),
    text=st.text(),
).filter(lambda record: record.error is not None or record.times)  # fmt: skip


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, said: list[str]) -> Store:
    return Store(tmp_path / "bench", said.append)


def test_all_fields_of_a_record_are_kept() -> None:
    assert set(_COLUMNS) == set(Record.__struct_fields__)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("bench"))


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(records, max_size=4), seconds, st.dictionaries(st.integers(1, 2**22), seconds))
def test_a_recording_comes_back(
    filled: Store, made: list[Record], opened: float, watched: dict[int, float]
) -> None:
    recording = Recording(made, Window(opened, opened + 1), 0.25, watched)
    id = filled.put(runs.result(), recording)
    found = filled.recording(id)
    assert found == relative(recording)
    assert found is not None
    assert found.window.opened == 0
    filled.remove(id)
    assert list(filled.folder.iterdir()) == []


def test_a_result_comes_back(store: Store) -> None:
    result, recording = runs.run()
    result.notes = ["it's 'quoted'; DROP TABLE records"]
    id = store.put(result, recording)
    assert result.id == id
    assert store.get(id) == result
    assert store.results() == [result]
    again = store.recording(id)
    assert again is not None
    assert again.records[3].times[0] == pytest.approx(recording.records[3].times[0] - 1000)


def test_cold_starts_have_no_recording(store: Store) -> None:
    result = runs.result("cold-start", starts=[Start(True, 0.0, 0.1, 0.5, 0.9, 0.05)])
    id = store.put(result, None)
    assert store.get(id).starts == result.starts
    assert store.recording(id) is None


def test_a_result_may_be_long(store: Store) -> None:
    """Metadata is part of an SQL statement."""
    result, recording = runs.run()
    result.notes = ["it's long " * 100_000]
    assert store.get(store.put(result, recording)).notes == result.notes


def test_ids_can_be_typed(store: Store) -> None:
    result, recording = runs.run()
    id = store.put(result, recording)
    when = time.strftime("%m%d-%H%M", time.localtime(1767323045))
    assert id[:-3] == f"short-chat-tidemill-smollm2-{when}-"
    result.target = Measured(url="http://10.0.0.1:8000/v1", model="m")
    other = store.put(result, recording)
    assert other.startswith("short-chat-10-0-0-1-8000-")
    assert store.get("short-chat-tide").id == id
    with pytest.raises(StoreError, match=r"'short' is the beginning of 2 results: short-chat-10"):
        store.get("short")
    for nothing in ("x", "../" + id, "*"):
        with pytest.raises(StoreError, match="there is no result"):
            store.get(nothing)
    assert store.remove(other[:15]) == other
    assert [found.id for found in store.results()] == [id]


def test_an_id_may_begin_another(store: Store) -> None:
    result, recording = runs.run()
    id = store.put(result, recording)
    (store.folder / f"{id}.parquet").rename(store.folder / "a.parquet")
    other = store.put(result, recording)
    (store.folder / f"{other}.parquet").rename(store.folder / "ab.parquet")
    assert store.get("a").id == "a"


def test_results_can_be_chosen(store: Store) -> None:
    def put(when: str, **fields: object) -> Result:
        result = runs.result(when=when, **fields)
        store.put(result, None)
        return result

    old = put("2026-01-01T00:00:00+00:00", name="mine")
    new = put("2026-03-01T00:00:00+00:00", series="curve")
    url = Measured(url="http://host/v1", model="m")
    middle = put("2026-02-01T00:00:00+00:00", target=url)
    assert store.results() == [new, middle, old]
    assert store.results(name="mine") == [old]
    assert store.results(series="curve") == [new]
    assert store.results(target="tidemill") == store.results(target="tidemill:smollm2")
    assert store.results(target="tidemill") == [new, old]
    assert store.results(target="http://host/v1", scenario="short-chat") == [middle]
    assert store.results(scenario="rag") == []


@pytest.mark.parametrize("name", ["a [1]*?", "it's", "ünï", "{a,b}"])
def test_folders_of_any_name(tmp_path: Path, name: str) -> None:
    """What DuckDB would take for a pattern, and SQL for the end of a string."""
    store = Store(tmp_path / name)
    result, recording = runs.run(3)
    assert store.get(store.put(result, recording)) == result
    assert store.recording(result.id) is not None


def test_no_folder_is_no_results(store: Store) -> None:
    assert store.results() == []
    assert not store.folder.exists()


def _parquet(path: Path, metadata: str) -> None:
    path.parent.mkdir(exist_ok=True)
    duckdb.sql(f"COPY (SELECT 1 AS x) TO '{path}' (FORMAT parquet, KV_METADATA {{{metadata}}})")


def test_damaged_and_foreign_files_are_named_and_passed_over(store: Store, said: list[str]) -> None:
    result, recording = runs.run()
    id = store.put(result, recording)
    whole = (store.folder / f"{id}.parquet").read_bytes()
    for name, content in {
        "empty": b"", "text": b"not a file of ours at all", "cut": whole[:-20],
        "begun": whole[: len(whole) // 2],
        "changed": whole.replace(b'"scenario"', b'"scenari\x00"'),
    }.items():  # fmt: skip
        (store.folder / f"{name}.parquet").write_bytes(content)
    (store.folder / "folder.parquet").mkdir()
    _parquet(store.folder / "foreign.parquet", "other: 'x'")
    _parquet(store.folder / "nonsense.parquet", "tidemill_result: '{\"format\": 1'")
    _parquet(store.folder / "newer.parquet", 'tidemill_result: \'{"format": 2, "when": 5}\'')
    deep = '{"format": 1, "x": ' + "[" * 100_000
    _parquet(store.folder / "deep.parquet", f"tidemill_result: '{deep}'")
    (store.folder / "note.txt").write_text("nothing to do with it")
    assert store.results() == [result]
    named = {message.partition(".parquet")[0].rpartition("/")[2] for message in said}
    assert named == {
        "empty", "text", "cut", "begun", "changed", "folder", "foreign", "nonsense", "newer",
        "deep",
    }  # fmt: skip
    assert all("\n" not in message and message.endswith("; passed over") for message in said)
    for name, why in (("newer", "newer tidemill"), ("foreign", "no result"), ("cut", "cannot")):
        with pytest.raises(StoreError, match=why):
            store.get(name)
    assert store.remove("cut") == "cut"


def test_records_that_are_not_ours_are_refused(store: Store) -> None:
    result, recording = runs.run(3)
    id = store.put(result, recording)
    path = store.folder / f"{id}.parquet"
    about = {
        key.decode(): value.decode().replace("'", "''")
        for key, value in duckdb.sql(f"SELECT key, value FROM parquet_kv_metadata('{path}')")
        .fetchall()
    }  # fmt: skip
    metadata = ", ".join(f"{key}: '{value}'" for key, value in about.items() if "tide" in key)
    path.unlink()
    _parquet(path, metadata)  # its only column is x
    assert store.get(id) == result
    with pytest.raises(StoreError, match="damaged"):
        store.recording(id)


def test_a_good_answer_without_times_is_none_of_ours(store: Store) -> None:
    id = store.put(*changed(times=[]))
    with pytest.raises(StoreError, match="times or tokens that no request has"):
        store.recording(id)


def changed(**fields: object) -> tuple[Result, Recording]:
    result, recording = runs.run(3)
    record = msgspec.structs.replace(recording.records[0], **fields)
    return result, msgspec.structs.replace(recording, records=[record])


def test_numbers_that_no_column_holds_are_told(store: Store) -> None:
    """An endpoint can say that it made more tokens than there are."""
    with pytest.raises(StoreError, match="18446744073709551615"):
        store.put(*changed(output_tokens=2**64 - 1))
    assert list(store.folder.iterdir()) == []


def test_fields_that_come_later_have_defaults(store: Store) -> None:
    """A file of an older version has fewer columns, and less in its JSON."""
    result, recording = runs.run(3)
    path = store.folder / f"{store.put(result, recording)}.parquet"
    ((about,),) = duckdb.sql(
        f"SELECT value FROM parquet_kv_metadata('{path}') WHERE key = 'tidemill_result'"
    ).fetchall()
    older = {
        key: value
        for key, value in msgspec.json.decode(about).items()
        if key not in ("id", "name", "series", "resources", "by_shape")
    }
    said = msgspec.json.encode(older).decode().replace("'", "''")
    window = '{"records": [], "window": {"opened": 0, "closed": 3}, "client_cpu": 0.1}'
    duckdb.sql(
        f"COPY (SELECT * EXCLUDE (verdict, text, turn) FROM '{path}') TO "
        f"'{store.folder}/old.parquet' (FORMAT parquet, KV_METADATA "
        f"{{tidemill_result: '{said}', tidemill_recording: '{window}'}})"
    )
    found = store.recording("old")
    assert found == relative(recording)
    assert store.get("old").summary == result.summary


def test_what_was_being_written_when_it_was_killed_is_no_result(store: Store) -> None:
    result, recording = runs.run()
    store.folder.mkdir()
    old, young = store.folder / ".a.part", store.folder / ".b.part"
    for part in (old, young):
        part.write_bytes(b"PAR1")
    os.utime(old, (0, 0))
    store.put(result, recording)
    assert [found.id for found in store.results()] == [result.id]
    assert not old.exists()
    assert young.exists()


def test_a_folder_that_cannot_be_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "bench").write_text("a file")
    result, recording = runs.run()
    with pytest.raises(StoreError, match="bench: "):
        Store(tmp_path / "bench").put(result, recording)
    assert result.id == ""


_FULL = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from support import runs
from tidemill.bench.store import Store, StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(Path({folder!r}))
result, recording = runs.run()
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    store.put(result, recording)
except StoreError as error:
    print(error)
assert result.id == "", result.id
"""


def test_a_full_disk_is_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """A limit on the size of files stands for it: the write fails in its midst."""
    tests = str(Path(__file__).parent.parent)
    code = _FULL.format(tests=tests, folder=str(tmp_path / "bench"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert str(tmp_path / "bench") in done.stdout
    assert list((tmp_path / "bench").iterdir()) == []


_TWO = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from support import runs
from tidemill.bench.store import Store
store = Store(Path({folder!r}))
for _ in range(15):
    result, recording = runs.run(20)
    print(store.put(result, recording))
"""


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    tests = str(Path(__file__).parent.parent)
    code = _TWO.format(tests=tests, folder=str(tmp_path / "bench"))
    writers = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ids = [id for writer in writers for id in writer.communicate()[0].split()]
    assert all(writer.returncode == 0 for writer in writers)
    said: list[str] = []
    store = Store(tmp_path / "bench", said.append)
    assert sorted(found.id for found in store.results()) == sorted(ids)
    assert len(set(ids)) == 30
    assert said == []
    assert not list(store.folder.glob(".*"))


def test_two_that_choose_the_same_id_get_two(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = iter("aaa" + "aaa" + "aab")
    monkeypatch.setattr("secrets.choice", lambda _: next(letters))
    result, recording = runs.run(3)
    assert store.put(result, recording).endswith("-aaa")
    assert store.put(result, recording).endswith("-aab")
    assert len(store.results()) == 2


def test_users_can_ask_duckdb_themselves(store: Store) -> None:
    """The line in docs/bench.md."""
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text("utf-8")
    _, _, rest = page.partition("```sql\n")
    query, _, _ = rest.partition("```")
    folder = "~/.cache/tidemill/bench"
    assert folder in query
    result, recording = runs.run()
    id = store.put(result, recording)
    rows = duckdb.sql(query.replace(folder, str(store.folder))).fetchall()
    assert len(rows) == 1
    assert id in rows[0][0]
    assert rows[0][1] == pytest.approx(0.2, rel=0.3)


def test_without_duckdb_it_says_how_to_install_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    result, recording = runs.run(3)
    with pytest.raises(MissingDuckDB, match=r"pip install 'tidemill\[bench\]'"):
        store.put(result, recording)
    assert not store.folder.exists()
    store.folder.mkdir()
    (store.folder / "a.parquet").touch()
    with pytest.raises(MissingDuckDB):
        store.results()


def test_keys_in_a_command_line_are_not_kept() -> None:
    command = ["serve", "--api-key", "s1", "--hf_token=s2", "--max-tokens", "5", "-key", "s3", "-c"]
    assert without_secrets(command) == [
        "serve", "--api-key", "***", "--hf_token=***", "--max-tokens", "5", "-key", "***", "-c",
    ]  # fmt: skip


def test_nothing_is_the_beginning_of_no_id(store: Store) -> None:
    """`bench rm "$ID"` with a variable that is not set."""
    result, recording = runs.run(3)
    store.put(result, recording)
    with pytest.raises(StoreError, match="there is no result ''"):
        store.remove("")
    assert len(store.results()) == 1


@pytest.mark.parametrize(
    "when",
    ["0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59-12:00", "2026-01-02T03:04:05", "soon"],
)
def test_times_that_nothing_was_measured_at(store: Store, said: list[str], when: str) -> None:
    good = msgspec.json.encode(runs.result())
    bad = good.replace(b"2026-01-02T03:04:05+00:00", when.encode())
    _parquet(store.folder / "a.parquet", f"tidemill_result: '{bad.decode()}'")
    assert store.results() == []
    assert "a.parquet is damaged" in said[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"times": [float("nan")]}, {"due": 1e300}, {"ended": float("inf")}, {"output_tokens": -1},
        {"times": []},
    ],
)  # fmt: skip
def test_records_that_no_request_has(store: Store, fields: dict[str, object]) -> None:
    result, _ = runs.run(3)
    id = store.put(result, Recording(runs.recording(1, **fields).records, Window(0, 1), 0.1))
    with pytest.raises(StoreError, match="times or tokens that no request has"):
        store.recording(id)


def test_a_small_file_with_too_much_in_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    result, recording = runs.run(30)
    id = store.put(result, recording)
    assert store.recording(id) is not None
    monkeypatch.setattr("tidemill.bench.store._MOST_VALUES", 100)
    with pytest.raises(StoreError, match="more than a run can have"):
        store.recording(id)
