"""What breaks around the server: processes that are killed, full disks, clocks that jump, limits of
the system. Each request is answered, in full or with an error that says what happened."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support.serving import Server, Stream, events_of, port_of, serving, until

MESSAGES = [{"role": "user", "content": "Tell me a long story."}]
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "messages": MESSAGES, "max_tokens": 200, "ignore_eos": True, "temperature": 0,
}  # fmt: skip
OPTIONS = ("--name", "tiny", "--threads", "1")


class Load:
    """Clients that ask ``model`` again and again, half of them for streams, and count how it ends:
    "whole", an error's code, or "refused" where there is no server any more."""

    def __init__(self, server: Server, model: str = "tiny", clients: int = 4) -> None:
        self.ends: Counter[str] = Counter()
        self._server = server
        self._body = {**BODY, "model": model}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=[i % 2 == 0], daemon=True)
            for i in range(clients)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, stream: bool) -> None:
        while not self._stop.is_set():
            end = self._ask(stream)
            with self._lock:
                self.ends[end] += 1
            if end == "refused":
                time.sleep(0.02)

    def _ask(self, stream: bool) -> str:
        try:
            status, _, data = self._server.request(
                "POST", CHAT, {**self._body, "stream": stream}, seconds=60
            )
        except TimeoutError:
            return "hung"
        except OSError:
            return "refused"
        except Exception as error:  # an answer that broke off without a word
            return type(error).__name__
        if status != 200:
            return str(json.loads(data)["error"]["code"])
        if not stream:
            return "whole" if json.loads(data)["usage"]["completion_tokens"] == 200 else "cut"
        last = events_of(data)[-1]
        return "whole" if last == "[DONE]" else str(last["error"]["code"])

    def until_whole(self, more: int) -> None:
        wanted = self.ends["whole"] + more
        until(lambda: self.ends["whole"] >= wanted)

    def stop(self) -> Counter[str]:
        self._stop.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive()
        return self.ends


def test_a_worker_killed_under_load(tiny_chat_model: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(
        "".join(
            f'[[models]]\nsource = "{tiny_chat_model}"\nname = "{name}"\nthreads = 1\n'
            for name in ("one", "two")
        )
    )
    with serving("--config", str(config)) as server:
        loads = {name: Load(server, name) for name in ("one", "two")}
        for load in loads.values():
            load.until_whole(4)
        process = json.loads(server.request("GET", "/admin/models/one")[2])["process"]
        for _ in range(2):
            os.kill(process, signal.SIGKILL)
            until(lambda gone=process: not _alive(gone))
            loads["two"].until_whole(4)
            loads["one"].until_whole(5)  # more than had been answered before: it is back by itself
            process = json.loads(server.request("GET", "/admin/models/one")[2])["process"]
        killed, other = loads["one"].stop(), loads["two"].stop()
        assert set(other) == {"whole"}
        assert set(killed) == {"whole", "model_unavailable"}
        until(server.idle)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_front_end_ended_under_load(tiny_chat_model: Path, number: signal.Signals) -> None:
    with serving(str(tiny_chat_model), *OPTIONS) as server:
        (worker,) = server.workers()
        load = Load(server)
        load.until_whole(8)
        server.signal(number)
        code = server.wait()
        until(lambda: not _alive(worker))
        ends = load.stop()
        assert "hung" not in ends
        if number == signal.SIGTERM:
            assert code == 0
            assert set(ends) <= {"whole", "draining", "refused"}


def _alive(pid: int) -> bool:
    with suppress(OSError):
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


# ---- no room


def test_a_log_that_cannot_be_written(tiny_chat_model: Path, tmp_path: Path) -> None:
    """Nor can anything be kept on disk: packed weights, for one."""
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            ["prlimit", "--fsize=0", sys.executable, "-m", "tidemill", "serve",
             str(tiny_chat_model), *OPTIONS, "--port", "0", "--log-format", "json"],
            stdin=subprocess.DEVNULL, stdout=full, stderr=full,
            env={**os.environ, "TIDEMILL_HOME": str(tmp_path / "home")},
        )  # fmt: skip
    try:
        body = json.dumps({**BODY, "model": "tiny"}).encode()
        answers: list[int] = []

        def asked() -> bool:
            assert process.poll() is None
            if not (port := port_of(process.pid)):
                return False
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 30) as c:
                head = f"POST {CHAT} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n"
                c.sendall(head.encode() + body)
                answers.append(int(c.makefile("rb").read().split()[1]))
            return answers[-1:] == [200]

        until(asked)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(60)


