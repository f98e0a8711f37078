"""``tidemill bench report``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.recordings import measurement
from tidemill.bench.store import Store

Tidemill = Callable[..., Any]  # see conftest.py


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def kept(cli_env: dict[str, str]) -> list[str]:
    store = Store(Path(cli_env["TIDEMILL_HOME"]) / "bench")
    return [store.put(*measurement()), store.put(*measurement(engine="llama.cpp"))]


def test_a_page_of_what_was_kept(tidemill: Tidemill, kept: list[str], tmp_path: Path) -> None:
    done = tidemill("bench", "report")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("bench-report.html: written (")
    page = (tmp_path / "bench-report.html").read_text("utf-8")
    assert all(name in page for name in kept)


def test_both_forms_where_they_are_wanted(
    tidemill: Tidemill, kept: list[str], tmp_path: Path
) -> None:
    done = tidemill("bench", "report", kept[0], "--html", "a.html", "--markdown", "a.md")
    assert done.returncode == 0, done.stderr
    assert kept[1] not in (tmp_path / "a.html").read_text("utf-8")
    assert list((tmp_path / "a-pictures").glob("*.svg"))
    done = tidemill("bench", "report", "--markdown", "b.md")
    assert done.returncode == 0
    assert not (tmp_path / "bench-report.html").exists()


def test_without_results_it_says_how_to_get_some(tidemill: Tidemill, tmp_path: Path) -> None:
    assert tidemill("bench", "report").returncode == 0
    assert "tidemill bench run" in (tmp_path / "bench-report.html").read_text("utf-8")


def test_a_file_of_results(tidemill: Tidemill, tmp_path: Path) -> None:
    results = {"results": [measurement().result]}
    (tmp_path / "some.json").write_bytes(msgspec.json.encode(results))
    done = tidemill("bench", "report", "some.json")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "there is no result 'nothing'"),
        (["missing.json"], "missing.json: No such file"),
        (["--html", "no/such/folder.html"], "no/such/folder.html"),
    ],
)
def test_what_cannot_be_is_said(tidemill: Tidemill, arguments: list[str], said: str) -> None:
    done = tidemill("bench", "report", *arguments)
    assert done.returncode == 1
    assert said in done.stderr


def test_without_matplotlib(tidemill: Tidemill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = tidemill("bench", "report")
    assert done.returncode == 1
    assert "pip install 'tidemill[bench]'" in done.stderr


def test_it_is_shown(tidemill: Tidemill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: shown.append(url) or True)
    assert tidemill("bench", "report", "--open").returncode == 0
    assert shown == [(tmp_path / "bench-report.html").as_uri()]
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    done = tidemill("bench", "report", "--open")
    assert done.returncode == 1
    assert "open bench-report.html yourself" in done.stderr
