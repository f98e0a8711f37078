"""Advice on whole cases, with the knowledge base as it is."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from support.advice import TODAY, Prices, Store, engine, measured
from tidemill.advise.advice import Advice, Candidate, advise
from tidemill.advise.answers import from_values
from tidemill.advise.evidence import Evidence
from tidemill.advise.facts import load_engines
from tidemill.advise.scores import DIMENSIONS, WEIGHTS, parse_weights

ENGINES = load_engines()
GPU = {
    "hardware.servers": ["nvidia"], "hardware.gpus": 4, "hardware.gpu_memory_gb": 80,
    "model.name": "meta-llama/Llama-3.1-8B-Instruct", "model.format": "safetensors",
    "model.bits": 16, "model.parameters_b": 8,
}  # fmt: skip
BUSY = {
    "case.stage": "production", "load.peak_concurrency": 200, "team.operations": "dedicated",
}  # fmt: skip


def on(values: dict[str, Any], **options: Any) -> Advice:
    return advise(from_values(values), ENGINES, today=TODAY, **options)


def chosen(advice: Advice) -> list[str]:
    return [c.chosen.engine.id if c.chosen else "none" for c in advice.choices]


def candidate(advice: Advice, id: str, part: int = 0) -> Candidate:
    return next(c for c in advice.choices[part].candidates if c.engine.id == id)


def reasons(of: Candidate) -> dict[str, str]:
    return {verdict.rule: verdict.reason for verdict in of.verdicts}


# ---- another engine, and Tidemill rejected by the same rules ----------------------------------


@pytest.mark.parametrize(
    ("values", "engine", "rule", "words"),
    [
        ({**GPU, **BUSY}, "vllm", "hardware", "runs on x86-64 CPUs, Arm CPUs, not on NVIDIA GPUs"),
        (
            {"hardware.servers": ["apple"], "model.format": "mlx"}, "mlx-lm", "hardware",
            "not on Apple silicon",
        ),
        ({"model.architecture": "deepseek"}, "llama.cpp", "architecture", "deepseek"),
        (
            {**BUSY, "model.custom_operators": True, "model.format": "safetensors"}, "vllm",
            "own operators", "takes no models with operators of your own",
        ),
        ({"model.format": "openvino"}, "openvino", "format", "the model comes as OpenVINO IR"),
        (
            {"hardware.servers": [], "hardware.edge": ["nvidia"], "case.stage": "edge"},
            "llama.cpp", "hardware", "not on NVIDIA GPUs",
        ),
    ],
)  # fmt: skip
def test_another_engine_where_the_rules_say_so(
    values: dict[str, Any], engine: str, rule: str, words: str
) -> None:
    advice = on(values)
    assert chosen(advice) == [engine]
    ours = candidate(advice, "tidemill")
    assert ours.status == "rejected"
    assert ours.score is None
    assert words in reasons(ours)[rule]


def test_on_a_laptop_llama_cpp_comes_before_tidemill() -> None:
    """Nothing measured: the more widely released one, with Tidemill next."""
    advice = on({})
    qualified = [c.engine.id for c in advice.choices[0].ranked("qualified")]
    assert qualified[:2] == ["llama.cpp", "tidemill"]


def test_many_users_on_arm_cpus_with_a_gguf_file() -> None:
    """Where Tidemill comes first, it is by rules that reject the others by name."""
    advice = on({**BUSY, "hardware.servers": ["cpu-arm"]})
    assert chosen(advice) == ["tidemill"]
    assert "not on Arm CPUs" in reasons(candidate(advice, "sglang"))["hardware"]
    assert "not on Arm CPUs" in reasons(candidate(advice, "mistralrs"))["paged KV"]
    assert "the case needs high-throughput" in reasons(candidate(advice, "llama.cpp"))["class"]
    assert candidate(advice, "vllm").status == "unproven"


def test_the_name_of_an_engine_gives_no_favours() -> None:
    """Tidemill's facts under another name are judged alike, wherever the name sorts."""
    for name in ("aaa", "zzz"):
        twin = dataclasses.replace(ENGINES["tidemill"], id=name, name=name)
        engines = {**ENGINES, name: twin}
        for values in ({}, BUSY, {**GPU, **BUSY}, {"model.format": "safetensors"}):
            advice = advise(from_values(values), engines, today=TODAY)
            ours, theirs = candidate(advice, "tidemill"), candidate(advice, name)
            assert (ours.status, ours.verdicts) == (theirs.status, theirs.verdicts)
            assert ours.score == theirs.score


