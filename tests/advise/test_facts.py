"""The knowledge base fits its schema, and the schema says what is wrong with what does not."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from tidemill.advise.facts import CLASSES, FACTS, Engine, FactsError, load_engines, parse_engine

ROOT = Path(__file__).parents[2]
ENGINES = load_engines()

GOOD = """
name = "An engine"
classes = ["local"]
homepage = "https://example.org"
summary = "It runs."

[sources.readme]
url = "https://example.org/readme"
looked_up = 2026-11-30

[facts]
hardware = { value = ["nvidia"], source = "readme", complete = true }
bits = { value = 4, source = "readme" }

[launch]
install = "get it"
source = "readme"
arguments = ["run {model}", { text = "--gpu", when = "gpu" }]
"""


def test_a_good_file_is_read() -> None:
    engine = parse_engine("one", GOOD, "one.toml")
    assert engine.value("bits") == 4
    assert engine.has("hardware", "nvidia") is True
    assert engine.has("hardware", "amd") is False  # complete
    assert engine.has("formats", "gguf") is None  # nothing known
    assert engine.facts["bits"].source.url == "https://example.org/readme"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "An engine"', "", "one.toml: name is missing"),
        ('summary = "It runs."', 'sumary = "x"', "summary is missing"),
        ('["local"]', '["locale"]', "classes: 'locale' is not one of serving, local, component"),
        ('["local"]', '["local", "component"]', "a component is nothing else"),
        ('["local"]', "[]", "one class is needed"),
        ('"https://example.org"', '"http://example.org"', "is not an https:// URL"),
        ("looked_up = 2026-11-30", 'looked_up = "2026-11-30"', "a date such as 2026-11-30"),
        ("looked_up = 2026-11-30", "looked_up = 2026-11-30T10:00:00", "a date such as 2026-11-30"),
        ('["nvidia"]', '["nvidea"]', "facts.hardware: 'nvidea' is not one of nvidia"),
        ('["nvidia"]', '"nvidia"', "is not a list of words"),
        ("value = 4", 'value = "4"', "facts.bits: '4' is not of type int"),
        ("value = 4", "value = true", "facts.bits: True is not of type int"),
        ('value = 4, source = "readme"', "value = 4", "facts.bits: source is missing"),
        (
            'value = 4, source = "readme"',
            'value = 4, source = "blog"',
            "source 'blog' is not among",
        ),
        ("bits =", "bitts =", "facts.bitts: no such fact; known are"),
        ('4, source = "readme"', '4, source = "readme", complete = true', "for lists only"),
        ('4, source = "readme"', '4, source = "readme", sure = true', "sure is not known here"),
        ('when = "gpu" }', "wen = 1 }", "launch.arguments[1]: when is missing"),
        (
            'install = "get it"',
            'install = "get it"\ntakes_names = 1',
            "takes_names is true or false",
        ),
        ("[facts]", "[facts", "one.toml: not valid TOML"),
        ("[sources.readme]", "[sourcess.readme]", "sourcess is not known here"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(FactsError) as caught:
        parse_engine("one", GOOD.replace(old, new), "one.toml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("one.toml: ")


def test_a_component_works_with_engines_that_are_known(tmp_path: Path) -> None:
    text = GOOD.replace("[facts]", '[facts]\nworks_with = { value = ["vlm"], source = "readme" }')
    (tmp_path / "one.toml").write_text(text)
    with pytest.raises(FactsError, match=r"one\.toml: no engine 'vlm' is known"):
        load_engines(tmp_path)


def test_there_are_engines_of_all_three_classes() -> None:
    counts = {name: sum(name in e.classes for e in ENGINES.values()) for name in CLASSES}
    assert counts["serving"] >= 5
    assert counts["local"] >= 7
    assert counts["component"] >= 6
    assert len(ENGINES) >= 14
    for id in (
        "vllm", "sglang", "tgi", "tensorrt-llm", "lmdeploy", "ollama", "llama.cpp", "gpt4all",
        "mistralrs", "openvino", "mlc-llm", "mlx-lm", "flash-attention", "flashinfer", "nccl",
        "deepspeed", "xgrammar", "llguidance", "lmcache", "tidemill",
    ):  # fmt: skip
        assert id in ENGINES


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_every_fact_has_a_public_source_and_a_date(engine: Engine) -> None:
    assert engine.facts
    for name, fact in engine.facts.items():
        assert name in FACTS
        if engine.id == "tidemill" or fact.source.url.startswith("docs/"):
            assert (ROOT / fact.source.url).is_file(), fact.source.url
        else:
            assert re.fullmatch(r"https://[\w.-]+/\S+", fact.source.url)
    if "component" not in engine.classes:
        assert engine.value("hardware"), "without it nothing can be recommended"
        assert engine.value("install")


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_classes_follow_from_facts(engine: Engine) -> None:
    """Who batches continuously and pages its KV cache may serve, and nobody else: Tidemill too."""
    if "component" in engine.classes:
        assert engine.value("addresses")
        return
    serves = engine.value("batching") == "continuous" and bool(engine.value("paged_kv"))
    assert ("serving" in engine.classes) == serves


def test_text_generation_inference_is_in_maintenance_mode() -> None:
    assert ENGINES["tgi"].value("maintenance_since") == datetime.date(2025, 12, 11)
    assert "maintenance mode" in ENGINES["tgi"].summary


def test_old_facts_are_found_by_their_age() -> None:
    engine = ENGINES["vllm"]
    looked_up = engine.facts["licence"].source.looked_up
    assert engine.stale(looked_up, 0) == []
    later = looked_up + datetime.timedelta(days=181)
    assert engine.stale(later) == list(engine.facts)
    assert engine.stale(later, 181) == []
