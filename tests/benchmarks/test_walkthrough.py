"""The walk through's script: every command in it is one that can be typed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.commands import parse, tidemill_calls
from tidemill.advise.answers import read
from tidemill.advise.facts import load_engines
from tidemill.bench import scenario as known
from tidemill.bench import targets

FOLDER = Path(__file__).parents[2] / "benchmarks"


def commands(tmp_path: Path, **environment: str) -> list[str]:
    """What the script runs, with a command in the place of ``tidemill`` that does nothing."""
    subprocess.run(
        ["bash", str(FOLDER / "walkthrough.sh"), str(tmp_path / "out")],
        env={**os.environ, "TIDEMILL": "true", **environment}, check=False, timeout=60,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    lines = (tmp_path / "out" / "commands.txt").read_text().splitlines()
    return [line.removeprefix("$ ").replace("true ", "tidemill ", 1) for line in lines]


def test_all_its_commands_parse(tmp_path: Path) -> None:
    run = commands(tmp_path)
    assert sum("bench run" in line for line in run) == 9  # three engines, three scenarios
    for words in ("advise", "selftest", "compare", "report", "calibrate", "size"):
        assert any(words in line for line in run), words
    for line in run:
        (arguments,) = tidemill_calls(line)
        parse(arguments)
        if "--scenario" in arguments:
            known.load(arguments[arguments.index("--scenario") + 1])
        if "--target" in arguments:
            targets.parse(arguments[arguments.index("--target") + 1])


def test_a_program_can_be_named(tmp_path: Path) -> None:
    run = commands(tmp_path, ENGINES="tidemill:smollm2 llama.cpp:smollm2=/opt/llama-server")
    named = [line for line in run if "--binary /opt/llama-server" in line]
    assert len(named) == 3
    assert all("--target llama.cpp:smollm2 " in line for line in named)


def test_its_case_is_one() -> None:
    path = FOLDER / "walkthrough.toml"
    answers = read(path.read_text(), path.name, load_engines())
    assert answers.name == "smollm2"
    assert answers.peak_concurrency == 4
