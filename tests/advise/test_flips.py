"""What would change the decision is found by deciding again, and is true."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.advise import flips
from tidemill.advise.advice import decide
from tidemill.advise.answers import Answers, from_values
from tidemill.advise.evidence import Evidence
from tidemill.advise.facts import load_engines
from tidemill.advise.flow import HIGH_CONCURRENCY
from tidemill.advise.questions import BY_KEY
from tidemill.advise.scores import DIMENSIONS, WEIGHTS

ENGINES = load_engines()
NONE = Evidence()
GPU = {
    "hardware.servers": ["nvidia"], "hardware.gpus": 2, "hardware.gpu_memory_gb": 24,
    "model.format": "safetensors", "model.parameters_b": 8, "model.bits": 16,
    "load.peak_concurrency": 100, "team.operations": "dedicated",
}  # fmt: skip
CASES: list[dict[str, Any]] = [
    {},
    GPU,
    {"hardware.servers": [], "hardware.edge": ["cpu-arm"], "case.stage": "edge"},
    {"data.access_control": True, "data.audit": True, "load.latency": "batch"},
]


def find(answers: Answers, engines: Any = ENGINES) -> flips.Flips:
    return flips.find(answers, engines, NONE, WEIGHTS)


@pytest.mark.parametrize("values", CASES)
def test_every_flip_is_true(values: dict[str, Any]) -> None:
    """Taking the changed answers as a case of its own gives the decision that was told."""
    answers = from_values(values)
    now = decide(answers, ENGINES, NONE, WEIGHTS)
    found = find(answers)
    assert found.flips
    for flip in found.flips:
        assert flip.decision != now
        if flip.key.startswith("weight of "):
            alone = {d: float(flip.key.endswith(d)) for d in DIMENSIONS}
            assert decide(answers, ENGINES, NONE, alone) == flip.decision
            continue
        changed = dict(values)
        for text in (f"{flip.key} = {flip.after}", *filter(None, flip.with_it.split(", "))):
            key, _, shown = text.partition(" = ")
            value = unshown(key, shown)
            if value is None:
                changed.pop(key, None)
            else:
                changed[key] = value
        assert decide(from_values(changed), ENGINES, NONE, WEIGHTS) == flip.decision, flip


def unshown(key: str, shown: str) -> Any:
    question = BY_KEY[key]
    match question.kind:
        case "yes-no":
            return shown == "yes"
        case "whole":
            return int(float(shown))
        case "number":
            return None if shown == "not given" else float(shown)
        case "choices":
            return [] if shown == "none" else shown.split(" and ")
    return shown


def test_the_nearest_number_is_found() -> None:
    by_key = {f.key: f for f in find(from_values({})).flips if f.key == "load.peak_concurrency"}
    flip = by_key["load.peak_concurrency"]
    assert (flip.before, flip.after) == ("4", str(HIGH_CONCURRENCY))
    down = find(from_values({**GPU, "team.operations": "part-time"}))
    flip = next(f for f in down.flips if f.key == "load.peak_concurrency")
    assert flip.after == str(HIGH_CONCURRENCY - 1)


def test_memory_flips_where_the_weights_no_longer_fit() -> None:
    """16 GB of weights on two GPUs: 8 GB each are enough, less are not."""
    flip = next(f for f in find(from_values(GPU)).flips if f.key == "hardware.gpu_memory_gb")
    assert 7.9 <= float(flip.after) < 8


def test_numbers_that_were_not_given_are_tried_from_both_ends() -> None:
    """4 GB of weights: memory below that flips; how many parameters fit into 16 GB at 4 bits."""
    small = from_values({"model.parameters_b": 8})
    flip = next(f for f in find(small).flips if f.key == "hardware.memory_gb")
    assert flip.before == "not given"
    assert 3.9 <= float(flip.after) < 4
    assert flip.decision == (("local on servers", "no engine"),)
    unknown = from_values({"hardware.memory_gb": 16})
    flip = next(f for f in find(unknown).flips if f.key == "model.parameters_b")
    assert 32 < float(flip.after) <= 32.1


def test_a_gpu_comes_with_its_number() -> None:
    found = find(from_values({"model.format": "safetensors", "model.bits": 16}))
    servers = [f for f in found.flips if f.key == "hardware.servers" and "nvidia" in f.after]
    assert servers
    assert servers[0].with_it == "hardware.gpus = 1"


def test_flips_follow_the_facts() -> None:
    """With llama.cpp unknown, other things flip: nothing is written down beforehand."""
    fewer = {id: engine for id, engine in ENGINES.items() if id != "llama.cpp"}
    answers = from_values({})
    with_it, without = find(answers), find(answers, fewer)
    assert {f.decision for f in with_it.flips} != {f.decision for f in without.flips}
    assert not any("llama.cpp" in str(f.decision) for f in without.flips)


def test_answers_without_effect_are_named() -> None:
    found = find(from_values({}))
    keys = {f.key for f in found.flips}
    assert keys.isdisjoint(found.without_effect)
    asked = {key for key in BY_KEY if key not in ("case.current", "model.name")}
    assert asked <= keys | set(found.without_effect)
    assert 100 < found.tried < 2000