# ---- what is said of the others ----------------------------------------------------------------


@pytest.mark.parametrize("values", [{}, BUSY, {**GPU, **BUSY}, {"hardware.edge": ["cpu-arm"]}])
def test_every_engine_is_accounted_for(values: dict[str, Any]) -> None:
    for choice in on(values).choices:
        ids = {c.engine.id for c in choice.candidates}
        assert ids == {e.id for e in ENGINES.values() if "component" not in e.classes}
        for c in choice.candidates:
            assert bool(c.verdicts) == (c.status != "qualified")
            assert (c.score is None) == (c.status == "rejected")
            assert all(verdict.reason for verdict in c.verdicts)


def test_a_project_in_maintenance_mode_is_not_for_production() -> None:
    tgi = candidate(on({**GPU, **BUSY}), "tgi")
    assert "maintenance mode since 2025-12-11" in reasons(tgi)["project health"]
    trial = {**GPU, **BUSY, "case.stage": "tuning"}
    assert candidate(on(trial), "tgi").status == "qualified"


def test_what_is_not_known_neither_qualifies_nor_rejects() -> None:
    advice = on({**GPU, **BUSY, "data.access_control": True})
    trt = candidate(advice, "tensorrt-llm")
    assert trt.status == "unproven"
    assert reasons(trt) == {"access control": "no source says that it asks for keys"}
    order = [c.status for c in advice.choices[0].candidates]
    assert order == sorted(order, key=("qualified", "unproven", "rejected").index)


def test_an_unproven_engine_is_recommended_only_where_none_qualifies() -> None:
    engines = {
        "known": engine("known", metrics=True),
        "unknown": engine("unknown", architectures=None, metrics=True, prefix_cache=True),
    }
    answers = from_values({})
    best = advise(answers, engines, today=TODAY).choices[0]
    assert best.chosen is not None
    assert (best.chosen.engine.id, best.proven) == ("known", True)
    del engines["known"]
    best = advise(answers, engines, today=TODAY).choices[0]
    assert best.chosen is not None
    assert (best.chosen.engine.id, best.proven) == ("unknown", False)


def test_where_every_engine_fails_none_is_recommended() -> None:
    advice = on({"hardware.memory_gb": 1, "model.parameters_b": 700})
    assert chosen(advice) == ["none"]
    assert advice.choices[0].commands is None
    fails = [reasons(c).get("memory") for c in advice.choices[0].candidates]
    assert "needs 350 GB for the weights alone; main memory is 1 GB" in fails
    assert advice.choices[0].steps


# ---- hybrid, components ------------------------------------------------------------------------


def test_servers_and_edge_are_a_hybrid() -> None:
    advice = on({**GPU, **BUSY, "hardware.edge": ["cpu-arm"], "data.stays_local": True})
    assert advice.plan.hybrid
    assert [c.part.place for c in advice.choices] == ["servers", "edge"]
    assert chosen(advice)[0] == "vllm"
    edge = advice.choices[1]
    assert edge.commands is not None
    assert re.search(r"--(max-sequences|max-seqs|parallel) 1\b", edge.commands.start)
    assert any("must never fall back" in risk for risk in edge.risks)


def test_the_edge_of_a_hybrid_has_one_user() -> None:
    """Ollama batches nothing continuously: too little for the servers' load, enough there."""
    edge_only = {"hardware.servers": [], "hardware.edge": ["cpu-arm"], "load.latency": "relaxed"}
    alone = on({**BUSY, **edge_only})
    assert "200 requests come at once" in reasons(candidate(alone, "ollama"))["concurrency"]
    hybrid = on({**BUSY, "hardware.edge": ["cpu-arm"], "case.stage": "tuning"})
    assert candidate(hybrid, "ollama", part=1).status == "qualified"


