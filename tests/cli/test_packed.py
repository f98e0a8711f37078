"""Packed weights from the command line: kept by a run, listed, checked, removed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemill.backends.cpu import packed
from tidemill.store.packed import list_packed
from tidemill.weights import identity


@pytest.fixture(autouse=True)
def tiny_models_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "LEAST_BYTES", 1)
    monkeypatch.setattr(identity, "_SETTLED_NS", 0)  # the model was written just now


@pytest.fixture
def answer(tidemill: Callable[..., Any], tiny_chat_model: Path) -> Callable[..., str]:
    def run(**env: str) -> str:
        done = tidemill(
            "run", str(tiny_chat_model), "hi", "-n", "8", "--temperature", "0", "-q", **env
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return str(done.stdout)

    return run


def test_kept_listed_and_removed(
    tidemill: Callable[..., Any], tiny_chat_model: Path, answer: Callable[..., str]
) -> None:
    path = str(tiny_chat_model)
    assert "mapped" not in tidemill("inspect", path).stdout
    first = answer()
    listed = json.loads(tidemill("list", "--json").stdout)["packed"]
    assert [file["sources"] for file in listed["files"]] == [[path]]
    assert listed["bytes"] == sum(file["bytes"] for file in listed["files"]) > 0
    assert path in tidemill("list").stdout
    assert "(mapped from the store" in tidemill("inspect", path).stdout
    memory = json.loads(tidemill("inspect", path, "--json").stdout)["memory"]
    assert memory["mapped_bytes"] == memory["weights_bytes"]
    assert answer() == first
    removed = tidemill("rm", "--packed", "--yes", path)
    assert "packed weights removed" in removed.stdout
    assert tiny_chat_model.is_file()
    assert not json.loads(tidemill("list", "--json").stdout)["packed"]["files"]
    assert answer() == first
    assert "freed" in tidemill("rm", "--packed", "--yes").stdout
    assert not json.loads(tidemill("list", "--json").stdout)["packed"]["files"]


def test_turned_off(
    tidemill: Callable[..., Any], answer: Callable[..., str], cli_env: dict[str, str]
) -> None:
    answer(TIDEMILL_PACKED_LIMIT="off")
    assert not (Path(cli_env["TIDEMILL_HOME"]) / "packed").exists()
    assert (
        "(0.0 GB, off)" in tidemill("doctor", "--seconds", "0.05", TIDEMILL_PACKED_LIMIT="0").stdout
    )


def test_a_malformed_limit_is_told(tidemill: Callable[..., Any], tiny_chat_model: Path) -> None:
    done = tidemill("run", str(tiny_chat_model), "hi", "-n", "1", TIDEMILL_PACKED_LIMIT="lots")
    assert done.returncode == 1
    assert "TIDEMILL_PACKED_LIMIT='lots' is no size" in done.stderr
    done = tidemill("doctor", "--seconds", "0.05", TIDEMILL_PACKED_LIMIT="lots")
    assert done.returncode == 1
    assert "TIDEMILL_PACKED_LIMIT='lots' is no size" in done.stdout


def test_doctor_finds_damage_that_left_no_trace(
    tidemill: Callable[..., Any],
    answer: Callable[..., str],
    cli_env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as a bad disk's: the file's times are as they were."""
    first = answer()
    monkeypatch.setenv("TIDEMILL_HOME", cli_env["TIDEMILL_HOME"])
    (file,) = list_packed()
    assert "1 (0.0 GB, at most" in tidemill("doctor", "--seconds", "0.05", "--check-packed").stdout
    status = file.path.stat()
    data = bytearray(file.path.read_bytes())
    data[file.header.image_offset + 5] ^= 4
    file.path.write_bytes(data)
    os.utime(file.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    report = json.loads(tidemill("doctor", "--seconds", "0.05", "--check-packed", "--json").stdout)
    assert [found["path"] for found in report["packed"]["damaged"]] == [str(file.path)]
    assert any("were damaged" in finding["what"] for finding in report["findings"])
    assert not list_packed()
    assert answer() == first


def test_rm_needs_to_be_told_what(tidemill: Callable[..., Any]) -> None:
    done = tidemill("rm", "--yes")
    assert done.returncode == 2
    assert "--packed" in done.stderr
