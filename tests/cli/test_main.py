"""The entry point: quick help, one-line errors, exit codes."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tidemill import __version__
from tidemill.cli.main import COMMANDS, cli, describe, main
from tidemill.weights.base import CheckpointError

Tidemill = Callable[..., Any]  # see conftest.py

HEAVY = {"numpy", "tokenizers", "huggingface_hub", "jinja2", "prompt_toolkit", "tqdm", "filelock"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from tidemill.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as e:\n    assert not e.code\n"
        "print(*{m.partition('.')[0] for m in sys.modules})\n"
        "print(len(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    *_, loaded, count = done.stdout.splitlines()
    assert HEAVY.isdisjoint(loaded.split())
    assert int(count) < 250  # the interpreter and click are about 150


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    for name, (_, summary) in COMMANDS.items():
        assert name in result.output
        assert summary in result.output


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Usage:")


def test_version() -> None:
    result = CliRunner().invoke(cli, ["--version"])
    assert result.output.split() == ["tidemill", __version__]


def test_the_installed_script_is_this_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["tidemill"].partition(":")
    assert getattr(importlib.import_module(module), name) is main


def test_an_unknown_command_gets_a_suggestion(tidemill: Tidemill) -> None:
    done = tidemill("rnu", "smollm2")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "tidemill: error: no such command 'rnu'; did you mean 'run'?",
        "tidemill: see `tidemill --help`",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "MODEL"),
        (["run", "m", "p", "--temperature", "hot"], "--temperature"),
        (["run", "m", "p", "--temperature", "-1"], "--temperature"),
        (["run", "m", ""], "prompt is empty"),
        (["run", "m", "p", "--raw", "--system", "s"], "--raw"),
        (["run", "m", "p", "--sed", "3"], "--seed"),
        (["eval", "perplexity", "m"], "--file"),
        (["inspect", "m", "--batch", "0"], "--batch"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    tidemill: Tidemill, arguments: list[str], words: str
) -> None:
    done = tidemill(*arguments)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first.startswith("tidemill: error: ")
    assert words in first
    assert second.startswith("tidemill: see `tidemill ")
    assert done.stdout == ""


@pytest.mark.parametrize("command", [["run", "{}", "Hello"], ["inspect", "{}"], ["chat", "{}"]])
def test_a_bad_model_is_one_line_and_code_1(
    tidemill: Tidemill, tmp_path: Path, command: list[str]
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(40))
    for name in (str(broken), str(tmp_path / "missing.gguf"), "no-such-model"):
        done = tidemill(*(part.format(name) for part in command), TIDEMILL_OFFLINE="1")
        assert done.returncode == 1
        assert done.stderr.startswith("tidemill: error: ")
        assert "Traceback" not in done.stderr
        assert Path(name).name in done.stderr


def test_debug_shows_the_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(40))
    monkeypatch.setenv("TIDEMILL_DEBUG", "1")
    with pytest.raises(CheckpointError):
        main(["inspect", str(broken)])


def test_unexpected_errors_are_named_as_such() -> None:
    assert describe(ValueError("bad value")) == "bad value"
    assert describe(FileNotFoundError(2, "No such file", "x.txt")) == "x.txt: No such file"
    assert describe(RuntimeError("closed")) == "closed"
    assert describe(RecursionError("deep")).startswith("internal error: RecursionError")
    assert describe(KeyError("k")).startswith("internal error: KeyError: 'k'")