@pytest.mark.parametrize(
    ("bottleneck", "component"),
    [
        ("attention", "flash-attention"), ("structured-output", "llguidance"),
        ("kv-cache", "lmcache"), ("communication", "nccl"), ("memory", None), ("none", None),
    ],
)  # fmt: skip
def test_a_component_for_a_measured_bottleneck(bottleneck: str, component: str | None) -> None:
    (choice,) = on({**GPU, **BUSY, "load.bottleneck": bottleneck}).choices
    assert (choice.component.engine.id if choice.component else None) == component
    if bottleneck == "none":
        assert choice.components == ()
        return
    assert {c.engine.id for c in choice.components} == {
        e.id for e in ENGINES.values() if "component" in e.classes
    }
    nccl = next(c for c in choice.components if c.engine.id == "nccl")
    if bottleneck == "communication":
        assert nccl.status == "qualified"
    else:
        assert reasons(nccl) == {"bottleneck": f"addresses communication, not {bottleneck}"}
    if bottleneck == "kv-cache":
        assert choice.commands is not None
        assert "LMCacheConnectorV1" in choice.commands.start


# ---- numbers ------------------------------------------------------------------------------------


def test_without_evidence_there_are_no_figures_of_speed_or_cost() -> None:
    advice = on({**GPU, **BUSY, "budget.per_month": 100})
    (choice,) = advice.choices
    assert {number.origin for number in choice.numbers.values()} == {"answered", "computed"}
    assert set(choice.numbers) == {"peak requests in flight", "weights"}
    assert choice.numbers["weights"].value == 16
    absent = " ".join(advice.absent)
    for words in ("no measurement", "no sizing", "the budget was not checked"):
        assert words in absent
    for c in choice.ranked("qualified"):
        assert c.score is not None
        assert c.score.shares["performance"].basis == "documented features, nothing measured"


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        ({}, "model.parameters_b and hardware.memory_gb:"),
        ({"model.parameters_b": 8}, "hardware.memory_gb:"),
        ({"model.parameters_b": 8, "hardware.memory_gb": 16}, None),
        (GPU, None),
        ({**GPU, "hardware.edge": ["cpu-arm"]}, "hardware.memory_gb:"),
    ],
)
def test_what_was_not_checked_is_said(values: dict[str, Any], keys: str | None) -> None:
    said = [text for text in on(values).absent if "whether the weights fit" in text]
    assert [text.split(" not answered")[0] for text in said] == ([keys] if keys else [])


def test_measurements_take_the_place_of_features() -> None:
    store = Store(tidemill=measured("tidemill", 300), **{"llama.cpp": measured("llama.cpp", 100)})
    advice = on({}, evidence=Evidence(measured=store))
    assert chosen(advice) == ["tidemill"]
    (choice,) = advice.choices
    theirs = candidate(advice, "llama.cpp").score
    assert theirs is not None
    assert theirs.shares["performance"].value == pytest.approx(1 / 3)
    assert theirs.shares["performance"].basis == "measured: run-of-llama.cpp"
    assert choice.numbers["output"].origin == "measured"
    assert "run-of-tidemill" in choice.numbers["TTFT p99"].source
    assert not any("no measurement" in text for text in advice.absent)


def test_a_measurement_can_overturn_the_choice_the_other_way() -> None:
    store = Store(
        tidemill=measured("tidemill", 300, ttft_ms=900.0),
        **{"llama.cpp": measured("llama.cpp", 100)},
    )
    advice = on({"load.ttft_ms": 500}, evidence=Evidence(measured=store))
    assert chosen(advice) == ["llama.cpp"]
    assert "took 900 ms of TTFT" in reasons(candidate(advice, "tidemill"))["measured limits"]


