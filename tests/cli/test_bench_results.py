"""``tidemill bench results``, ``show ID``, ``compare`` and ``rm``, and what ``run`` keeps."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support import runs
from support.canned import canned
from support.mine import MINE
from tidemill.bench.result import Measured
from tidemill.bench.store import Store

Tidemill = Callable[..., Any]  # see conftest.py


@pytest.fixture
def store(cli_env: dict[str, str]) -> Store:
    return Store(Path(cli_env["TIDEMILL_HOME"]) / "bench")


def test_from_a_run_to_a_comparison(tidemill: Tidemill, url: str, mine: Path, store: Store) -> None:
    run = ("bench", "run", "--target", url, "--scenario", str(mine))
    first = tidemill(*run)
    assert first.returncode == 0, first.stderr
    (kept,) = store.results()
    assert first.stdout.endswith(f"  kept as {kept.id}\n")
    second = tidemill(*run, "--name", "again", "--json", "-", "--keep-text")
    (found,) = json.loads(second.stdout)["results"]
    again = store.get(found["id"])
    assert again.name == "again"
    texts = [
        {record.text for record in recording.records}
        for recording in (store.recording(kept.id), store.recording(again.id))
        if recording is not None
    ]
    assert texts[0] == {""}
    assert "" not in texts[1]

    listed = tidemill("bench", "results").stdout.splitlines()
    assert listed[0].split() == ["ID", "NAME", "MEASURED", "LOAD", "FIGURES"]
    assert {line.split()[0] for line in listed[1:]} == {kept.id, again.id}
    assert "2 at a time" in listed[1]
    assert "TTFT p50" in listed[1]
    as_json = json.loads(tidemill("bench", "results", "--name", "again", "--json").stdout)
    assert [result["id"] for result in as_json["results"]] == [again.id]
    assert "nothing" in tidemill("bench", "results", "--scenario", "rag").stdout

    assert tidemill("bench", "show", kept.id).stdout == first.stdout
    table = tidemill("bench", "show", kept.id, "--definitions").stdout
    assert "GuideLLM" in table.splitlines()[0]
    assert "goodput" in table

    compared = tidemill("bench", "compare", kept.id, "again")
    assert compared.returncode == 0, compared.stderr
    assert "mine: B against A" in compared.stdout
    assert "E2E p50" in compared.stdout
    found = json.loads(tidemill("bench", "compare", kept.id, "again", "--json").stdout)
    (comparison,) = found["comparisons"]
    assert comparison["b"]["results"] == [again.id]
    assert {"name", "a", "b", "change", "verdict", "effect"} <= set(comparison["figures"][0])
    assert "| TTFT p50" in tidemill("bench", "compare", kept.id, "again", "--markdown").stdout

    removed = tidemill("bench", "rm", kept.id, again.id)
    assert removed.stdout.splitlines() == [f"{kept.id}: removed", f"{again.id}: removed"]
    assert store.results() == []


def test_nothing_is_kept_if_it_is_not_wanted(
    tidemill: Tidemill, url: str, mine: Path, store: Store
) -> None:
    done = tidemill("bench", "run", "--target", url, "--scenario", str(mine), "--no-keep")
    assert done.returncode == 0, done.stderr
    assert "kept" not in done.stdout + done.stderr
    assert not store.folder.exists()


def test_without_duckdb_a_run_still_tells(
    tidemill: Tidemill, url: str, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    other = tmp_path / "other.toml"
    other.write_text(MINE.replace("mine", "other"))
    file = tmp_path / "out.json"
    done = tidemill(
        "bench", "run", "--target", url, "--scenario", str(mine), "--scenario", str(other),
        "--json", str(file),
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.count("TTFT") == 2
    assert done.stderr.count("pip install 'tidemill[bench]'") == 1
    assert len(json.loads(file.read_text())["results"]) == 2
    compared = tidemill("bench", "compare", str(file), str(file), "--scenario", "other")
    assert compared.returncode == 0, compared.stderr
    done = tidemill("bench", "show", "rag")
    assert done.returncode == 0


def test_what_cannot_be_kept_is_told_and_not_lost(
    tidemill: Tidemill, url: str, mine: Path, store: Store
) -> None:
    store.folder.parent.mkdir()
    store.folder.write_text("a file in its place")
    done = tidemill("bench", "run", "--target", url, "--scenario", str(mine))
    assert done.returncode == 0
    assert "TTFT" in done.stdout
    assert "kept as" not in done.stdout
    assert f"not kept: {store.folder}: " in done.stderr


def test_keys_that_an_endpoint_repeats_are_not_kept(
    tidemill: Tidemill, mine: Path, store: Store
) -> None:
    event = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
    good = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b"
    refusal = b'{"error": {"message": "the key sk-my-secret is used up"}}'
    bad = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: %d\r\n\r\n%b"

    def answer(connection: Any, number: int) -> bool:
        few = number < 4
        body = event if few else refusal
        connection.sendall((good if few else bad) % (len(body), body))
        return True

    with canned(answer) as server:
        done = tidemill(
            "bench", "run", "--target", server.url, "--scenario", str(mine), "--model", "m",
            "--api-key", "sk-my-secret",
        )  # fmt: skip
    assert done.returncode == 1, done.stderr  # no request was answered
    assert "the key *** is used up" in done.stdout
    (kept,) = store.results()
    for file in store.folder.iterdir():
        assert b"sk-my-secret" not in file.read_bytes()
    recording = store.recording(kept.id)
    assert recording is not None
    assert "sk-my-secret" not in str(recording)


def test_names_that_are_wrong(tidemill: Tidemill, store: Store) -> None:
    result, recording = runs.run(30)
    id = store.put(result, recording)
    store.put(msgspec.structs.replace(result, id="", scenario=runs.result("rag").scenario), None)
    store.put(runs.result("cold-start", when="2020-01-01T00:00:00+00:00"), None)
    (store.folder / "bad.parquet").write_bytes(b"PAR1")
    for arguments, code, said in (
        (("compare", id, "x"), 1, "there is no result 'x'"),
        (("compare", id, "rag"), 1, "not asked the same: the scenarios are short-chat and rag"),
        (("compare", id, id, "--scenario", "rag"), 1, "no result of scenario rag"),
        (("compare", id, id, "--json", "--markdown"), 2, "not both"),
        (("compare", id, "x.json"), 1, "x.json: No such file"),
        (("show", "bad"), 1, "bad.parquet cannot be read"),
        (("show", "x"), 1, "there is no scenario 'x', and no result"),
        (("show", "cold", "--definitions"), 1, "has no requests"),
        (("rm",), 2, "ID"),
        (("rm", id, "x"), 1, "there is no result 'x'"),
    ):
        done = tidemill("bench", *arguments)
        assert done.returncode == code, (arguments, done.stdout)
        assert said in done.stderr, (arguments, done.stderr)
        assert "internal error" not in done.stderr
    listed = tidemill("bench", "results")
    assert "bad.parquet cannot be read" in listed.stderr
    assert id in listed.stdout
    assert tidemill("bench", "compare", id, "rag", "--force").returncode == 0
    assert tidemill("bench", "rm", "bad").stdout == "bad: removed\n"


def test_the_same_id_twice_is_one(tidemill: Tidemill, store: Store) -> None:
    id = store.put(*runs.run(3))
    done = tidemill("bench", "rm", id, id[:-1])
    assert (done.returncode, done.stdout) == (0, f"{id}: removed\n")
    assert store.results() == []
    assert "there is no result ''" in tidemill("bench", "rm", "").stderr


def test_results_of_an_address_as_it_was_given(tidemill: Tidemill, store: Store) -> None:
    result, recording = runs.run(3)
    result.target = Measured(url="http://127.0.0.1:9/v1", model="m")
    id = store.put(result, recording)
    for target in ("http://127.0.0.1:9", "http://127.0.0.1:9/v1/", "HTTP://127.0.0.1:9/v1"):
        assert id in tidemill("bench", "results", "--target", target).stdout
    assert "nothing" in tidemill("bench", "results", "--target", "http://127.0.0.1:8").stdout
    assert "is no URL" in tidemill("bench", "results", "--target", "http://:x").stderr


def test_what_a_terminal_must_not_be_shown(tidemill: Tidemill, store: Store) -> None:
    """Results may come from others."""
    result, recording = runs.run(3)
    result.target = Measured(url="http://127.0.0.1:9/v1", model="m\x1b[2J\x9b31m\u202e")
    result.name, result.notes = "a\x1b[31m", ["b\x1b]0;owned\x07"]
    id = store.put(result, recording)
    for command in (["results"], ["show", id], ["compare", id, id]):
        done = tidemill("bench", *command)
        assert done.returncode == 0, done.stderr
        assert set("\x1b\x07\x9b\u202e").isdisjoint(done.stdout)
