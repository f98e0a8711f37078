"""The entry point: quick help, one-line errors, exit codes."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from support.tiny_chat_model import write_chat_model
from tidemill import __version__
from tidemill.cli.main import _ELSEWHERE as ELSEWHERE
from tidemill.cli.main import COMMANDS, cli, describe, main
from tidemill.llm.perplexity import DEFAULT_WINDOW
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
        "tidemill: error: no such command 'rnu'; did you mean `tidemill run`?",
        "tidemill: see `tidemill --help`",
    ]


@pytest.mark.parametrize("theirs", sorted(ELSEWHERE))
def test_what_other_tools_call_it_gets_a_suggestion(tidemill: Tidemill, theirs: str) -> None:
    ours = ELSEWHERE[theirs].split()
    assert f"did you mean `tidemill {' '.join(ours)}`?" in tidemill(theirs).stderr
    assert CliRunner().invoke(cli, [*ours, "--help"]).exit_code == 0


@pytest.mark.parametrize("arguments", [[], ["eval"]])
def test_a_group_alone_shows_its_help(tidemill: Tidemill, arguments: list[str]) -> None:
    done = tidemill(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == tidemill(*arguments, "--help").stdout
    assert done.stdout.startswith("Usage: tidemill ")


@pytest.mark.parametrize("command", ["run", "chat"])
def test_every_option_of_an_answer_has_help(command: str) -> None:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    for parameter in found.params:
        if isinstance(parameter, click.Option):
            words = re.sub(r"\[default: .*", "", parameter.help or "").strip()
            assert words, parameter.name


def test_the_context_of_perplexity_is_a_chunk_of_512(tidemill: Tidemill) -> None:
    shown = " ".join(tidemill("eval", "perplexity", "--help").stdout.split())
    assert f"Tokens of a chunk. [default: {DEFAULT_WINDOW}]" in shown
    assert "8192" not in shown


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
        (["inspect", "m", "--batch", "9" * 30], "--batch"),
        (["run", "m", "p", "--temperature", "nan"], "finite"),
        (["run", "m", "p", "--min-p", "nan"], "finite"),
        (["run", "m", "p", "--presence-penalty", "inf"], "--presence-penalty"),
        (["run", "m", "p", "--repetition-penalty", "1e300"], "--repetition-penalty"),
        (["run", "m", "p", "--seed", "9" * 30], "seed must be from"),
        (["run", "m", "p", "--stop", ""], "stop string"),
        (["run", "m", "p", "--top-k", "9" * 30], "top_k must be from"),
        (["chat", "m", "-n", "9" * 30], "max_tokens must be from"),
        (["doctor", "--seconds", "nan"], "finite"),
        (["run", "m", "bad \udcff"], "not valid utf-8"),
        (["run", "m", "p", "--system", "\udcff"], "not valid utf-8"),
        (["run", "m", "p", "--stop", "\udcff"], "not valid utf-8"),
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


def test_a_bad_number_in_the_environment_is_named_there(tidemill: Tidemill) -> None:
    done = tidemill("run", "m", "p", TIDEMILL_THREADS="abc")
    assert done.returncode == 2
    assert "TIDEMILL_THREADS" in done.stderr


def shell(script: str, env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """``script`` with "$@" as tidemill and its arguments. Python buffers as it does for users."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["bash", "-c", script, "bash", sys.executable, "-m", "tidemill", *arguments],
        capture_output=True, timeout=60, env={**environ, **env},
    )  # fmt: skip


WRITERS = [["--help"], ["run", "--help"], ["--version"], ["list"], ["list", "--json"]]


@pytest.mark.parametrize("arguments", WRITERS, ids=" ".join)
def test_output_that_cannot_be_written_is_said_once(
    cli_env: dict[str, str], arguments: list[str]
) -> None:
    done = shell('"$@" > /dev/full', cli_env, *arguments)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        "tidemill: error: the output cannot be written: No space left on device"
    ]


@pytest.mark.parametrize("arguments", WRITERS, ids=" ".join)
def test_a_reader_that_has_left_is_no_error(cli_env: dict[str, str], arguments: list[str]) -> None:
    # The other end closes its stdin, and only then lets the writer begin.
    script = '{ read -r <&4; "$@"; echo $? >&2; } 4< "$GO" | { exec <&-; echo > "$GO"; }'
    go = Path(f"{cli_env['TIDEMILL_HOME']}.go")
    os.mkfifo(go)
    done = shell(script, {**cli_env, "GO": str(go)}, *arguments)
    assert done.stderr.decode() == "141\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_crash(
    cli_env: dict[str, str], tiny_chat_model: Path, closed: str
) -> None:
    run = ["run", str(tiny_chat_model), "Hello", "-q", "-n", "4", "--ignore-eos"]
    done = shell(f'"$@" {closed}', cli_env, *run)
    assert done.returncode == 0
    assert done.stderr == b""
    assert bool(done.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_a_small_character_set_is_no_crash(cli_env: dict[str, str], tmp_path: Path) -> None:
    model = write_chat_model(tmp_path / "x.gguf", template="{{ messages }}\u4f60")
    done = shell(
        '"$@"', {**cli_env, "PYTHONIOENCODING": "latin-1"}, "inspect", str(model), "--template"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{{ messages }}?\n", b"")


def test_unexpected_errors_are_named_as_such() -> None:
    assert describe(ValueError("bad value")) == "bad value"
    assert describe(FileNotFoundError(2, "No such file", "x.txt")) == "x.txt: No such file"
    assert describe(RuntimeError("closed")) == "closed"
    assert describe(RecursionError("deep")).startswith("internal error: RecursionError")
    assert describe(KeyError("k")).startswith("internal error: KeyError: 'k'")