def test_a_sizing_brings_cost_and_checks_the_budget() -> None:
    prices = Prices(tidemill=50.0, **{"llama.cpp": 100.0})
    advice = on({"budget.per_month": 80}, evidence=Evidence(sizing=prices))
    assert chosen(advice) == ["tidemill"]
    assert (
        "100 per month (simulated: sizing-1)" in reasons(candidate(advice, "llama.cpp"))["budget"]
    )
    numbers = advice.choices[0].numbers
    assert numbers["cost per month"].origin == "simulated"
    assert numbers["replicas"].value == 3
    assert not any("sizing" in text or "budget" in text for text in advice.absent)


# ---- weights, ages ------------------------------------------------------------------------------


def test_weights_shift_the_score() -> None:
    by_performance = on({}, weights=parse_weights("performance=1"))
    by_ecosystem = on({}, weights=parse_weights("ecosystem=1"))
    assert chosen(by_performance) != chosen(by_ecosystem)
    for c in on({}).choices[0].ranked("qualified"):
        assert c.score is not None
        expected = sum(c.score.shares[name].value * WEIGHTS[name] for name in DIMENSIONS)
        assert c.score.total == pytest.approx(expected)
        assert all(0 <= share.value <= 1 for share in c.score.shares.values())


@pytest.mark.parametrize(
    "text",
    ["", "speed=1", "performance", "performance=x", "cost=-1", "cost=nan", "cost=0", "cost=1e9"],
)
def test_wrong_weights(text: str) -> None:
    with pytest.raises(ValueError, match="weights: "):
        parse_weights(text)


def test_old_facts_are_flagged() -> None:
    answers = from_values({})
    assert advise(answers, ENGINES, today=TODAY).stale == {}
    later = TODAY.replace(year=TODAY.year + 1)
    old = advise(answers, ENGINES, today=later).stale
    assert set(old) == set(ENGINES)
    assert "hardware" in old["llama.cpp"]
    assert advise(answers, ENGINES, today=later, max_age=1000).stale == {}


# ---- risks, next steps --------------------------------------------------------------------------


def test_risks_name_what_changes_for_users_of_the_present_engine() -> None:
    (choice,) = on({**GPU, **BUSY, "case.current": "ollama"}).choices
    text = "\n".join(choice.risks)
    for words in ("Interface: Ollama has the API ollama", "Baselines:", "Monitoring: dashboards"):
        assert words in text
    assert any("ollama:" in step.command for step in choice.steps)
    (same,) = on({**GPU, **BUSY, "case.current": "vllm"}).choices
    assert not any(risk.startswith(("Interface", "Baselines")) for risk in same.risks)


def test_risks_of_formats_and_data() -> None:
    (choice,) = on(
        {
            "model.format": "safetensors", "model.special_tokens": True, "data.stays_local": True,
            "model.custom_operators": True, "data.access_control": True, "data.audit": True, **{
                k: v for k, v in {**GPU, **BUSY}.items() if k != "model.format"
            },
        }
    ).choices  # fmt: skip
    text = "\n".join(choice.risks)
    for words in ("special tokens", "operators of your own", "reports usage", "Audit:", "Access:"):
        assert words in text


def test_what_to_measure_next() -> None:
    (choice,) = on({**GPU, **BUSY, "load.ttft_ms": 500, "load.tpot_ms": 50}).choices
    commands = [step.command for step in choice.steps if step.command]
    assert commands[0] == "tidemill bench selftest"
    assert commands[1] == (
        "tidemill bench run --target vllm:hf://meta-llama/Llama-3.1-8B-Instruct "
        "--scenario short-chat "
        f"--concurrency {BUSY['load.peak_concurrency']} --slo ttft=0.5,tpot=0.05 --name vllm"
    )
    assert commands[2].startswith("tidemill bench run --target ")
    assert "vllm" not in commands[2]
    rival = commands[2].rpartition(" --name ")[2]
    assert commands[-1] == f"tidemill bench compare vllm {rival}"  # the names of the runs above
    at_edge = on({"hardware.servers": [], "hardware.edge": ["cpu-arm"], "case.stage": "edge"})
    assert any("--scenario cold-start" in step.command for step in at_edge.choices[0].steps)
