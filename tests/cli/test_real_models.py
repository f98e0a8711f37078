"""The commands on the two real models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Tidemill = Callable[..., Any]  # see conftest.py
RealModel = Callable[[str], Path]


def test_smollm2_answers_a_question(tidemill: Tidemill, real_model: RealModel) -> None:
    model = str(real_model("smollm2"))
    question = "Why is the sky blue?"
    done = tidemill("run", model, question, "--temperature", "0", "--json")
    answer = json.loads(done.stdout)
    assert "scatter" in answer["text"]
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", None)
    assert "<|im_end|>" not in answer["text"]


def test_gemma3_continues_a_text(tidemill: Tidemill, real_model: RealModel) -> None:
    model = str(real_model("gemma3"))
    options = ["--temperature", "0", "-n", "8", "--json"]
    answer = json.loads(tidemill("run", model, "The capital of France is", *options).stdout)
    assert answer["text"].startswith(" ")
    assert answer["usage"] == {
        "prompt_tokens": 6, "completion_tokens": 8, "total_tokens": 14, "cached_tokens": 0,
    }  # fmt: skip


def test_a_second_turn_finds_the_first_in_the_cache(
    tidemill: Tidemill, real_model: RealModel, tmp_path: Path
) -> None:
    path = tmp_path / "talk.json"
    stdin = f"My name is Ada.\nWhat is my name?\n/save {path}\n"
    done = tidemill(
        "chat", str(real_model("smollm2")), "--temperature", "0", "-n", "24", stdin=stdin
    )
    assert done.returncode == 0
    said = [message["content"] for message in json.loads(path.read_text())["messages"]]
    assert said[0::2] == ["My name is Ada.", "What is my name?"]
    assert all(said)
    first, second = (line for line in done.stderr.splitlines() if "generated" in line)
    assert "cached" not in first
    assert "cached" in second


@pytest.mark.parametrize(
    ("name", "architecture", "tokens", "title"),
    [("smollm2", "llama", 49152, "Smollm2"), ("gemma3", "gemma3", 262144, "Gemma 3")],
)
def test_inspect(
    tidemill: Tidemill, real_model: RealModel, name: str, architecture: str, tokens: int, title: str
) -> None:
    done = tidemill("inspect", str(real_model(name)), "--json", "--context", "2048", "--batch", "4")
    report = json.loads(done.stdout)
    assert report["architecture"] == architecture
    assert report["vocab_size"] == tokens
    assert title in report["title"]
    assert report["file_bytes"] == real_model(name).stat().st_size
    assert report["memory"]["fits"] is True
    assert report["memory"]["kv_bytes"] > 0