def test_a_key_that_cannot_be_written_leaves_the_others(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    command = [sys.executable, "-m", "tidemill", "key", "new", "-f", str(file)]
    subprocess.run([*command, "one"], check=True, capture_output=True, timeout=120)
    before = file.read_bytes()
    failed = subprocess.run(
        ["prlimit", f"--fsize={len(before) + 20}", *command, "two"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert failed.returncode != 0
    assert "Traceback" not in failed.stderr
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_no_more_files_can_be_opened(tiny_chat_model: Path) -> None:
    """Connections beyond the limit wait, or are closed; those that are there are served, and the
    server is as before when there is room again."""
    with serving(str(tiny_chat_model), *OPTIONS, under=("prlimit", "--nofile=64")) as server:
        stream = Stream(server, {**BODY, "model": "tiny", "stream": True, "max_tokens": 900})
        assert stream.begun.wait(60)
        held = [server.connect() for _ in range(100)]
        stream.join(60)
        assert b"[DONE]" in stream.data
        for connection in held:
            connection.close()
        until(lambda: _served(server))
        assert server.process.poll() is None
        assert server.workers()


def _served(server: Server) -> bool:
    with suppress(OSError):
        body = {**BODY, "model": "tiny", "max_tokens": 4}
        return server.request("POST", CHAT, body, seconds=30)[0] == 200
    return False


# ---- clocks

JUMPING = """
import os, time
_time, _file = time.time, os.environ["CLOCK_OFFSET"]
def jumping():
    with open(_file) as offset:
        return _time() + float(offset.read())
time.time = jumping
"""


@contextmanager
def jumping(folder: Path, *arguments: str, **environment: str) -> Iterator[tuple[Server, Path]]:
    """A server, all processes of which read the time of day with the offset in the file."""
    (folder / "sitecustomize.py").write_text(JUMPING)
    offset = folder / "offset"
    offset.write_text("0")
    variables = {"PYTHONPATH": str(folder), "CLOCK_OFFSET": str(offset), **environment}
    with serving(*arguments, environment=variables) as server:
        yield server, offset


def test_a_clock_that_jumps(tiny_chat_model: Path, tmp_path: Path) -> None:
    """Nothing is timed by the time of day: no deadline passes, no idle model leaves."""
    variables = {"TIDEMILL_KEEP_ALIVE_SECONDS": "300", "TIDEMILL_REQUEST_SECONDS": "300"}
    with jumping(tmp_path, str(tiny_chat_model), *OPTIONS, **variables) as (server, offset):
        workers = server.workers()
        body = {**BODY, "model": "tiny", "stream": True, "max_tokens": 900}
        for jump in (3e8, -3e8, 86400.0):
            stream = Stream(server, body)
            assert stream.begun.wait(60)
            offset.with_suffix(".new").write_text(str(jump))
            offset.with_suffix(".new").rename(offset)
            stream.join(60)
            done = events_of(stream.data)[-1]
            assert done == "[DONE]"
            status, answer = server.post(CHAT, {**BODY, "model": "tiny", "max_tokens": 4})
            assert status == 200
            assert abs(answer["created"] - time.time() - jump) < 3600  # it was read anew
        assert server.metric("vllm:e2e_request_latency_seconds_sum", model_name="tiny") < 300
        assert server.workers() == workers
        assert server.get("/health/ready")[0] == 200
