"""``tidemill advise``: from files, at a terminal, and with what does not fit."""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.terminal import Terminal
from tidemill.advise.answers import read
from tidemill.hardware import memory_budget

Tidemill = Callable[..., Any]  # see conftest.py


def test_without_a_terminal_it_says_what_to_do(tidemill: Tidemill) -> None:
    done = tidemill("advise")
    assert done.returncode == 2
    assert "there is no terminal to ask on: give --answers FILE" in done.stderr
    assert done.stdout == ""


def test_a_report_from_a_file(tmp_path: Path, tidemill: Tidemill) -> None:
    (tmp_path / "case.toml").write_text("[load]\npeak_concurrency = 1\n")
    done = tidemill("advise", "--answers", str(tmp_path / "case.toml"))
    assert done.returncode == 0
    assert done.stderr == ""
    assert "Recommended: llama.cpp" in done.stdout
    again = tidemill("advise", "--answers", "-", stdin="[load]\npeak_concurrency = 1\n")
    assert again.stdout == done.stdout


def test_json_and_markdown(tidemill: Tidemill) -> None:
    data = json.loads(tidemill("advise", "--defaults", "--json").stdout)
    assert data["parts"][0]["engine"] == "llama.cpp"
    assert data["assumed"]
    assert tidemill("advise", "--defaults", "--markdown").stdout.startswith(
        "# Which inference engine"
    )
    both = tidemill("advise", "--defaults", "--json", "--markdown")
    assert both.returncode == 2
    assert "--json or --markdown, not both" in both.stderr


def test_weights_change_the_ranking(tidemill: Tidemill) -> None:
    data = json.loads(
        tidemill("advise", "--defaults", "--json", "--weights", "performance=1").stdout
    )
    assert data["weights"] == {"performance": 1.0, "cost": 0.0, "ecosystem": 0.0}
    assert data["parts"][0]["engine"] == "tidemill"
    wrong = tidemill("advise", "--defaults", "--weights", "speed=1")
    assert wrong.returncode == 2
    assert "'speed=1' is not like performance=0.5" in wrong.stderr


