"""What is logged, in which form, and what is not."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.serving import Server, begin_request, port_of, serving, until
from tidemill.server.logs import JsonFormatter, LogWriter, TextFormatter, where_from
from tidemill.server.serve import _on_loop_error

SECRET = "xyzzyplugh"
CHAT = {"model": "tiny", "max_tokens": 4, "temperature": 0}
NASTY = "a\nINFO b\r\x1b[31m\x85\u2028\u202e\ud800"


def record(message: str, error: BaseException | None = None, **extra: object) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("tidemill.x", logging.INFO, "file.py", 3, message, (), info)
    vars(made).update(extra)
    return made


def raised(words: str) -> BaseException:
    try:
        try:
            raise KeyError(words)
        except KeyError as cause:
            raise ValueError(f"{words} is wrong") from cause
    except ValueError as error:
        return error


# ---- forms


def test_text_stays_on_its_line() -> None:
    line = TextFormatter().format(record(NASTY, model=NASTY, status=200, plain="a/b:c"))
    assert line.isprintable()
    assert " INFO a\\nINFO b\\r\\x1b[31m\\x85\\u2028\\u202e\\ud800 " in line
    assert line.endswith(" status=200 plain=a/b:c")


@pytest.mark.parametrize("value", ["two words", "", "a=b", 'say "x"', ["a", "b c"]])
def test_a_value_can_be_told_from_what_follows_it(value: object) -> None:
    line = TextFormatter().format(record("m", key=value, next=1))
    found = re.search(r" key=(.*) next=1$", line)
    assert found is not None
    assert json.loads(found[1]) == value


def test_json_is_one_ascii_object_a_line() -> None:
    line = JsonFormatter().format(record(NASTY, model=NASTY, odd={1, 2}))
    assert line.isascii()
    assert "\n" not in line
    found = json.loads(line)
    assert (found["message"], found["model"], found["level"]) == (NASTY, NASTY, "info")
    assert found["time"].endswith("Z")


@pytest.mark.parametrize("form", [TextFormatter, JsonFormatter])
def test_an_exception_s_words_are_left_out_unless_asked_for(
    form: type[TextFormatter] | type[JsonFormatter],
) -> None:
    error = raised(SECRET)
    line = form().format(record("it failed", error))
    assert SECRET not in line
    for wanted in ("KeyError", "ValueError", "test_logs.py", "in raised"):
        assert wanted in line
    assert f"{SECRET} is wrong" in form(True).format(record("it failed", error))


def test_no_line_of_a_traceback_looks_like_one_of_the_log() -> None:
    error = raised("x\n2026-01-31 12:00:00 INFO all is well")
    lines = TextFormatter(True).format(record("it failed", error)).splitlines()
    assert len(lines) > 5
    assert all(line.startswith("    ") for line in lines[1:])


def test_a_chain_of_exceptions_ends() -> None:
    error: Exception = ValueError("0")
    for _ in range(100):
        above = ValueError()
        above.__cause__ = error
        error = above
    assert where_from(error).count("ValueError") < 20


# ---- the writer


class Pipe:
    """A log on a pipe of 64 KiB."""

    def __init__(self, most_characters: int = 1 << 20) -> None:
        self.reader, writer = os.pipe()
        self.log = LogWriter(writer, most_characters)
        self.log.setFormatter(logging.Formatter("%(message)s"))

    def read(self, n: int = 1 << 20) -> bytes:
        return os.read(self.reader, n)


def test_lines_come_in_order_and_whole() -> None:
    pipe = Pipe()
    lines = [f"{i} {'é' * (i % 50)}" for i in range(500)]
    for line in lines:
        pipe.log.emit(record(line))
    pipe.log.flush()
    got = b""
    while got.count(b"\n") < len(lines):  # flush() does not wait for ever
        got += pipe.read()
    assert got.decode().splitlines() == lines


def test_who_does_not_read_keeps_nobody_waiting_and_is_told_what_was_dropped() -> None:
    pipe = Pipe(most_characters=20_000)
    for i in range(1000):
        pipe.log.emit(record(f"{i} {'x' * 2000}"))  # 2 MB into a pipe of 64 KiB
    pipe.log.flush()  # ends
    got = bytearray()

    def told() -> bool:
        got.extend(pipe.read())
        pipe.log.emit(record("still there"))
        return b"lines of the log were dropped" in got

    until(told)
    dropped = sum(int(n) for n in re.findall(rb"(\d+) lines of the log were dropped", got))
    numbered = len(re.findall(rb"(?m)^\d+ x", got))
    assert dropped > 900
    assert numbered + dropped >= 1000


def test_a_closed_pipe_hurts_nobody() -> None:
    pipe = Pipe()
    os.close(pipe.reader)
    for i in range(100):
        pipe.log.emit(record(str(i)))
    pipe.log.flush()


def test_a_line_that_cannot_be_made_is_told() -> None:
    pipe = Pipe()
    broken = record("%d")
    broken.args = ("no number",)
    pipe.log.emit(broken)
    pipe.log.flush()
    assert b"cannot be formatted" in pipe.read()


# ---- a server's log


@pytest.fixture(scope="module")
def logged(endless: tuple[str, ...]) -> Iterator[Server]:
    options = ("--name", "tiny", "--threads", "1", "--log-format", "json")
    with serving(*endless, *options) as found:
        yield found


def line_of(server: Server, id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.until_logged(id))
    return found


def test_an_access_line_tells_what_a_request_was_given(logged: Server) -> None:
    body = CHAT | {"messages": [{"role": "user", "content": "Hello, hello, hello, hello."}]}
    for id in ("first-time", "second-time"):
        assert logged.post("/v1/chat/completions", body, headers={"X-Request-Id": id})[0] == 200
    first, second = line_of(logged, "first-time"), line_of(logged, "second-time")
    assert first["message"] == "POST /v1/chat/completions 200"
    assert (first["request_id"], first["tenant"], first["model"]) == (
        "first-time", "anybody", "tiny",
    )  # fmt: skip
    assert (first["status"], first["output_tokens"], first["finish"]) == (200, 4, "length")
    assert 0 <= first["queue"] <= first["ttft"] <= first["duration"]
    assert first["cached_tokens"] == 0
    assert second["prompt_tokens"] == first["prompt_tokens"]
    assert second["cached_tokens"] > 0


def test_a_refused_request_s_line_has_its_error(logged: Server) -> None:
    headers = {"X-Request-Id": "refused-one"}
    logged.post("/v1/chat/completions", CHAT | {"model": "no", "messages": []}, headers=headers)
    line = line_of(logged, "refused-one")
    assert (line["status"], line["error"]) == (404, "model_not_found")
    assert "model" not in line


def test_a_client_that_left_is_an_abort(logged: Server) -> None:
    body = CHAT | {"messages": [{"role": "user", "content": "x"}], "max_tokens": 60_000}
    body |= {"n": 8, "ignore_eos": True, "temperature": 1}
    connection = begin_request(logged, "/v1/chat/completions", body)
    until(lambda: logged.metric("vllm:num_requests_running") > 0)
    connection.close()
    line = json.loads(logged.until_logged('"status": 499'))
    assert line["finish"] == "abort"


def test_requests_cannot_write_lines_of_their_own(tiny_chat_model: Path) -> None:
    with serving(str(tiny_chat_model), "--name", "tiny", "--threads", "1") as server:
        server.request("GET", "/v1/models/x%0a2026-01-31%20INFO%20forged%1b[31m")
        server.request("GET", "/v1/models", headers={"X-Request-Id": "forged id=2"})
        server.until_logged("/v1/models ")
        assert all(line.isprintable() for line in server.lines)
        assert not any(line.startswith("2026-01-31") for line in server.lines)
        assert "forged id" not in server.log


REQUESTS: tuple[tuple[str, object], ...] = (
    ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": SECRET}]}),
    ("/v1/chat/completions", CHAT | {"messages": [{"role": SECRET, "content": SECRET}]}),
    ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": SECRET}],
                                     "stream": True}),
    ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": SECRET * 5000}]}),
    ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": "x"}],
                                     "stop": SECRET, SECRET: 1}),
    ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": "x"}],
                                     "guided_regex": f"({SECRET}"}),
    ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": "x"}], "tools": [
        {"type": "function", "function": {"name": SECRET, "parameters": {"type": SECRET}}}]}),
    ("/v1/completions", {"model": "tiny", "prompt": SECRET, "max_tokens": 2, "echo": True}),
    ("/v1/completions", {"model": "tiny", "prompt": [SECRET, 1]}),
    ("/v1/completions", {"model": SECRET, "prompt": "x"}),
    ("/v1/responses", {"model": "tiny", "input": SECRET, "max_output_tokens": 16}),
    ("/v1/messages", {"model": "tiny", "max_tokens": 2, "system": SECRET,
                      "messages": [{"role": "user", "content": SECRET}]}),
    ("/api/generate", {"model": "tiny", "prompt": SECRET, "options": {"num_predict": 2}}),
    ("/tokenize", {"model": "tiny", "prompt": SECRET}),
    ("/v1/chat/completions", f'{{"model": "{SECRET}'.encode()),
)  # fmt: skip


def test_no_word_of_a_prompt_is_ever_logged(tiny_chat_model: Path) -> None:
    options = ("--name", "tiny", "--threads", "1", "--log-level", "debug")
    with serving(str(tiny_chat_model), *options) as server:
        statuses = [server.request("POST", path, body)[0] for path, body in REQUESTS]
        assert statuses.count(200) >= 6
        assert max(statuses) < 500
        server.request("GET", "/health/live", headers={"X-Request-Id": "last"})
        server.stop()
        assert len([line for line in server.lines if " POST " in line]) == len(REQUESTS)
        assert SECRET not in server.log


def test_a_bug_s_words_are_not_logged_either(tiny_chat_model: Path, tmp_path: Path) -> None:
    # A handler that fails with what it was given, as a bug would.
    (tmp_path / "sitecustomize.py").write_text(
        "import asyncio\n"
        "from tidemill.server.prompting import Prompting\n"
        "def fail(self, messages, *a, **k):\n"
        "    raise KeyError(str(messages))\n"
        "Prompting.chat = fail\n"
    )
    environment = {"PYTHONPATH": str(tmp_path)}
    body = CHAT | {"messages": [{"role": "user", "content": SECRET}]}
    options = ("--name", "tiny", "--threads", "1")
    with serving(str(tiny_chat_model), *options, environment=environment) as server:
        assert server.post("/v1/chat/completions", body)[0] == 500
        server.until_logged("KeyError")
        server.stop()
        assert "sitecustomize.py" in server.log
        assert SECRET not in server.log


def test_what_asyncio_reports_has_no_words_either(caplog: pytest.LogCaptureFixture) -> None:
    error = raised(SECRET)
    _on_loop_error(None, {"message": "it was never awaited", "exception": error, "future": SECRET})
    (found,) = caplog.records
    line = JsonFormatter().format(found)
    assert "it was never awaited" in line
    assert "ValueError" in line
    assert SECRET not in line


@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-"])
def test_a_server_without_a_place_for_its_log_serves(tiny_chat_model: Path, stderr: str) -> None:
    command = [sys.executable, "-m", "tidemill", "serve", "--port", "0", "--threads", "1",
               "--name", "tiny", str(tiny_chat_model)]  # fmt: skip
    server = Server.__new__(Server)
    server.process = subprocess.Popen(["sh", "-c", f"exec {shlex.join(command)} {stderr}"])
    try:
        until(lambda: is_ready(server), seconds=120)
        body = {"model": "tiny", "prompt": "x", "max_tokens": 1}
        assert server.request("POST", "/v1/completions", body)[0] == 200
        server.signal()
        assert server.wait(60) == 0
    finally:
        server.stop()


def is_ready(server: Server) -> bool:
    assert server.process.poll() is None
    server.port = port_of(server.process.pid)
    try:
        return server.request("GET", "/health/ready")[0] == 200
    except OSError:
        return False


def test_prompts_and_answers_where_they_are_asked_for(tiny_chat_model: Path) -> None:
    options = ("--name", "tiny", "--threads", "1", "--log-format", "json", "--log-prompts")
    with serving(str(tiny_chat_model), *options) as server:
        body = CHAT | {"messages": [{"role": "user", "content": SECRET}]}
        status, answer = server.post("/v1/chat/completions", body)
        assert status == 200
        line = json.loads(server.until_logged("chat/completions"))
        assert SECRET in line["prompts"][0]
        assert line["answers"] == [answer["choices"][0]["message"]["content"]]
        server.post("/v1/completions", {"model": "tiny", "prompt": [5, 6], "max_tokens": 1})
        assert json.loads(server.until_logged("/v1/completions"))["prompts"] == [[5, 6]]


def test_a_worker_s_log_is_the_server_s(tiny_chat_model: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from tidemill.engine.engine import Engine\n"
        "def fail(self, now):\n"
        f"    raise ValueError('{SECRET[:5]}' '{SECRET[5:]}')\n"
        "Engine.step = fail\n"
    )
    options = ("--name", "tiny", "--threads", "1", "--log-format", "json")
    environment = {"PYTHONPATH": str(tmp_path)}
    with serving(str(tiny_chat_model), *options, environment=environment) as server:
        body = CHAT | {"messages": [{"role": "user", "content": "x"}]}
        assert server.post("/v1/chat/completions", body)[0] == 500
        line = json.loads(server.until_logged("step failed"))
        assert line["level"] == "error"
        assert line["worker"] in server.workers()
        assert "ValueError" in line["traceback"]
        assert SECRET not in server.log


# ---- nobody reads the log


@contextmanager
def unread(model: Path) -> Iterator[Server]:
    """A server whose stderr is read until it is ready, and then not any more."""
    server = Server.__new__(Server)
    server.process = subprocess.Popen(
        [sys.executable, "-m", "tidemill", "serve", "--port", "0", str(model), "--name", "tiny",
         "--threads", "1", "--log-level", "debug"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, bufsize=0,
    )  # fmt: skip
    assert server.process.stderr is not None
    timer = threading.Timer(120, server.process.kill)
    timer.start()
    try:
        said = b""
        while (found := re.search(rb"http://127\.0\.0\.1:(\d+)/", said)) is None:
            said += server.process.stderr.read(1) or pytest.fail(said.decode())
        server.port = int(found[1])
        timer.cancel()
        yield server
    finally:
        timer.cancel()
        server.process.terminate()
        try:
            assert server.process.wait(60) in (0, -15)
        finally:
            server.process.kill()
            server.process.stderr.close()


def many(server: Server) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1}
    long = {"X-Request-Id": "i" * 128}
    for _ in range(400):  # with lines of 300 bytes and more
        assert server.request("POST", "/v1/completions", body, headers=long)[0] == 200


def test_a_full_pipe_holds_no_request_up(tiny_chat_model: Path) -> None:
    with unread(tiny_chat_model) as server:
        many(server)


def test_a_pipe_that_was_closed_fails_no_request(tiny_chat_model: Path) -> None:
    with unread(tiny_chat_model) as server:
        assert server.process.stderr is not None
        server.process.stderr.close()
        many(server)
