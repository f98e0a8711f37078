"""``tidemill size``: from the command line to a deployment, and with what cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.sizing import by_formula

Tidemill = Callable[..., Any]  # see conftest.py


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is simulated is known by formula; real simulations are in tests/simulate."""
    by_formula(monkeypatch)


CASE = ("size", "--workload", "short-chat", "--model", "llama-3.1-8b")
FAST = ("--hardware", "h100-sxm,raspberry-pi-5", "--bits", "8")


def test_a_deployment_is_found(tidemill: Tidemill) -> None:
    done = tidemill(*CASE, *FAST, "--peak-concurrency", "400", "--slo", "ttft=1,tpot=0.1", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    winner = data["winner"]
    assert winner["hardware"] == "h100-sxm"
    assert winner["weights"] == "fp8"
    assert winner["watts"] == 700 * winner["devices"]
    assert winner["replicas"] >= 2  # one is spare
    assert winner["command"].startswith("vllm serve MODEL ")
    slow = data["at_peak"]["slow"]["latency"]
    assert slow["ttft"]["p99"] <= 1
    assert slow["tpot"]["p99"] <= 0.1
    lost = {option["hardware"]: option["outcome"] for option in data["options"][1:]}
    assert lost["raspberry-pi-5"] in ("ttft", "tpot", "memory")


def test_a_report_and_the_scenarios_own_load(tidemill: Tidemill) -> None:
    done = tidemill(*CASE, *FAST, "--price", "h100-sxm=2.5/h", "--price", "raspberry-pi-5=0.01")
    assert done.returncode == 0, done.stderr
    assert "0.5 requests a second at the peak" in done.stdout
    assert "5 per hour" in done.stdout
    assert "Why not the others" in done.stdout
    markdown = tidemill(*CASE, *FAST, "--markdown")
    assert markdown.stdout.startswith("# What it takes: llama-3.1-8b, short-chat")


def test_a_front_end_that_is_known_better(tidemill: Tidemill) -> None:
    asked = (*CASE, *FAST, "--peak-concurrency", "400", "--slo", "ttft=1,tpot=0.1", "--json")
    assumed, given = (
        json.loads(tidemill(*asked, *more).stdout)["options"][0]["front_end"]
        for more in ((), ("--front-end", "7"))
    )
    assert (assumed["request"], assumed["prompt_token"]) == (0.0034, 2.2e-6)
    assert "vLLM" in assumed["source"]
    assert given == {"request": 0.007, "prompt_token": 0.0, "source": "as given"}


def test_an_slo_that_nobody_meets(tidemill: Tidemill) -> None:
    done = tidemill(*CASE, *FAST, "--slo", "ttft=0.000001")
    assert done.returncode == 1
    assert "Nothing that was tried meets this" in done.stdout
    assert "alone, takes" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "0"], "0"),
        (["--rate", "nan"], "nan is not a finite number"),
        (["--rate", "1e300"], "1e+300 is not in the range"),
        (["--rate", "1", "--peak-concurrency", "5"], "one of them"),
        (["--peak", "2"], "--peak is for --requests-per-day"),
        (["--slo", "ttft=-1"], "ttft must be more than 0 seconds"),
        (["--slo", "fast"], "is not like ttft=0.5,tpot=0.05"),
        (["--bits", "5"], "'5' is not one of '4', '8', '16'"),
        (["--bits", "4,"], "'' is not one of '4', '8', '16'"),
        (["--price", "h100-sxm"], "is not like h100-sxm=2.5/h"),
        (["--price", "h100-sxm=free"], "is not like h100-sxm=2.5/h"),
        (["--price", "h100-sxm=-1"], "is not like h100-sxm=2.5/h"),
        (["--price", "h100-smx=1"], "'h100-smx' is not among the hardware; did you mean h100-sxm?"),
        (["--hardware", ","], "--hardware: no name in it"),
        (["--json", "--markdown"], "--json or --markdown, not both"),
    ],
)
def test_wrong_usage(tidemill: Tidemill, arguments: list[str], message: str) -> None:
    done = tidemill(*CASE, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hardware", "h1000"], "no hardware is called 'h1000'"),
        (["--hardware", "none.toml"], "none.toml: No such file"),
        (["--hardware", "local"], "nothing was measured here with llama-3.1-8b"),
    ],
)
def test_hardware_that_is_not_known(tidemill: Tidemill, arguments: list[str], message: str) -> None:
    done = tidemill(*CASE, *arguments)
    assert done.returncode == 1
    assert message in done.stderr


def test_models_and_workloads_that_are_not_known(tidemill: Tidemill, tmp_path: Path) -> None:
    none = tidemill("size", "--workload", "short-chat", "--model", "llama-9", TIDEMILL_OFFLINE="1")
    assert none.returncode == 1
    assert "Shapes known without weights" in none.stderr
    wrong = tidemill("size", "--workload", "chats", "--model", "llama-3.1-8b")
    assert wrong.returncode == 1
    assert "there is no scenario 'chats'" in wrong.stderr
    starts = tidemill("size", "--workload", "cold-start", "--model", "llama-3.1-8b", "--rate", "1")
    assert starts.returncode == 1
    assert "measures starts: there is no load to size for" in starts.stderr


def test_days_and_peaks(tidemill: Tidemill) -> None:
    for arguments, words in (
        (["--requests-per-day", "86400"], "3 times the mean at the peak: 3 a second"),
        (["--requests-per-day", "86400", "--peak", "10"], "10 times the mean at the peak: 10"),
    ):
        done = tidemill(*CASE, *FAST, *arguments)
        assert done.returncode == 0
        assert words in " ".join(done.stdout.split())
