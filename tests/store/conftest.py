"""A store in a temporary folder, and loopback servers that speak HTTP ranges and the Hub's API."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tidemill.store import hub, transfer

COMMIT = "c0ffee" + "0" * 34
WAIT_SECONDS = 60


@pytest.fixture(autouse=True)
def store_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point the store, pip and the Hub client at nothing but this test's own folder."""
    for name in list(os.environ):
        if name.startswith(("TIDEMILL_", "HF_", "PIP_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    home = tmp_path / "store"
    monkeypatch.setenv("TIDEMILL_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(transfer, "RETRY_DELAYS_SECONDS", (0.0,) * 4)
    monkeypatch.setattr(hub, "RETRY_DELAYS_SECONDS", (0.0,) * 4)
    return home


def gguf_bytes(size: int, seed: int = 0) -> bytes:
    """Content that starts as a GGUF file does and cannot be compressed or confused."""
    return (b"GGUF" + hashlib.shake_128(b"%d" % seed).digest(size))[:size]


@pytest.fixture
def make_gguf() -> Callable[..., bytes]:
    return gguf_bytes


@dataclass
class Request:
    method: str
    path: str
    headers: Message
    sent: int = 0


@dataclass
class Behaviour:
    """What a server does to the content of one file, beyond serving it."""

    # Bytes after which a response stops: until `resume` is set, or for good by `drop`.
    stall_after: int | None = None
    drop_after: int | None = None
    drops_left: int = 0
    resume: threading.Event = field(default_factory=threading.Event)
    stalled: threading.Event = field(default_factory=threading.Event)
    statuses: list[int] = field(default_factory=list)
    ranges: bool = True
    etag: str | None = None
    ignores_if_range: bool = False
    chunked: bool = False
    encoding: str | None = None
    overlong: bytes = b""


class Server:
    """Serves ``files`` by path; ``requests`` is what was asked and how much was sent."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.behaviours: dict[str, Behaviour] = {}
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: Any) -> None:
                pass

            def do_GET(self) -> None:
                server.answer(self, body=True)

            def do_HEAD(self) -> None:
                server.answer(self, body=False)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        for behaviour in self.behaviours.values():
            behaviour.resume.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def behave(self, path: str, **settings: Any) -> Behaviour:
        self.behaviours[path] = Behaviour(**settings)
        return self.behaviours[path]

    def sent(self, path: str) -> int:
        """Body bytes of ``path`` that were handed to the network so far."""
        with self._lock:
            return sum(r.sent for r in self.requests if r.path == path and r.method == "GET")

    def gets(self, path: str) -> list[Request]:
        with self._lock:
            return [r for r in self.requests if r.path == path and r.method == "GET"]

    def answer(self, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(urlsplit(handler.path).path)
        request = Request("GET" if body else "HEAD", path, handler.headers)
        with self._lock:
            self.requests.append(request)
        self.route(handler, request, path)

    def route(self, handler: BaseHTTPRequestHandler, request: Request, path: str) -> None:
        if path not in self.files:
            self.plain(handler, 404, b"not found")
            return
        self.send_file(handler, request, self.files[path], self.behaviours.get(path, Behaviour()))

    def plain(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        content: bytes,
        headers: dict[str, str] | None = None,
    ) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content)

    def send_file(
        self,
        handler: BaseHTTPRequestHandler,
        request: Request,
        content: bytes,
        behaviour: Behaviour,
        headers: dict[str, str] | None = None,
    ) -> None:
        if behaviour.statuses:
            self.plain(handler, behaviour.statuses.pop(0), b"busy")
            return
        start, status = 0, 200
        match = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        condition = handler.headers.get("If-Range")
        current = behaviour.ignores_if_range or condition in (None, behaviour.etag)
        if match and behaviour.ranges and current:
            start, status = int(match[1]), 206
            if start >= len(content):
                range_header = {"Content-Range": f"bytes */{len(content)}"}
                self.plain(handler, 416, b"", range_header)
                return
        rest = content[start:]
        handler.send_response(status)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        if behaviour.etag:
            handler.send_header("ETag", behaviour.etag)
        if behaviour.encoding:
            handler.send_header("Content-Encoding", behaviour.encoding)
        if status == 206:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if behaviour.chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        else:
            handler.send_header("Content-Length", str(len(rest) + len(behaviour.overlong)))
        handler.end_headers()
        if handler.command == "HEAD":
            return
        try:
            self._send_body(handler, request, rest, start, behaviour)
            if behaviour.overlong:
                handler.wfile.write(behaviour.overlong)
            if behaviour.chunked:
                handler.wfile.write(b"0\r\n\r\n")
        except OSError:
            handler.close_connection = True

    def _send_body(
        self,
        handler: BaseHTTPRequestHandler,
        request: Request,
        rest: bytes,
        start: int,
        behaviour: Behaviour,
    ) -> None:
        for offset in range(0, len(rest), 65536):
            position = start + offset
            if behaviour.stall_after is not None and position >= behaviour.stall_after:
                handler.wfile.flush()
                behaviour.stalled.set()
                behaviour.resume.wait(WAIT_SECONDS)
            dropping = behaviour.drop_after is not None and behaviour.drops_left > 0
            if dropping and position >= (behaviour.drop_after or 0):
                behaviour.drops_left -= 1
                behaviour.drop_after = position + 65536
                raise ConnectionAbortedError
            chunk = rest[offset : offset + 65536]
            with self._lock:  # before anybody can have it
                request.sent += len(chunk)
            if behaviour.chunked:
                chunk = b"%x\r\n%b\r\n" % (len(chunk), chunk)
            handler.wfile.write(chunk)


class Hub(Server):
    """Repositories by the Hub's protocol: model information, resolve, redirects to a CDN."""

    def __init__(self) -> None:
        super().__init__()
        self.repos: dict[str, dict[str, bytes]] = {}
        self.cards: dict[str, dict[str, str]] = {}
        # Content that the CDN hands out instead of the true one.
        self.altered: dict[str, bytes] = {}
        self.gated: set[str] = set()
        self.api_statuses: list[int] = []
        # Whether the listing tells sizes and checksums, as mirrors may not.
        self.lists_blobs = True
        self.large = 100_000

    def route(self, handler: BaseHTTPRequestHandler, request: Request, path: str) -> None:
        if path.startswith("/cdn/"):
            _, _, repo, file = path.split("/", 3)
            content = self.repos[repo.replace("--", "/")][file]
            content = self.altered.get(file, content)
            self.send_file(handler, request, content, self.behaviours.get(path, Behaviour()))
            return
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._model_info(handler, match[1], match[2])
            return
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(handler, request, match[1], match[2], match[3])
            return
        self.plain(handler, 404, b"{}")

    def _model_info(self, handler: BaseHTTPRequestHandler, repo: str, revision: str | None) -> None:
        if self.api_statuses:
            self.plain(handler, self.api_statuses.pop(0), b"{}")
            return
        if repo in self.gated:
            self.plain(handler, 403, b"{}", {"X-Error-Code": "GatedRepo"})
            return
        if repo not in self.repos:
            self.plain(handler, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        if revision not in (None, "main", "v1", COMMIT):
            self.plain(handler, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = []
        for name, content in self.repos[repo].items():
            sibling: dict[str, Any] = {"rfilename": name}
            if self.lists_blobs:
                sibling |= {"size": len(content), "blobId": git_sha1(content)}
                if len(content) >= self.large:
                    sha256 = hashlib.sha256(content).hexdigest()
                    sibling["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 130}
            siblings.append(sibling)
        info = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "tags": [],
                "private": False, "downloads": 0, "cardData": self.cards.get(repo)}  # fmt: skip
        content = json.dumps(info).encode()
        self.plain(handler, 200, content, {"Content-Type": "application/json"})

    def _resolve(
        self, handler: BaseHTTPRequestHandler, request: Request, repo: str, rev: str, file: str
    ) -> None:
        if repo not in self.repos or file not in self.repos[repo] or rev != COMMIT:
            self.plain(handler, 404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = self.repos[repo][file]
        headers = {"X-Repo-Commit": COMMIT}
        if len(content) < self.large:
            behaviour = self.behaviours.get(request.path, Behaviour())
            behaviour.etag = behaviour.etag or f'"{git_sha1(content)}"'
            content = self.altered.get(file, content)
            self.send_file(handler, request, content, behaviour, headers)
            return
        headers |= {
            "X-Linked-Size": str(len(content)),
            "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
            # Another host than 127.0.0.1 as far as a client can tell.
            "Location": f"http://localhost:{self.port}/cdn/{repo.replace('/', '--')}/{file}",
        }
        self.plain(handler, 302, b"", headers)


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.fixture
def hub_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    running = Hub()
    monkeypatch.setenv("HF_ENDPOINT", running.url)
    yield running
    running.close()


@pytest.fixture
def start_pull() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `store.pull(name)` in another process; its stdout tells the stages and the end."""
    script = (
        "import sys\n"
        "from tidemill import store\n"
        "said = set()\n"
        "def progress(event):\n"
        "    if event.stage not in said:\n"
        "        said.add(event.stage); print(event.stage, flush=True)\n"
        "try:\n"
        "    print('path', store.pull(sys.argv[1], progress=progress).path, flush=True)\n"
        "except store.StoreError as error:\n"
        "    print('error', type(error).__name__, error, flush=True)\n"
    )
    processes: list[subprocess.Popen[str]] = []

    def start(name: str, prelude: str = "") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", prelude + script, name], stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def make_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a wheel with the given members into a folder that is the only place pip looks in."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))

    def make(package: str, version: str, members: dict[str, bytes], requires: str = "") -> Path:
        stem = f"{package.replace('-', '_')}-{version}"
        path = index / f"{stem}-py3-none-any.whl"
        lines = ["Metadata-Version: 2.1", f"Name: {package}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requires}"] if requires else []
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
            archive.writestr(f"{stem}.dist-info/METADATA", "\n".join(lines) + "\n")
            archive.writestr(
                f"{stem}.dist-info/WHEEL",
                "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            archive.writestr(f"{stem}.dist-info/RECORD", "")
        return path

    return make
