"""Kept KV blocks from the command line: listed, removed alone, removed with their model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemill import LLM, SamplingParams


@pytest.mark.parametrize("which", ["all", "one"])
def test_kept_listed_and_removed(
    tidemill: Callable[..., Any], tiny_chat_model: Path, which: str, cli_env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = str(tiny_chat_model)
    monkeypatch.setenv("TIDEMILL_HOME", cli_env["TIDEMILL_HOME"])
    with LLM(path, threads=1, kv_disk="1MiB") as llm:
        llm.generate("x" * 100, SamplingParams(max_tokens=1))
    listed = json.loads(tidemill("list", "--json").stdout)["kv"]
    assert [file["sources"] for file in listed["files"]] == [[path]]
    assert listed["bytes"] == listed["files"][0]["bytes"] > 1000
    assert tidemill("rm", "--kv").returncode != 0  # there is no terminal to ask on
    assert "0 B freed" in tidemill("rm", "--packed", "--yes", path).stdout
    removed = tidemill("rm", "--kv", "--yes", *([path] if which == "one" else []))
    assert "KV blocks removed" in removed.stdout
    assert json.loads(tidemill("list", "--json").stdout)["kv"] == {"bytes": 0, "files": []}
    assert tiny_chat_model.is_file()


def test_both_kinds_at_once(tidemill: Callable[..., Any]) -> None:
    done = tidemill("rm", "--kv", "--packed", "--yes")
    assert done.stdout == "all models: packed weights and KV blocks removed, 0 B freed\n"


def test_a_size_that_is_none(tidemill: Callable[..., Any], tiny_chat_model: Path) -> None:
    done = tidemill("serve", str(tiny_chat_model), "--kv-disk", "much")
    assert done.returncode != 0
    assert "kv_disk='much' is no size" in done.stderr
    shown = tidemill("serve", str(tiny_chat_model), "--kv-disk", "4GiB", "--print-config").stdout
    assert 'kv_disk = "4GiB"' in shown
