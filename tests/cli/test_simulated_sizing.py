"""Sizes as the advisor's evidence: of which hardware it can say something, and what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.sizing import by_formula
from tidemill.advise.answers import from_values
from tidemill.advise.evidence import Size
from tidemill.advise.facts import load_engines
from tidemill.advise.flow import Part
from tidemill.cli import simulated_sizing
from tidemill.cli.simulated_sizing import HOURS_A_MONTH, SimulatedSizing

Tidemill = Callable[..., Any]  # see conftest.py

ENGINES = load_engines()
ON_GPUS = {
    "hardware.servers": ["nvidia"], "hardware.gpus": 8, "hardware.gpu_memory_gb": 80,
    "model.name": "meta-llama/Llama-3.1-8B-Instruct", "model.bits": 16,
    "model.format": "safetensors", "load.peak_concurrency": 500,
    "load.ttft_ms": 2000, "load.tpot_ms": 200,
}  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulations by formula, and no calibrations."""
    by_formula(monkeypatch)
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path))


def sized(
    engine: str = "vllm", prices: dict[str, float] | None = None, **changes: Any
) -> Size | None:
    """A change to None: not answered."""
    values = ON_GPUS | {name.replace("__", "."): value for name, value in changes.items()}
    answers = from_values({key: value for key, value in values.items() if value is not None})
    part = Part("serving", "servers", False, "")
    return SimulatedSizing(prices or {}).size(ENGINES[engine], part, answers)


def test_gpus_are_known_by_maker_and_memory() -> None:
    found = sized()
    assert found is not None
    assert found.replicas.value >= 2  # one is spare
    assert found.replicas.origin == "simulated"
    assert "x h100-pcie" in found.replicas.source  # the one with the slowest memory
    assert "may be a100-80gb or h100-sxm, too" in found.replicas.source
    assert "step times data sheet, band 50%" in found.replicas.source
    assert found.per_month is None


def test_a_price_says_which_gpu_it_is() -> None:
    found = sized(prices={"h100-sxm": 2.0})
    assert found is not None
    assert "x h100-sxm" in found.replicas.source
    assert found.per_month is not None
    assert found.per_month.value % (2.0 * HOURS_A_MONTH) == pytest.approx(0)
    assert found.per_month.origin == "simulated"


def test_more_load_takes_more() -> None:
    few, many = sized(), sized(load__peak_concurrency=50_000)
    assert few is not None
    assert many is not None
    assert many.replicas.value > few.replicas.value


@pytest.mark.parametrize(
    "changes",
    [
        {"hardware__gpu_memory_gb": None},  # which GPU?
        {"hardware__gpu_memory_gb": 33},  # of no data sheet
        {"hardware__servers": ["intel"]},
        {"hardware__servers": ["cpu-x86"], "hardware__gpus": 0, "hardware__gpu_memory_gb": None},
        {"model__bits": 5},
        {"model__name": "org/unheard-of"},
        {"load__ttft_ms": 1},  # nobody can
    ],
)
def test_it_does_not_say_what_it_does_not_know(changes: dict[str, Any]) -> None:
    assert sized(**changes) is None


def test_engines_that_do_not_batch_are_not_sized() -> None:
    others = [e.id for e in ENGINES.values() if e.value("batching") not in ("continuous", None)]
    assert others
    assert all(sized(id) is None for id in others)


def test_several_gpus_for_a_replica_only_where_the_engine_can() -> None:
    large: dict[str, Any] = {
        "model__name": "org/Llama-3.1-70B", "load__ttft_ms": None, "load__tpot_ms": 500,
        "prices": {"h100-sxm": 1.0},
    }  # fmt: skip
    assert sized("vllm", **large) is not None
    assert sized("vllm", hardware__gpus=1, **large) is None
    without = [
        e.id for e in ENGINES.values()
        if e.value("batching") == "continuous" and e.has("hardware", "nvidia")
        and not e.has("parallelism", "tensor")
    ]  # fmt: skip
    assert all(sized(id, **large) is None for id in without)


def test_the_same_case_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    real = simulated_sizing.size

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return real(*given, **named)

    monkeypatch.setattr(simulated_sizing, "size", counted)
    sizing = SimulatedSizing({})
    part = Part("serving", "servers", False, "")
    answers = from_values(ON_GPUS)
    found = [sizing.size(ENGINES[id], part, answers) for id in ("vllm", "sglang", "vllm")]
    assert found[0] == found[1] == found[2]
    assert len(calls) == 1


def test_the_advice_has_sizes_and_costs(tidemill: Tidemill, tmp_path: Path) -> None:
    case = tmp_path / "case.toml"
    sections: dict[str, list[str]] = {}
    for key, value in ON_GPUS.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    sections["team"] = ['operations = "dedicated"']
    text = "\n".join(f"[{name}]\n" + "\n".join(lines) for name, lines in sections.items())
    case.write_text(text)
    plain = json.loads(tidemill("advise", "--answers", str(case), "--json").stdout)
    numbers = plain["parts"][0]["numbers"]
    assert numbers["replicas"]["origin"] == "simulated"
    assert "cost per month" not in numbers
    assert not any("no sizing" in words for words in plain["absent"])

    price = ("--price", "h100-sxm=2/h")
    priced = json.loads(tidemill("advise", "--answers", str(case), "--json", *price).stdout)
    cost = priced["parts"][0]["numbers"]["cost per month"]
    assert cost["value"] >= 2 * 2 * HOURS_A_MONTH
    case.write_text(text + "\n[budget]\nper_month = 10\n")
    poor = json.loads(tidemill("advise", "--answers", str(case), "--json", *price).stdout)
    vllm = next(c for c in poor["parts"][0]["candidates"] if c["engine"] == "vllm")
    assert vllm["status"] == "rejected"
    assert [verdict["rule"] for verdict in vllm["why"]] == ["budget"]
