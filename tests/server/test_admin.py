"""Models changed while others are served."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.serving import Server, begin_request, events_of, serving, until
from support.tiny_chat_model import write_chat_model
from tidemill.server.keys import digest_of

SHORT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 4, "temperature": 0,
    "ignore_eos": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def own(tiny_chat_model: Path) -> Iterator[Server]:
    with serving(str(tiny_chat_model), "--name", "tiny", "--threads", "1") as found:
        yield found


def call(server: Server, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    status, _, data = server.request(method, f"/admin/models{path}", body)
    return status, json.loads(data)


def ask(server: Server, model: str) -> int:
    return server.post("/v1/chat/completions", {"model": model, **SHORT})[0]


def test_a_models_life(own: Server, tiny_chat_model: Path) -> None:
    config = {"source": str(tiny_chat_model), "name": "second", "aliases": ["2"], "threads": 1}
    status, about = call(own, "POST", "", config)
    assert (status, about["state"], about["name"]) == (201, "loaded", "second")
    assert ask(own, "second") == ask(own, "2") == 200
    assert len(own.workers()) == 2
    assert {m["name"] for m in call(own, "GET", "")[1]["models"]} == {"tiny", "second"}
    status, about = call(own, "POST", "/second/unload", {})
    assert (status, about["state"]) == (200, "unloaded")
    assert len(own.workers()) == 1
    assert own.get("/health/ready")[0] == 200
    assert call(own, "POST", "/2/load", {})[1]["state"] == "loaded"
    assert call(own, "POST", "/second/pin", {"pinned": True})[1]["pinned"] is True
    assert call(own, "GET", "/second")[1]["pinned"] is True
    assert call(own, "DELETE", "/second")[0] == 200
    assert ask(own, "second") == ask(own, "2") == 404
    assert ask(own, "tiny") == 200
    assert len(own.workers()) == 1


def test_a_replacement_drops_no_stream(own: Server, tiny_chat_model: Path) -> None:
    body = {"model": "tiny", **SHORT, "max_tokens": 900, "n": 8, "temperature": 1, "stream": True}
    connection = begin_request(own, "/v1/chat/completions", body)
    data = bytearray()

    def read() -> None:
        with connection:
            while part := connection.recv(65536):
                data.extend(part)
                if b"[DONE]" in data:
                    return

    reading = threading.Thread(target=read)
    reading.start()
    until(lambda: b"data: " in data)
    before = own.workers()
    config = {"source": str(tiny_chat_model), "threads": 1, "max_context": 512}
    status, about = call(own, "PUT", "/tiny", config)
    assert (status, about["max_context"]) == (200, 512)
    assert ask(own, "tiny") == 200
    reading.join(60)
    *_, done = events_of(bytes(data))
    assert done == "[DONE]"
    until(lambda: len(own.workers()) == 1)
    assert own.workers() != before
    call(own, "PUT", "/tiny", {"source": str(tiny_chat_model), "threads": 1})
    until(lambda: len(own.workers()) == 1)


def test_what_cannot_be_loaded_changes_nothing(own: Server, tmp_path: Path) -> None:
    before = own.workers()
    for method, path in (("POST", ""), ("PUT", "/tiny")):
        status, answer = call(own, method, path, {"source": str(tmp_path / "no.gguf")})
        assert (status, answer["error"]["code"]) == (400, "cannot_be_loaded")
    assert own.workers() == before
    assert ask(own, "tiny") == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "", {}, 400),
        ("POST", "", {"source": "x", "threads": 0}, 400),
        ("POST", "", {"source": "x", "name": "a b"}, 400),
        ("POST", "", {"source": "x", "name": "tiny"}, 409),
        ("PUT", "/nobody", {"source": "x"}, 404),
        ("DELETE", "/nobody", None, 404),
        ("POST", "/nobody/load", {}, 404),
        ("POST", "/tiny/pin", {"pinned": "x"}, 400),
        ("PATCH", "/tiny", {}, 405),
    ],
)
def test_what_cannot_be(own: Server, method: str, path: str, body: Any, status: int) -> None:
    found, answer = call(own, method, path, body)
    assert found == status, answer
    assert answer["error"]["message"]
    assert ask(own, "tiny") == 200


def test_only_for_admins(tiny_chat_model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(
        f'[[tenants]]\nname = "user"\nsha256 = ["{digest_of("user")}"]\n'
        f'[[tenants]]\nname = "chief"\nadmin = true\nsha256 = ["{digest_of("chief")}"]\n'
    )
    with serving(
        str(tiny_chat_model), "--name", "tiny", "--threads", "1", "--api-key-file", str(keys)
    ) as server:

        def status(key: str, method: str, path: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return server.request(method, f"/admin/models{path}", b"{}", headers)[0]

        for method, path in (("GET", ""), ("POST", "/tiny/unload"), ("DELETE", "/tiny")):
            assert status("user", method, path) == 403
            assert status("nobody", method, path) == 401
        assert status("chief", "GET", "") == 200
        assert status("chief", "POST", "/tiny/unload") == 200


@contextmanager
def endless_files() -> Iterator[tuple[str, list[str]]]:
    """A URL of files whose download never ends, and which of them are being fetched."""
    fetched: list[str] = []
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 28))
            self.end_headers()
            fetched.append(self.path)
            try:
                while not over.wait(0.01):
                    self.wfile.write(bytes(1 << 12))
            except OSError:
                fetched.remove(self.path)

        def log_message(self, *_: object) -> None:
            pass

    files = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=files.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{files.server_port}", fetched
    finally:
        over.set()
        files.shutdown()
        files.server_close()


def test_models_that_are_downloaded_hold_nobody_up(tiny_chat_model: Path, tmp_path: Path) -> None:
    """However many there are, and not the end either; a download that nobody waits for ends."""
    home = {"TIDEMILL_HOME": str(tmp_path)}
    options = ("--name", "tiny", "--threads", "1")
    with endless_files() as (url, fetched):
        with serving(str(tiny_chat_model), *options, environment=home) as server:
            waiting = [
                begin_request(
                    server, "/admin/models", {"source": f"{url}/{i}.gguf", "name": f"m{i}"}
                )
                for i in range(12)
            ]
            until(lambda: len(fetched) == 12)
            assert ask(server, "tiny") == 200
            for connection in waiting[1:]:
                connection.close()
            until(lambda: len(fetched) == 1)
            server.signal()
            server.until_logged("1 request has 30 s to end")
            server.signal()
            assert server.wait() == 0
            waiting[0].close()
        until(lambda: not fetched)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start_that_downloads(number: signal.Signals, tmp_path: Path) -> None:
    with endless_files() as (url, fetched):
        server = Server([f"{url}/m.gguf"], {"TIDEMILL_HOME": str(tmp_path)})
        try:
            until(lambda: fetched)
            server.signal(number)
            assert server.wait() in (0, 130)
        finally:
            server.stop()
        until(lambda: not fetched)
    assert "Traceback" not in server.log


def test_who_waits_for_room_may_leave(endless: tuple[str, ...], tiny_chat_model: Path) -> None:
    """What was to make room ends all the same, once it is unused."""
    options = ("--name", "tiny", "--threads", "1")
    with serving(*endless, *options, environment={"TIDEMILL_MAX_LOADED": "1"}) as server:
        (worker,) = server.workers()
        body = {"model": "tiny", **SHORT, "max_tokens": 60_000}
        stream = begin_request(server, "/v1/chat/completions", body)
        until(lambda: server.metric("vllm:num_requests_running") == 1)
        config = {"source": str(tiny_chat_model), "name": "second"}
        leaving = begin_request(server, "/admin/models", config)
        until(lambda: call(server, "GET", "/tiny")[1]["state"] == "unloaded")
        leaving.close()
        server.until_logged("POST /admin/models 499")
        assert server.workers() == [worker]
        stream.close()
        until(lambda: not server.workers())
        assert ask(server, "tiny") == 200


def test_files_that_go_while_a_model_is_served(tmp_path: Path) -> None:
    """It is served and described as before, whatever was asked of it first; loaded again, what is
    told is what is there then."""
    path = write_chat_model(tmp_path / "m.gguf", context=512)

    def context(server: Server) -> int:
        status, about = server.post("/api/show", {"model": "tiny"})
        assert status == 200
        return int(about["model_info"]["llama.context_length"])

    with serving(str(path), "--name", "tiny", "--threads", "1") as server:
        size = path.stat().st_size
        path.unlink()
        for lists in ("/api/tags", "/api/ps"):
            status, found = server.get(lists)
            assert status == 200
            assert 0 < found["models"][0]["size"] <= size
        assert context(server) == 512
        assert ask(server, "tiny") == 200
        call(server, "POST", "/tiny/unload", {})
        status, error = call(server, "POST", "/tiny/load", {})
        assert (status, error["error"]["code"]) == (503, "model_unavailable")
        assert context(server) == 512  # as far as is known
        write_chat_model(path, context=256)
        assert call(server, "POST", "/tiny/load", {})[0] == 200
        assert context(server) == 256
        assert ask(server, "tiny") == 200
