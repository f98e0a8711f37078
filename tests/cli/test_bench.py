"""``tidemill bench kernel`` and ``run --profile``: each operation against the machine's limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemill.models import load_model
from tidemill.weights import open_checkpoint

Tidemill = Callable[..., Any]  # see conftest.py
STEPS = ("--prompt", "24", "--streams", "1,3", "--context", "5", "--rounds", "2")


def matrix_products(model: Path) -> int:
    """Multiply-adds of one token in all matrices but the output's."""
    sources = load_model(open_checkpoint(model)).weights.sources
    return sum(
        source.shape[0] * source.shape[1]
        for name, source in sources.items()
        if len(source.shape) == 2 and name.startswith("blk.")
    )


def test_kernel_counts_every_product(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    done = tidemill("bench", "kernel", str(tiny_chat_model), *STEPS, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    limits = report["limits"]
    assert limits["threads"] == 1
    assert limits["bytes_per_second"] > 0
    assert limits["products_per_second"]["F32"] > 0
    assert [step["tokens"] for step in report["steps"]] == [2 * 24, 2 * 1, 2 * 3]
    for step in report["steps"]:
        assert step["steps"] == 2
        assert step["seconds"] == pytest.approx(sum(op["seconds"] for op in step["ops"]))
        assert sum(op["share"] for op in step["ops"]) == pytest.approx(1)
        in_layers = sum(
            op["products"]
            for op in step["ops"]
            if op["name"] not in ("attention", "output", "token_embd")
        )
        assert in_layers == step["tokens"] * matrix_products(tiny_chat_model)
        attention = next(op for op in step["ops"] if op["name"] == "attention")
        assert attention["bytes"] > 0
        assert attention["bound_by"] in ("memory", "arithmetic")


def test_kernel_as_a_table(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    done = tidemill("bench", "kernel", str(tiny_chat_model), *STEPS)
    assert done.returncode == 0, done.stderr
    assert "limits of this machine, 1 thread(s): memory" in done.stdout
    assert "prompt of 24 tokens: " in done.stdout
    assert "decode, 3 stream(s), context 5: " in done.stdout
    assert "attention" in done.stdout


def test_bench_alone_shows_help(tidemill: Tidemill) -> None:
    done = tidemill("bench")
    assert done.returncode == 0
    assert "kernel" in done.stdout


def test_run_profile(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    arguments = ("run", str(tiny_chat_model), "Hello", "--profile", "-n", "4", "--ignore-eos",
                 "--speculative", "off")  # fmt: skip
    done = tidemill(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    profile = answer["profile"]
    assert profile["steps"] == 4
    assert profile["tokens"] == answer["usage"]["prompt_tokens"] + 3
    shown = tidemill(*arguments)
    assert "4 steps, " in shown.stderr
    assert "of limit" in shown.stderr


def test_profile_is_of_the_cpu_backend(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    done = tidemill("run", str(tiny_chat_model), "Hi", "--profile", "--backend", "reference")
    assert done.returncode == 2
    assert "--profile" in done.stderr
