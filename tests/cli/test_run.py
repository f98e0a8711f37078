"""``tidemill run``: streaming, JSON, stdin, signals, pipes, on a tiny random model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.terminal import Terminal
from support.tiny_chat_model import write_chat_model
from tidemill import LLM, SamplingParams

Tidemill = Callable[..., Any]  # see conftest.py
GREEDY = ["--temperature", "0", "--max-tokens", "16", "--ignore-eos"]
PARAMS = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


def chat_text(model: Path, *messages: tuple[str, str]) -> str:
    with LLM(str(model), threads=1) as llm:
        turns = [{"role": role, "content": content} for role, content in messages]
        return llm.chat(turns, PARAMS)[0].outputs[0].text


def test_the_answer_is_the_apis_answer(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    done = tidemill("run", str(tiny_chat_model), "Hello", *GREEDY)
    assert done.returncode == 0
    text = chat_text(tiny_chat_model, ("user", "Hello"))
    assert done.stdout == text if text.endswith("\n") else text + "\n"
    assert done.stderr.startswith("threads: 1 ")  # and no progress: not a terminal
    assert len(done.stderr.splitlines()) == 1


def test_quiet_says_nothing_else(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    assert tidemill("run", str(tiny_chat_model), "Hello", "-q", *GREEDY).stderr == ""


def test_system_message_and_raw(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    model = str(tiny_chat_model)
    done = tidemill("run", model, "Hi", "--system", "Be brief.", "--json", *GREEDY)
    expected = chat_text(tiny_chat_model, ("system", "Be brief."), ("user", "Hi"))
    assert json.loads(done.stdout)["text"] == expected
    raw = json.loads(tidemill("run", model, "Hi", "--raw", "--json", *GREEDY).stdout)
    assert raw["usage"]["prompt_tokens"] == 2
    with LLM(model, threads=1) as llm:
        assert raw["text"] == llm.generate("Hi", PARAMS)[0].outputs[0].text


def test_json_is_one_object(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    done = tidemill("run", str(tiny_chat_model), "Hello", "--json", *GREEDY)
    answer = json.loads(done.stdout)
    assert answer["model"] == str(tiny_chat_model)
    assert answer["finish_reason"] == "length"
    assert answer["stop_reason"] is None
    usage = answer["usage"]
    assert usage["completion_tokens"] == 16
    assert usage["total_tokens"] == usage["prompt_tokens"] + 16
    assert set(answer["timings"]) == {"load_s", "ttft_s", "tokens_per_s"}
    assert all(value > 0 for value in answer["timings"].values())


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_the_prompt_can_come_from_stdin(
    tidemill: Tidemill, tiny_chat_model: Path, arguments: list[str]
) -> None:
    done = tidemill("run", str(tiny_chat_model), *arguments, "-q", *GREEDY, stdin="Hello")
    assert done.stdout.rstrip("\n") == chat_text(tiny_chat_model, ("user", "Hello")).rstrip("\n")


def test_an_argument_leaves_stdin_alone(tiny_chat_model: Path, cli_env: dict[str, str]) -> None:
    """A script whose stdin is an open pipe that nobody writes to must not hang."""
    reader, writer = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tidemill", "run", str(tiny_chat_model), "Hello", *GREEDY],
            stdin=reader, capture_output=True, timeout=60, env={**os.environ, **cli_env},
        )  # fmt: skip
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == 0


def test_seeds_and_stops(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    model = str(tiny_chat_model)
    sampling = ["--temperature", "1", "--max-tokens", "20", "--json", "--ignore-eos"]
    one, two, three = (
        json.loads(tidemill("run", model, "Hello", *sampling, "--seed", seed).stdout)["text"]
        for seed in ("1", "1", "2")
    )
    assert one == two != three
    stop = one[3:5]
    cut = json.loads(
        tidemill("run", model, "Hello", *sampling, "--seed", "1", "--stop", stop).stdout
    )
    assert cut["text"] == one[: one.index(stop)]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)


def test_stats_on_request(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    done = tidemill("run", str(tiny_chat_model), "Hello", "--stats", *GREEDY)
    last = done.stderr.splitlines()[-1]
    for word in ("prompt tokens", "16 generated", "first after", "tok/s", "length limit"):
        assert word in last


def test_too_long_a_prompt_is_an_error_not_a_cut(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    done = tidemill("run", str(tiny_chat_model), "x" * 5000, "-q")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("tidemill: error: ")
    assert "--context N gives more room" in done.stderr


def test_a_model_without_template_continues_text(tidemill: Tidemill, tmp_path: Path) -> None:
    model = write_chat_model(tmp_path / "plain.gguf", template=None)
    answer = json.loads(tidemill("run", str(model), "Hi", "--json", *GREEDY).stdout)
    assert answer["usage"]["prompt_tokens"] == 2
    done = tidemill("run", str(model), "Hi", "--system", "x")
    assert done.returncode == 1
    assert "chat template" in done.stderr


def start(model: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    """An answer that goes on for long, on a pipe."""
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "tidemill", "run", str(model), "Hello", "-q", "--ignore-eos",
         "--backend", "reference"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env},
    )  # fmt: skip


def test_ctrl_c_ends_with_130(tiny_chat_model: Path, cli_env: dict[str, str]) -> None:
    with start(tiny_chat_model, cli_env) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip() == ""


def test_a_closed_pipe_ends_quietly(tiny_chat_model: Path, cli_env: dict[str, str]) -> None:
    with start(tiny_chat_model, cli_env) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(60) == 141
    assert errors == ""


def test_sigterm_unwinds(tiny_chat_model: Path, cli_env: dict[str, str]) -> None:
    with start(tiny_chat_model, cli_env) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert errors == ""


@pytest.mark.parametrize("command", [["run"], ["chat"], ["eval", "perplexity", "--file", "-"]])
def test_bytes_that_are_no_text_are_refused(
    tiny_chat_model: Path, cli_env: dict[str, str], command: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidemill", *command, str(tiny_chat_model), "-q"],
        input=b"so far so good \xff\n", capture_output=True, timeout=60,
        env={**os.environ, **cli_env},
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("tidemill: error: the input is not valid utf-8 text (byte 0xff")


@pytest.mark.parametrize("command", [["run"], ["chat"], ["eval", "perplexity", "--file", "-"]])
def test_input_without_end_is_refused(
    tidemill: Tidemill,
    tiny_chat_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
) -> None:
    for module in ("tidemill.cli.options", "tidemill.cli.chat"):
        monkeypatch.setattr(f"{module}.MAX_TEXT", 1 << 20)
    done = tidemill(*command, str(tiny_chat_model), "-q", stdin="x" * ((1 << 20) + 1))
    assert done.returncode == 1
    assert "more than 1 million characters" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_template_file_that_is_no_text(tidemill: Tidemill, tmp_path: Path) -> None:
    path = tmp_path / "x.jinja"
    path.write_bytes(b"\xff")
    done = tidemill("run", "m", "Hello", "--chat-template", str(path))
    assert done.returncode == 2
    assert "x.jinja' is not a UTF-8 text file" in done.stderr


def test_a_narrow_terminal_gets_lines_that_fit(
    tiny_chat_model: Path, cli_env: dict[str, str]
) -> None:
    command = ["run", str(tiny_chat_model), "Hello", *GREEDY]
    with Terminal(command, cli_env, columns=20) as terminal:
        assert terminal.finish() == 0
        drawn = [line for line in re.split(r"[\r\n]", terminal.text) if "[" in line and "=" in line]
    assert drawn
    assert all(len(line) < 20 for line in drawn if "tiny-chat" in line)


def test_a_dumb_terminal_gets_no_progress(tiny_chat_model: Path, cli_env: dict[str, str]) -> None:
    command = ["run", str(tiny_chat_model), "Hello", *GREEDY]
    with Terminal(command, {**cli_env, "TERM": "dumb"}) as terminal:
        terminal.expect("16 generated.*tok/s")
        assert terminal.finish() == 0
        assert "packing" not in terminal.text


def test_on_a_terminal_progress_and_speed_are_shown(
    tiny_chat_model: Path, cli_env: dict[str, str]
) -> None:
    with Terminal(["run", str(tiny_chat_model), "Hello", *GREEDY], cli_env) as terminal:
        terminal.expect("packing weights")
        terminal.expect("threads: 1 ")
        terminal.expect("16 generated.*tok/s")
        assert terminal.finish() == 0
