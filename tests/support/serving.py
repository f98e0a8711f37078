"""A real server as a process of its own, and the means to ask it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.waiting import until as until
from tidemill.server.keys import digest_of

_READY = re.compile(r"serving .* at http://([\d.]+):(\d+)/v1")


class Server:
    """``tidemill serve`` with the given arguments; ``until_ready`` waits until it is. ``under`` is
    a command that runs it, such as ``prlimit``."""

    key: str | None = None
    """What to ask with."""

    _reader: threading.Thread | None = None

    def __init__(
        self,
        arguments: Sequence[str],
        environment: dict[str, str] | None = None,
        under: Sequence[str] = (),
    ) -> None:
        self.lines: list[str] = []
        self.port = 0
        self._changed = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            [*under, sys.executable, "-m", "tidemill", "serve", "--port", "0", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                if found := _READY.search(line):
                    self.port = int(found[2])
                self._changed.notify_all()
        with self._changed:  # it has ended, or is about to
            self._ended = True
            self._changed.notify_all()

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def until_ready(self, seconds: float = 120.0) -> Server:
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self.port:
                assert not self._ended, self.log
                assert self._changed.wait(deadline - time.monotonic()), self.log
        return self

    def until_logged(self, pattern: str, seconds: float = 60.0) -> str:
        """The first line of the log that has ``pattern``."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                for line in self.lines:
                    if re.search(pattern, line):
                        return line
                assert not self._ended, self.log
                assert self._changed.wait(deadline - time.monotonic()), self.log

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 60.0) -> int:
        """Until it has ended, and its log has been read to its end."""
        code = self.process.wait(seconds)
        if self._reader is not None:
            self._reader.join(seconds)  # until its workers, which have the same log, end too
        return code

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.wait()

    # ---- asking

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        seconds: float = 120.0,
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (names in lower case) and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            given = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
            connection.request(method, path, data, {**given, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read()
        finally:
            connection.close()

    def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        status, _, data = self.request("POST", path, body, **options)
        return status, json.loads(data)

    def get(self, path: str) -> tuple[int, Any]:
        status, _, data = self.request("GET", path)
        return status, json.loads(data)

    def metric(self, name: str, **labels: str) -> float:
        """A sample of /metrics; 0 if there is none."""
        _, _, data = self.request("GET", "/metrics")
        for line in data.decode().splitlines():
            found = re.match(r"([\w:]+)(?:\{(.*)\})? (\S+)$", line)
            if found and found[1] == name:
                given = dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
                if all(given.get(key) == value for key, value in labels.items()):
                    return float(found[3])
        return 0.0

    def workers(self) -> list[int]:
        """Process ids of the models' workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def waiting(self) -> float:
        """Requests that wait for their turn; told also while a model is paused."""
        return self.metric("vllm:num_requests_waiting")

    def idle(self) -> bool:
        return (
            self.metric("vllm:num_requests_running") == 0
            and self.waiting() == 0
            and self.metric("vllm:kv_cache_usage_perc") == 0
        )

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


def port_of(process: int) -> int:
    """The port at which a process listens, as the system has chosen it; 0 until it does. For a
    server that cannot tell it: one chosen here could be another's before the server has it."""
    sockets = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            sockets.add(os.readlink(link))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == "0A" and f"socket:[{inode}]" in sockets:
            return int(local.partition(":")[2], 16)
    return 0


def write_keys(file: Path, *names: str, **settings: str) -> None:
    """A file of tenants whose keys are their names. ``settings``: more lines for some of them."""
    file.write_text(
        "".join(
            f'[[tenants]]\nname = "{name}"\nsha256 = ["{digest_of(name)}"]\n'
            f"{settings.get(name, '')}\n"
            for name in names
        )
    )


def by_key(key: str) -> dict[str, str]:
    """The header of a request with that key."""
    return {"Authorization": f"Bearer {key}"}


def send_request(connection: socket.socket, path: str, body: Any, key: str = "") -> None:
    """Write a POST by hand, for clients that then misbehave."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {key}\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)


def begin_request(server: Server, path: str, body: Any, key: str = "") -> socket.socket:
    """A connection on which a request has been sent, and nothing read yet."""
    connection = server.connect()
    send_request(connection, path, body, key)
    return connection


def openai_text(server: Server, messages: Any, **options: Any) -> str:
    """The greedy answer of OpenAI's route, which other APIs' answers are held against."""
    body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 24, **options}
    status, answer = server.post("/v1/chat/completions", body)
    assert status == 200, answer
    return str(answer["choices"][0]["message"]["content"])


class Stream(threading.Thread):
    """Reads a streamed answer to its end; ``begun`` once there is something of it."""

    def __init__(self, server: Server, body: Any, path: str = "/v1/chat/completions") -> None:
        super().__init__(daemon=True)
        self._connection = server.connect()
        send_request(self._connection, path, body)
        self.data = b""
        self.begun = threading.Event()
        self.start()

    def run(self) -> None:
        with self._connection as connection:
            while True:
                try:
                    part = connection.recv(65536)
                except OSError:
                    return
                if not part:
                    return
                self.data += part
                if b"data: " in self.data:
                    self.begun.set()
                if self.data.endswith(b"\r\n0\r\n\r\n"):  # also of one that ends with an error
                    return


def events_of(data: bytes) -> list[Any]:
    """The JSON of each server-sent event; the end mark as the string that it is."""
    found = []
    for line in data.decode().split("\n"):
        if line.startswith("data: "):
            text = line.removeprefix("data: ")
            found.append(text if text == "[DONE]" else json.loads(text))
    return found


@contextmanager
def paused(server: Server) -> Iterator[None]:
    """The models stand still meanwhile: what is under way goes no further, however slow or fast
    the machine is."""
    workers = server.workers()
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextmanager
def serving(
    *arguments: str, environment: dict[str, str] | None = None, under: Sequence[str] = ()
) -> Iterator[Server]:
    """A server that is ready, stopped at the end."""
    server = Server(arguments, environment, under)
    try:
        yield server.until_ready()
    finally:
        server.stop()
