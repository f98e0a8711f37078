"""``inspect``, ``doctor`` and ``eval perplexity``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.tiny_chat_model import CONTEXT, IM_END, TEMPLATE, VOCAB, write_chat_model
from tidemill import LLM
from tidemill.cli import doctor

Tidemill = Callable[..., Any]  # see conftest.py


def test_inspect_describes_the_model(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    done = tidemill("inspect", str(tiny_chat_model), "--json", "--context", "256", "--batch", "3")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["title"] == "Tiny Chat"
    assert (report["format"], report["architecture"]) == ("gguf", "llama")
    assert report["context_length"] == CONTEXT
    assert report["vocab_size"] == VOCAB
    assert IM_END in report["eos_ids"]
    assert report["tokenizer"] == "byte-level BPE, pre-tokenizer gpt-2"
    assert report["chat_template"] == TEMPLATE
    groups = {group["name"]: group for group in report["groups"]}
    assert groups["attn_q"]["types"] == {"F32": 2}
    assert groups["attn_q"]["parameters"] == 2 * 64 * 64
    assert groups["token_embd"]["bits_per_weight"] == 32.0
    assert report["parameters"] == sum(group["parameters"] for group in report["groups"])
    assert report["weight_bytes"] == 4 * report["parameters"]
    memory = report["memory"]
    assert (memory["context"], memory["sequences"], memory["fits"]) == (256, 3, True)
    per_token = 2 * 2 * 32 * 2  # layers x K and V x KV width x f16
    assert memory["kv_bytes"] == pytest.approx(3 * 256 * per_token, rel=0.05)
    parts = memory["weights_bytes"] + memory["kv_bytes"] + memory["scratch_bytes"]
    assert memory["total_bytes"] == parts


def test_inspect_memory_is_what_loading_plans(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    done = tidemill("inspect", str(tiny_chat_model), "--json", "--context", "256")
    memory = json.loads(done.stdout)["memory"]
    with LLM(str(tiny_chat_model), max_context=256, max_sequences=1) as llm:
        plan = llm.core.compiled.cache.plan
    assert memory["weights_bytes"] == plan.weights
    assert memory["kv_bytes"] == plan.kv


def test_inspect_for_people(tidemill: Tidemill, tiny_chat_model: Path, tmp_path: Path) -> None:
    done = tidemill("inspect", str(tiny_chat_model))
    assert done.returncode == 0
    for words in ("Tiny Chat", "llama: 2 layers", "1,024 tokens", "attn_q", "2 x F32", "fits"):
        assert words in done.stdout, words
    assert tidemill("inspect", str(tiny_chat_model), "--template").stdout == TEMPLATE + "\n"
    plain = write_chat_model(tmp_path / "plain.gguf", template=None)
    assert "chat template  no" in tidemill("inspect", str(plain)).stdout
    assert tidemill("inspect", str(plain), "--template").returncode == 1


def test_inspect_refuses_a_context_that_the_model_has_not(
    tidemill: Tidemill, tiny_chat_model: Path
) -> None:
    done = tidemill("inspect", str(tiny_chat_model), "--context", "5000")
    assert done.returncode == 1
    assert f"trained for {CONTEXT}" in done.stderr


def test_doctor_reports_this_machine(tidemill: Tidemill, cli_env: dict[str, str]) -> None:
    done = tidemill("doctor", "--json", "--seconds", "0.05")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["cpu"]["kernels"] in report["cpu"]["kernels_possible"]
    assert report["cores"]["threads"] >= 1
    assert report["memory"]["available_bytes"] > 0
    assert report["bandwidth"]["bytes_per_second"] > 0
    assert report["bandwidth"]["source"].startswith("measured")
    assert report["store"]["home"] == cli_env["TIDEMILL_HOME"]
    assert report["store"]["free_bytes"] > 0
    assert [extra["name"] for extra in report["extras"]] == ["fsspec", "otel"]
    assert set(report["energy"]) == {"meters", "unreadable"}
    people = tidemill("doctor", "--seconds", "0.05").stdout
    for words in ("CPU", "kernels", "threads", "memory", "bandwidth", "model store", "none yet"):
        assert words in people, words


def test_doctor_warns_of_slow_kernels(cli_env: dict[str, str]) -> None:
    # In a process of its own: the kernels are chosen once.
    done = subprocess.run(
        [sys.executable, "-m", "tidemill", "doctor", "--seconds", "0.05"],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, **cli_env, "TIDEMILL_ISA": "portable"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "warning: the portable kernels are in use" in done.stdout
    assert "TIDEMILL_ISA" in done.stdout


def test_doctor_explains_kernels_that_cannot_run(cli_env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidemill", "doctor", "--seconds", "0.05"],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, **cli_env, "TIDEMILL_ISA": "bogus"},
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: TIDEMILL_ISA=bogus" in done.stdout
    assert done.stderr == ""


def test_doctor_warns_of_a_store_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("os.access", lambda *_: False)
    findings: list[dict[str, Any]] = doctor.examine(0.05)["findings"]
    assert any("cannot be written" in finding["what"] for finding in findings)


def test_doctor_warns_of_a_store_that_is_a_file(tidemill: Tidemill, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for home in ("file", "file/below"):
        path = tmp_path / home
        done = tidemill("doctor", "--seconds", "0.05", TIDEMILL_HOME=str(path))
        assert f"warning: the model store {path} cannot be a folder" in done.stdout


def test_doctor_without_kernels_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path))

    def broken(name: str) -> None:
        raise ImportError("wrong ELF class")

    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    report = doctor.examine(0.05)
    assert report["cpu"] is None
    (finding,) = (f for f in report["findings"] if f["severity"] == "error")
    assert "wrong ELF class" in finding["what"]
    assert "make native" in finding["do"]


def test_perplexity(tidemill: Tidemill, tiny_chat_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 20 + "\n")
    options = ["--context", "64", "--json"]
    done = tidemill("eval", "perplexity", str(tiny_chat_model), "--file", str(text), *options)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert 1.0 < report["perplexity"] < 1e6
    assert (report["context"], report["scored_tokens"]) == (64, 31 * report["chunks"])
    piped = tidemill(
        "eval", "perplexity", str(tiny_chat_model), "--file", "-", *options, stdin=text.read_text()
    )
    assert json.loads(piped.stdout)["perplexity"] == report["perplexity"]
    people = tidemill(
        "eval", "perplexity", str(tiny_chat_model), "--file", str(text), "--context", "64",
        "--backend", "reference", "--chunks", "2",
    ).stdout  # fmt: skip
    assert people.startswith("perplexity ")
    assert "2 chunks of 64" in people


def test_perplexity_of_too_short_a_text(
    tidemill: Tidemill, tiny_chat_model: Path, tmp_path: Path
) -> None:
    text = tmp_path / "short.txt"
    text.write_text("short")
    done = tidemill("eval", "perplexity", str(tiny_chat_model), "--file", str(text))
    assert done.returncode == 1
    assert "at least 1024" in done.stderr
