"""The server's life: start, refusals to start, draining, a worker that dies, keys that change."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from support.serving import Server, Stream, events_of, paused, serving, until
from support.tiny_chat_model import write_chat_model
from tidemill.server.keys import digest_of

MESSAGES = [{"role": "user", "content": "Tell me a long story."}]
LONG = {
    "model": "tiny", "messages": MESSAGES, "max_tokens": 600, "ignore_eos": True, "temperature": 0,
    "stream": True,
}  # fmt: skip
SHORT = {**LONG, "max_tokens": 4, "stream": False}
OPTIONS = ("--name", "tiny", "--threads", "1")
ONE_BY_ONE = (*OPTIONS, "--max-sequences", "1")


def begun(server: Server) -> list[Stream]:
    """What a paused server of one sequence has to do: an answer, the next one, and one that waits
    for its turn."""
    streams = [Stream(server, LONG) for _ in range(3)]
    until(lambda: server.waiting() == 1)
    return streams


def failing(*arguments: str, **options: Any) -> tuple[int, str]:
    """A server that is not going to start."""
    ended = subprocess.run(
        [sys.executable, "-m", "tidemill", "serve", *arguments],
        capture_output=True, text=True, timeout=120, **options,
    )  # fmt: skip
    return ended.returncode, ended.stderr


def test_sigterm_lets_streams_end_and_takes_nothing_new(tiny_chat_model: Path) -> None:
    with serving(str(tiny_chat_model), *ONE_BY_ONE) as server:
        with paused(server):
            streams = begun(server)
            server.signal()
            until(lambda: server.get("/health/ready")[0] == 503)
            assert server.get("/health/live")[0] == 200
            status, headers, body = server.request("POST", "/v1/chat/completions", SHORT)
            assert (status, json.loads(body)["error"]["code"]) == (503, "draining")
            assert int(headers["retry-after"]) > 0
        for stream in streams:
            stream.join(60)
            *chunks, done = events_of(stream.data)
            assert done == "[DONE]"
            assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert server.wait() == 0


def test_a_second_signal_ends_it_at_once(tiny_chat_model: Path) -> None:
    with serving(str(tiny_chat_model), *ONE_BY_ONE) as server:
        with paused(server):
            streams = begun(server)
            server.signal(signal.SIGINT)
            until(lambda: server.get("/health/ready")[0] == 503)
            server.signal(signal.SIGINT)
            server.until_logged("cut off")
        server.wait()
        assert all(b"[DONE]" not in stream.data for stream in streams)


def test_draining_has_a_limit(tiny_chat_model: Path) -> None:
    with serving(str(tiny_chat_model), *ONE_BY_ONE, "--drain", "0.5") as server:
        with paused(server):
            streams = begun(server)
            server.signal()
            server.until_logged("cut off")
        server.wait()
        assert all(b"[DONE]" not in stream.data for stream in streams)


def test_a_worker_that_dies_takes_nobody_else_with_it(tmp_path: Path) -> None:
    model = write_chat_model(tmp_path / "long.gguf", context=8192)
    with serving(str(model), *OPTIONS) as server:
        before = server.post("/v1/chat/completions", SHORT)[1]["choices"]
        long = {**LONG, "max_tokens": 8000, "n": 24, "temperature": 1}  # which take many seconds
        stream = Stream(server, long)
        answers: list[Any] = []
        whole = threading.Thread(
            target=lambda: answers.append(
                server.post("/v1/chat/completions", {**long, "stream": False})
            )
        )
        whole.start()
        assert stream.begun.wait(60)
        until(lambda: server.metric("vllm:num_requests_running") > 24)
        (worker,) = server.workers()
        os.kill(worker, signal.SIGKILL)
        stream.join(60)
        whole.join(60)
        last = events_of(stream.data)[-1]
        assert last["error"]["code"] == "model_unavailable"
        assert "SIGKILL" in last["error"]["message"]
        assert answers[0][0] == 503
        assert answers[0][1]["error"]["code"] == "model_unavailable"
        # The front end has been there all along, and the model is back by itself.
        assert server.get("/health/live")[0] == 200
        until(lambda: server.get("/health/ready")[0] == 200)
        assert server.post("/v1/chat/completions", SHORT)[1]["choices"] == before
        assert server.workers() != [worker]


def test_workers_end_with_the_front_end(tiny_chat_model: Path) -> None:
    with serving(str(tiny_chat_model), *OPTIONS) as server:
        (worker,) = server.workers()
        server.process.kill()
        server.wait()
        until(lambda: not _alive(worker))


def _alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "State:\tZ" not in status


def test_a_request_has_a_time_limit(tiny_chat_model: Path) -> None:
    environment = {"TIDEMILL_REQUEST_SECONDS": "0.2"}
    with serving(str(tiny_chat_model), *ONE_BY_ONE, environment=environment) as server:
        body = {**LONG, "n": 64, "max_tokens": 900, "temperature": 1}  # which takes seconds
        status, answer = server.post("/v1/chat/completions", {**body, "stream": False})
        assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")
        # Of a stream it is an event, unless it was over before the stream had begun.
        _, _, data = server.request("POST", "/v1/chat/completions", body)
        assert b'"code":"deadline_exceeded"' in data
        until(server.idle)


def test_models_load_when_asked_for_and_leave_when_idle(
    tiny_chat_model: Path, tmp_path: Path
) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(
        f"""
        keep_alive_seconds = 2.0
        max_loaded = 1
        [[models]]
        source = "{tiny_chat_model}"
        name = "one"
        preload = false
        threads = 1
        [[models]]
        source = "{tiny_chat_model}"
        name = "two"
        aliases = ["second"]
        preload = false
        threads = 1
        """
    )
    with serving("--config", str(config)) as server:
        assert server.workers() == []
        answers: list[int] = []

        def ask(model: str) -> None:
            answers.append(server.post("/v1/chat/completions", {**SHORT, "model": model})[0])

        asking = [threading.Thread(target=ask, args=["one"]) for _ in range(5)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        assert answers == [200] * 5
        ask("second")
        assert answers[-1] == 200
        assert len(server.workers()) <= 1  # the first one made room, and this one may leave as well
        until(lambda: server.workers() == [])
        assert server.get("/health/ready")[0] == 200
        ask("one")
        assert answers[-1] == 200
        server.stop()
        # Once for all five, and again after the second one. (Between slow clients it may be idle.)
        idle = server.log.count("unloading one, idle")
        assert 2 <= server.log.count("one: loaded in process") <= 2 + idle


def test_keys_are_needed_and_read_again(tiny_chat_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"

    def new_key(*arguments: str) -> str:
        made = subprocess.run(
            [sys.executable, "-m", "tidemill", "key", "new", "-f", str(file), *arguments],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        return made.stdout.strip()

    first = new_key("editor")
    assert first not in file.read_text()
    assert digest_of(first) in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    with serving(str(tiny_chat_model), *OPTIONS, "--api-key-file", str(file)) as server:

        def ask(key: str | None, header: str = "Authorization") -> tuple[int, Any]:
            value = f"Bearer {key}" if header == "Authorization" else key
            headers = {} if key is None else {header: str(value)}
            return server.post("/v1/chat/completions", SHORT, headers=headers)

        assert ask(first)[0] == 200
        assert ask(first, "X-Api-Key")[0] == 200
        for wrong in (None, "", "x", first + "x", digest_of(first)):
            status, answer = ask(wrong)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert server.get("/health/ready")[0] == 200  # probes have no key
        assert server.request("GET", "/metrics")[0] == 401
        second = new_key("other", "--model", "elsewhere")
        until(lambda: ask(second)[0] == 403)
        assert ask(second)[1]["error"]["code"] == "model_not_allowed"
        headers = {"Authorization": f"Bearer {second}"}
        assert json.loads(server.request("GET", "/v1/models", None, headers)[2])["data"] == []
        for api in ({}, {"anthropic-version": "2023-06-01"}):  # nor is it told of one
            assert server.request("GET", "/v1/models/tiny", None, headers | api)[0] == 403
        before = file.read_text()
        file.write_text("this is not TOML")
        # It is looked at when somebody comes.
        until(lambda: ask(first)[0] == 200 and "keys stay as they were" in server.log)
        file.write_text(before.split("\n\n")[1])
        until(lambda: ask(first)[0] == 401)
        assert ask(second)[0] == 403


def test_a_start_that_cannot_be_says_why(tiny_chat_model: Path, tmp_path: Path) -> None:
    missing = tmp_path / "no.gguf"
    code, text = failing(str(missing), "--port", "0")
    assert code == 1
    assert str(missing) in text
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny_chat_model.read_bytes()[:1000])
    code, text = failing(str(broken), "--port", "0")
    assert (code, "broken" in text) == (1, True)
    code, text = failing(str(tiny_chat_model), "--port", "0", "--host", "0.0.0.0")
    assert (code, "--api-key-file" in text) == (1, True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, text = failing(str(tiny_chat_model), "--port", port)
    assert (code, f"port {port}" in text, "in use" in text) == (1, True, True)
    code, text = failing(str(tiny_chat_model), "--port", "0", "--kv-memory", "1")
    assert code == 1
    assert "Traceback" not in text
    code, text = failing("--port", "0")
    assert (code, "MODEL" in text) == (2, True)


def test_a_model_that_cannot_be_loaded_ends_the_start(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"no model at all")
    server = Server([str(file), *OPTIONS])
    assert server.wait(60) == 1
    server.stop()
    assert "tidemill: error: " in server.lines[-1]
    assert "cannot be loaded: " in server.lines[-1]
    assert "not a GGUF file" in server.lines[-1]
    assert "internal error" not in server.log


def test_ctrl_c_while_loading(tiny_chat_model: Path) -> None:
    server = Server([str(tiny_chat_model), *OPTIONS])
    try:
        server.until_logged(": loading")
        server.signal(signal.SIGINT)
        assert server.wait() in (0, 130)
        assert "Traceback" not in server.log
    finally:
        server.stop()


def test_print_config_shows_all_sources(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('port = 1\nhost = "::1"\nmax_waiting = 7\n')
    shown = subprocess.run(
        [sys.executable, "-m", "tidemill", "serve", "--config", str(config), "--print-config",
         "--max-waiting", "9", "some/model.gguf"],
        capture_output=True, text=True, check=True, timeout=60,
        env={**os.environ, "TIDEMILL_PORT": "2", "TIDEMILL_MAX_WAITING": "8"},
    ).stdout  # fmt: skip
    assert "port = 2\n" in shown
    assert 'host = "::1"\n' in shown
    assert "max_waiting = 9\n" in shown
    assert 'name = "model"\n' in shown


@pytest.mark.parametrize("origin", ["https://app.example", "https://other.example"])
def test_other_origins_only_where_allowed(tiny_chat_model: Path, origin: str) -> None:
    arguments = (str(tiny_chat_model), *OPTIONS, "--allow-origin", "https://app.example")
    with serving(*arguments) as server:
        _, headers, _ = server.request("GET", "/v1/models", None, {"Origin": origin})
        allowed = headers.get("access-control-allow-origin")
        assert allowed == (origin if origin == "https://app.example" else None)