def test_answers_are_written_and_read_back(tmp_path: Path, tidemill: Tidemill) -> None:
    path = tmp_path / "case.toml"
    first = tidemill("advise", "--defaults")
    written = tidemill("advise", "--defaults", "--write-answers", str(path))
    assert (written.returncode, written.stdout) == (0, "")
    assert written.stderr == f"{path}: written, to be filled in\n"
    second = tidemill("advise", "--answers", str(path))
    assert second.returncode == 0
    assert second.stdout == first.stdout.replace(" (assumed)", "").replace(
        "not given", "not given (assumed)"
    )
    shown = tidemill("advise", "--defaults", "--write-answers", "-")
    assert shown.stdout == path.read_text()
    assert "# Most requests at the same time?" in shown.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[load]\npeak = 3", "case.toml: load.peak: there is no such question"),
        ("[hardware]\ngpus = 2", "hardware.gpus is 2, but hardware.servers names no GPUs"),
        ("[case]\ncurrent = 'vlm'", "no engine 'vlm' is known; did you mean vllm?"),
        ("[case]\ncurrent = 'nccl'", "no engine 'nccl' is known"),
        ("load", "not valid TOML"),
        ("[load]\nttft_ms = nan", "load.ttft_ms: nan is not a finite number"),
    ],
)
def test_wrong_answers_are_one_line(
    tmp_path: Path, text: str, message: str, tidemill: Tidemill
) -> None:
    path = tmp_path / "case.toml"
    path.write_text(text)
    done = tidemill("advise", "--answers", str(path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


def test_files_that_cannot_be_read_or_written(tmp_path: Path, tidemill: Tidemill) -> None:
    missing = tidemill("advise", "--answers", str(tmp_path / "none.toml"))
    assert missing.returncode == 1
    assert "No such file" in missing.stderr
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    assert "not valid utf-8" in tidemill("advise", "--answers", str(tmp_path / "bytes.toml")).stderr
    nowhere = tidemill(
        "advise", "--defaults", "--write-answers", str(tmp_path / "no" / "case.toml")
    )
    assert nowhere.returncode == 1
    assert nowhere.stdout == ""


def test_the_age_of_facts(tidemill: Tidemill) -> None:
    fresh = tidemill("advise", "--check-facts", "--max-age", "36500")
    assert fresh.returncode == 0
    assert "0 looked up more than 36500 days" in fresh.stdout
    data = json.loads(tidemill("advise", "--check-facts", "--json", "--max-age", "36500").stdout)
    fact = data["engines"]["tgi"]["maintenance_since"]
    assert fact["value"] == "2025-12-11"
    assert fact["source"].startswith("https://github.com/huggingface/")
    assert fact["looked_up"] == "2026-11-30"
    assert data["old"] == {}


def test_old_facts_are_an_error(tidemill: Tidemill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.cli.advise._today", lambda: datetime.date(2028, 1, 1))
    done = tidemill("advise", "--check-facts")
    assert done.returncode == 1
    assert "old: licence" in done.stdout


# ---- as a page ----------------------------------------------------------------------------------


def test_the_page_is_served_until_ctrl_c(tmp_path: Path) -> None:
    case = tmp_path / "case.toml"
    case.write_text("[load]\npeak_concurrency = 7\n")
    command = [sys.executable, "-m", "tidemill", "advise", "--page", "--answers", str(case)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(
            r"tidemill: the interview is at (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", line
        )
        assert found is not None, line
        with urllib.request.urlopen(found[1], timeout=60) as answer:
            assert 'name="load.peak_concurrency" value="7"' in answer.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--page", "--json"], "--page takes --answers, --weights, --max-age and --port only"),
        (["--page", "--defaults"], "--page takes --answers"),
        (["--page", "--write-answers", "-"], "--page takes --answers"),
        (["--port", "8123"], "--port is for --page"),
    ],
)
def test_options_that_are_not_for_the_page(
    tidemill: Tidemill, arguments: list[str], message: str
) -> None:
    done = tidemill("advise", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_port_that_is_taken(tidemill: Tidemill) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = tidemill("advise", "--page", "--port", str(port))
    assert done.returncode == 1
    assert f"port {port}: Address already in use" in done.stderr
    assert "--port 0 takes any free one" in done.stderr


# ---- at a terminal ------------------------------------------------------------------------------


def test_an_interview_with_a_way_back(tmp_path: Path) -> None:
    path = tmp_path / "case.toml"
    with Terminal(["advise", "--write-answers", str(path), "--json"], {}) as terminal:
        ask = terminal.expect
        ask(r"Enter takes the value")
        ask(r"Stage")
        ask(r"1 +trying")
        ask(r"\[trying\] $")
        terminal.send("3\n")  # by its number
        ask(r"engine is in use")
        terminal.send("?\n")
        ask(r"An id such as vllm")
        terminal.send("olama\n")
        ask(r"no engine 'olama' is known; did you mean ollama\?")
        terminal.send("ollama\n")
        ask(r"mostly do")
        terminal.send("<\n")  # back
        ask(r"engine is in use.*\n\[ollama\] $")
        terminal.send("none\n")
        ask(r"mostly do")
        terminal.send("rag\n")
        ask(r"same time")
        terminal.send("many\n")
        ask(r"load.peak_concurrency: 'many' is not a whole number")
        terminal.send("200\n")
        ask(r"How soon")
        terminal.send("\n")
        ask(r"first token at p99.*\n\[no limit\] $")
        terminal.send("500\n")
        ask(r"per token after it")
        terminal.send("\n")
        ask(r"bottleneck")
        terminal.send("\n")
        ask(r"several: numbers with commas")
        terminal.send("1, cpu-x86\n")
        ask(r"at the edge")
        terminal.send("\n")
        ask(r"How many GPUs")
        terminal.send("4\n")
        ask(r"Memory of one GPU")
        terminal.send("80\n")
        ask(r"Main memory")
        terminal.send("\n")
        ask(r"Who keeps it running")
        terminal.send("dedicated\n")
        ask(r"Which model")
        terminal.send("org/model\n")
        for _ in range(4):  # parameters, family, format, bits
            ask(r"\] $")
            terminal.send("\n")
        for _ in range(4):  # context, changes, operators, tokens
            ask(r"\] $")
            terminal.send("\n")
        ask(r"stay with you")
        terminal.send("perhaps\n")
        ask(r"neither yes nor no")
        terminal.send("y\n")
        ask(r"identify themselves")
        terminal.send("n\n")
        ask(r"cost per month")  # no audit without identities
        terminal.send("\n")
        assert terminal.finish() == 0
    answers = read(path.read_text(), "case.toml")
    assert answers.stage == "production"
    assert answers.current == "none"
    assert answers.workload == "rag"
    assert answers.peak_concurrency == 200
    assert answers.ttft_ms == 500
    assert answers.servers == ("nvidia", "cpu-x86")
    assert (answers.gpus, answers.gpu_memory_gb) == (4, 80)
    assert answers.stays_local
    assert '"class": "serving"' in terminal.text


def test_the_questions_are_not_in_the_report(tmp_path: Path) -> None:
    """stdout in a file: the questions still come to the terminal."""
    report = tmp_path / "report.txt"
    script = f"exec {sys.executable} -m tidemill advise > {report}"
    leader, follower = os.openpty()
    with subprocess.Popen(["sh", "-c", script], stdin=follower, stderr=follower) as process:
        os.write(leader, b"\n" * 40)
        assert process.wait(60) == 0
    os.close(follower)
    os.close(leader)
    text = report.read_text()
    assert text.startswith("Which inference engine, for this case")
    assert "Enter takes" not in text


def test_contradictions_are_asked_again() -> None:
    with Terminal(["advise", "--json"], {}) as terminal:
        terminal.expect(r"\[trying\] $")
        terminal.send("edge\n")
        terminal.expect(r"\[none\] $")
        terminal.send("\n")
        while True:
            shown = terminal.expect(r"\] $|cannot both be: .*")
            if "cannot both be" in shown:
                break
            terminal.send("\n")
        assert 'case.stage is "edge", but hardware.edge is empty' in shown
        terminal.expect(r"\[edge\] $")
        terminal.send("trying\n")
        terminal.expect(r"at the edge.*(.|\n)*\[none\] $")
        terminal.send("\n")
        assert terminal.finish() == 0
        assert '"llama.cpp"' in terminal.text


def test_who_tries_out_is_proposed_the_machine_at_hand() -> None:
    total = memory_budget().total
    assert total is not None
    with Terminal(["advise", "--json"], {}) as terminal:
        while "Main memory" not in terminal.expect(r"\] $"):
            terminal.send("\n")
        assert f"[{total / 1e9:.1f}".rstrip("0").rstrip(".") in terminal.text


def test_leaving_the_interview() -> None:
    with Terminal(["advise"], {}) as terminal:
        terminal.expect(r"\[trying\] $")
        terminal.send("\x04")  # Ctrl-D
        assert terminal.finish() == 130
    with Terminal(["advise"], {}) as terminal:
        terminal.expect(r"\[trying\] $")
        terminal.send("\x03")  # Ctrl-C
        assert terminal.finish() == 130
        assert "Traceback" not in terminal.text


def test_where_answers_are_to_go_is_tried_before_they_are_asked(tmp_path: Path) -> None:
    """Nobody answers thirty questions for nothing."""
    with Terminal(
        ["advise", "--write-answers", str(tmp_path / "no" / "case.toml")], {}
    ) as terminal:
        terminal.expect(r"No such file")
        assert "Enter takes the value" not in terminal.text
