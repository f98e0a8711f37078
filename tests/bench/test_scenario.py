from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tidemill.advise.questions import WORKLOADS
from tidemill.bench.arrivals import Closed
from tidemill.bench.scenario import Scenario, ScenarioError, Starts, load, names
from tidemill.bench.workload import Fixed, LogNormal, Shape, Uniform, Workload

GOOD = """
name = "mine"
summary = "mine"

[load]
kind = "closed"
concurrency = 2

[[shapes]]
name = "a"
input = { kind = "fixed", tokens = 5 }
output = { kind = "uniform", low = 2, high = 4 }
"""


def test_there_is_one_for_each_answer_of_the_advisor_and_cold_start() -> None:
    assert set(names()) == {*WORKLOADS, "cold-start"}
    for name, summary in WORKLOADS.items():
        assert load(name).summary == summary


@pytest.mark.parametrize("name", names())
def test_those_that_come_along_can_be_run(name: str) -> None:
    scenario = load(name)
    assert scenario.name == name
    assert scenario.source
    assert isinstance(scenario.load, Starts) == (name == "cold-start")
    workload = Workload(scenario.shapes)
    prompts = [workload.prompt(i) for i in range(60)]
    assert {prompt.shape.name for prompt in prompts} == {shape.name for shape in scenario.shapes}
    for prompt in prompts:
        words = len(f"{prompt.system} {prompt.text}".split())
        assert words + prompt.max_tokens <= scenario.context
    assert msgspec.json.decode(msgspec.json.encode(scenario), type=Scenario) == scenario


def test_only_checked_ones_have_tasks() -> None:
    assert {name for name in names() if load(name).checked} == {"json-extraction", "tool-calling"}
    assert load("two-tenants").tenants == ["flood", "quiet"]


def test_ones_own_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    scenario = load(str(path))
    assert scenario.load == Closed(2)
    assert scenario.shapes == (Shape("a", Fixed(5), Uniform(2, 4)),)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"closed"', '"open"', "'open'.*load.kind"),
        ("concurrency = 2", "concurrency = 0", "concurrency must be 1 to"),
        ("concurrency = 2", "concurency = 2", "concurency"),
        ('"fixed", tokens', '"fixed", token', "token"),
        ("low = 2", "low = 5", "no range"),
        ("low = 2", 'low = "2"', "shapes.*low"),
        ('summary = "mine"', 'summary = "mine"\nseconds = -1', "seconds"),
        ('summary = "mine"', "", "summary"),
        ('summary = "mine"', 'summary = "mine"\nslo = { ttft = 0 }', "ttft must be more than 0"),
        ('summary = "mine"', 'summary = "mine"\nslo = { tftt = 1 }', "tftt"),
        ('name = "mine"', 'name = "../mine"', "small letters"),
        ('input = { kind = "fixed", tokens = 5 }', "", "needs an input"),
        ('input = { kind = "fixed", tokens = 5 }', "turns = 0", "input|turns"),
        ("[load]", 'api = "completions"\n[load]', None),
        ('summary = "mine"', 'summary = "mine"\nslo = {}', "slo: it has no limit"),
        ('summary = "mine"', 'summary = "mine"\nseconds = 1e-9', "seconds"),
        ("tokens = 5", f"tokens = {10**30}", "tokens must be"),
        ("[[shapes]]", f"[[shapes]]\nprefixes = {10**30}", "more than 64 bits"),
        ("[[shapes]]", f"[[shapes]]\nprefixes = {'9' * 5000}", "not valid TOML"),
        ("[[shapes]]", "[[shapes]]\nweight = 1e308", "weight must be"),
        ("[[shapes]]", "[[shapes]]\npause = 1e308", "pause 0 to"),
        ("high = 4 }", "high = 2001 }\nturns = 1000", "more than the 2000000"),
        ('kind = "closed"\nconcurrency', 'kind = "gamma"\nrate', None),
        ('kind = "closed"\nconcurrency = 2', 'kind = "gamma"\nrate = 1e-300', "rate must be 1e-09"),
        (
            'kind = "closed"\nconcurrency = 2',
            'kind = "gamma"\nrate = 1\nburstiness = 1e-200',
            "burstiness must be 0.0001",
        ),
        ("[[shapes]]", "[[shapes]", "not valid TOML"),
        ("[[shapes]]", "[shapes]", "shapes"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(
    tmp_path: Path, old: str, new: str, said: str | None
) -> None:
    path = tmp_path / "mine.toml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))
    if said is None:
        load(str(path))
        return
    with pytest.raises(ScenarioError, match=f"mine.toml.*({said})"):
        load(str(path))


def test_two_shapes_of_one_name_and_talks_without_chat(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + GOOD[GOOD.index("[[shapes]]") :])
    with pytest.raises(ScenarioError, match="same name"):
        load(str(path))
    path.write_text(GOOD.replace("[load]", 'api = "completions"\n[load]') + "turns = 3\n")
    with pytest.raises(ScenarioError, match="need api = 'chat'"):
        load(str(path))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(str(tmp_path / "none.toml"))
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="not valid TOML"):
        load(str(path))
    path.write_bytes(b"a = " + b"[" * 100_000)
    with pytest.raises(ScenarioError, match="not valid TOML"):
        load(str(path))
    with pytest.raises(ScenarioError, match=r"there are .*short-chat"):
        load("shortchat")


def test_lengths_can_be_scaled() -> None:
    scaled = load("rag").scaled(0.1).shapes[0]
    assert (scaled.prefix, scaled.prefixes) == (150, 8)
    assert scaled.input == Uniform(2, 6)
    assert LogNormal(100, 300, 1000).scaled(0.001) == LogNormal(1, 1, 1)
    task = load("json-extraction").scaled(0.1).shapes[0]
    assert task.input == Uniform(15, 40)
    assert task.output == Fixed(160)  # the object is as long as it is
    assert re.search(r"\$quantity", task.task.template if task.task else "")


def test_a_file_with_a_mark_and_ends_of_lines_as_some_editors_write_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load(str(path)).name == "mine"
