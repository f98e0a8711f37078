"""``tidemill simulate``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import calibrations
from tidemill.simulate.calibration import save
from tidemill.simulate.proof import Proof, keep_proof

Tidemill = Callable[..., Any]  # see conftest.py


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    return save(calibrations.calibration("no-such-model"), tmp_path / "calibration.json")


def run(tidemill: Tidemill, *arguments: object) -> Any:
    return tidemill("simulate", *map(str, arguments))


def test_a_scenario_with_a_calibration(tidemill: Tidemill, calibration: Path) -> None:
    done = run(tidemill, "--calibration", calibration, "--seconds", 30, "--rate", 2)
    assert done.returncode == 0, done.stderr
    assert "short-chat · no-such-model on Some CPU, 2 threads, 8 places" in done.stdout
    assert "over measured step times: calibration of no-such-model" in done.stdout
    assert "2026-11-30" in done.stdout
    assert "not compared with measured runs" in done.stdout
    assert "TTFT" in done.stdout
    assert "no-such-model is not at hand" in done.stderr


def test_a_proof_is_told_of(tidemill: Tidemill, calibration: Path) -> None:
    keep_proof(Proof(made="2026-12-01", scenarios=["rag"], errors={"ttft.p50": 0.07}), calibration)
    done = run(tidemill, "--calibration", calibration, "--seconds", 20)
    assert "compared with measured runs of rag on 2026-12-01: TTFT p50 ± 7 %" in done.stdout


def test_data_sheets(tidemill: Tidemill) -> None:
    done = run(
        tidemill, "--hardware", "h100-sxm", "--model", "llama-3.1-8b", "--bits", 8, "--seconds", 20,
        "--rate", 5, "--replicas", 2, "--policy", "prefix", "--scenario", "rag",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rag · 2 x h100-sxm, llama-3.1-8b" in done.stdout
    assert "over step times computed from: data sheets" in done.stdout
    assert "before its first step a request takes 3.4 ms, and 2.2 us for each token" in done.stdout


def test_a_front_end_that_is_known_better(tidemill: Tidemill, calibration: Path) -> None:
    asked = ("--calibration", calibration, "--seconds", 20, "--no-bands", "--json")
    before, given = (
        json.loads(run(tidemill, *asked, *more).stdout)["prediction"]
        for more in ((), ("--front-end", 250))
    )
    first = [found["figures"]["ttft.p50"]["value"] for found in (before, given)]
    assert first[1] - first[0] >= 0.24
    assert before["front"] == "0 ms (left out)"
    assert given["front"] == "250 ms (as given)"


def test_everything_at_once_as_json(tidemill: Tidemill, calibration: Path) -> None:
    done = run(
        tidemill, "--calibration", calibration, "--json", "--requests", 200, "--rate", 4,
        "--autoscale", "1:3", "--failures", "mtbf=20,mttr=1,start=1,retries=2", "--no-bands",
        "--load-profile", "0=1,10=3/20", "--slo", "ttft=1", "--policy", "two-choices",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["scenario"]["load"]["rate"] == 4
    prediction = found["prediction"]
    assert prediction["origin"] == "measured"
    summary = prediction["summary"]
    assert summary["good"] + sum(summary["errors"].values()) == summary["requests"]
    assert prediction["failures"] > 0
    assert prediction["most_replicas"] <= 3


def test_a_closed_loop_for_so_many_requests(tidemill: Tidemill, calibration: Path) -> None:
    done = run(
        tidemill, "--calibration", calibration, "--json", "--requests", 60, "--concurrency", 3,
        "--no-bands",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["prediction"]["summary"]["requests"] >= 60


def test_nothing_measured_yet(tidemill: Tidemill) -> None:
    done = run(tidemill)
    assert done.returncode == 2
    assert "nothing has been measured here: `tidemill calibrate` does that" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scenario", "nothing"], "there is no scenario 'nothing'"),
        (["--scenario", "cold-start"], "cold-start measures starts"),
        (["--rate", "1", "--concurrency", "2"], "--rate or --concurrency, not both"),
        (["--seconds", "1", "--requests", "2"], "--seconds or --requests, not both"),
        (["--rate", "0"], "0 is not in the range"),
        (["--rate", "nan"], "nan"),
        (["--replicas", "0"], "0 is not in the range"),
        (["--replicas", "5", "--autoscale", "1:2"], "5 replicas to begin with are not between"),
        (["--autoscale", "3:2"], "'3:2' is not like 2:10"),
        (["--autoscale", "x"], "'x' is not like 2:10"),
        (["--failures", "often"], "'often' is not like mtbf=86400"),
        (["--failures", "mttr=5"], "mtbf, the mean seconds"),
        (["--failures", "mtbf=0"], "between failures must be 1 s at least"),
        (["--failures", "mtbf=nan"], "between failures must be 1 s at least"),
        (["--failures", "mtbf=1e-9,mttr=0,start=0"], "between failures must be 1 s at least"),
        (["--load-profile", "0=1,nan=2"], "each point comes after the one before"),
        (["--load-profile", "0=1/1e-300"], "the period of a profile is longer than"),
        (["--load-profile", "0=1e300"], "more than can be simulated"),
        (["--rate", "1e6", "--seconds", "1e6"], "more than can be simulated"),
        (["--seed", str(10**30)], "is not in the range"),
        (["--load-profile", "1"], "'1' is not like 0=1"),
        (["--load-profile", "0=1,5=inf"], "factors of a profile are from 0 on"),
        (["--load-profile", "0=1", "--concurrency", "2"], "only a rate can follow a profile"),
        (["--policy", "best"], "'best' is not one of"),
        (["--slo", "ttft"], "'ttft' is not like ttft=0.5"),
        (["--model", "llama-3.1-8b"], "--model is for --hardware"),
        (["--hardware", "h100-sxm"], "--hardware needs a --model"),
        (["--rate", "0.001", "--requests", "100000"], "a million are the most"),
    ],
)
def test_what_cannot_be(
    tidemill: Tidemill, calibration: Path, arguments: list[str], message: str
) -> None:
    given = [] if "--hardware" in arguments else ["--calibration", calibration]
    done = run(tidemill, *given, *arguments)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_calibration_that_is_none(tidemill: Tidemill, tmp_path: Path) -> None:
    file = tmp_path / "odd.json"
    file.write_text("{}")
    done = run(tidemill, "--calibration", file)
    assert done.returncode == 1
    assert "odd.json" in done.stderr


def test_what_does_not_fit(tidemill: Tidemill) -> None:
    done = run(tidemill, "--hardware", "rtx-4090", "--model", "llama-3.1-70b")
    assert done.returncode == 1
    assert "does not fit" in done.stderr


ROWS = "timestamp,input_tokens,output_tokens\n" + "".join(f"{i},900,20\n" for i in range(30))


@pytest.mark.parametrize("given", [["--hardware", "h100-sxm", "--model", "llama-3.1-8b"], []])
def test_a_trace_has_the_context_and_the_shapes_of_its_requests(
    tidemill: Tidemill, calibration: Path, tmp_path: Path, given: list[str]
) -> None:
    (tmp_path / "t.csv").write_text(ROWS)
    shapes = "".join(
        f'[[shapes]]\nname = "{name}"\ninput = {{ kind = "fixed", tokens = 5 }}\n' for name in "ab"
    )
    for text in (shapes, ""):
        file = tmp_path / "mine.toml"
        file.write_text(
            'name = "mine"\nsummary = "s"\n[load]\nkind = "trace"\nfile = "t.csv"\n' + text
        )
        given = given or ["--calibration", str(calibration)]
        done = run(tidemill, "--scenario", file, *given, "--no-bands", "--json")
        assert done.returncode == 0, done.stderr
        prediction = json.loads(done.stdout)["prediction"]
        assert prediction["summary"]["errors"] == {}
        assert prediction["summary"]["mean_prompt_tokens"] > 890
        assert prediction["by_shape"] == {}


def test_a_load_that_does_not_come_is_said(tidemill: Tidemill) -> None:
    done = run(
        tidemill, "--hardware", "h100-sxm", "--model", "llama-3.1-8b", "--rate", 1e-6,
        "--replicas", 2,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "INVALID: no request was due in the window" in done.stdout
