"""What web pages may not do to a server without keys: by a browser's request, over real sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.serving import Server, by_key, serving, write_keys
from tidemill.server.browsers import check_browser
from tidemill.server.config import ServerConfig
from tidemill.server.errors import ApiError

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "tiny", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 2,
}  # fmt: skip
OPTIONS = ("--name", "tiny", "--threads", "1")


def refused(headers: dict[str, str], **settings: Any) -> str | None:
    """The code of the error for a request with these headers; None if it is served."""
    try:
        check_browser(headers, ServerConfig(**settings))
    except ApiError as error:
        return error.code
    return None


# ---- names


@pytest.mark.parametrize(
    "host",
    ["", "localhost", "localhost:8000", "LOCALHOST:8000", "localhost.", "app.localhost:8000",
     "127.0.0.1:8000", "127.0.0.2", "[::1]:8000", "[::ffff:127.0.0.1]", "192.168.1.7:8000",
     "tidemill:8000", "my-laptop", "my-laptop.local:8000", "host.docker.internal:8000",
     "tidemill.default.svc.cluster.local", "x"],
)  # fmt: skip
def test_what_programs_call_it(host: str) -> None:
    assert refused({"host": host}) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example",
     "evil-local.example", "evil.notlocal", "evil.example.", "1.2.3.4.5", "local.example:80",
     "internal.example", "a@evil.example", "127.0.0.1@evil.example:80"],
)  # fmt: skip
def test_what_a_site_could_be_called(host: str) -> None:
    assert refused({"host": host}) == "host_not_allowed"
    assert refused({"host": host}, allowed_hosts=["else.example"]) == "host_not_allowed"
    assert refused({"host": host}, allowed_hosts=["*"]) is None
    assert refused({"host": host}, host="0.0.0.0") is None
    assert refused({"host": host}, host="0.0.0.0", allowed_hosts=["x.example"]) is not None


def test_names_that_are_allowed() -> None:
    settings: dict[str, Any] = {"allowed_hosts": ["GPU.example", "b.example"]}
    for host in ("gpu.example:8000", "Gpu.Example", "gpu.example.", "b.example", "localhost"):
        assert refused({"host": host}, **settings) is None
    assert refused({"host": "c.gpu.example"}, **settings) == "host_not_allowed"
    assert refused({"host": "gpu.example"}, host="gpu.example", allowed_hosts=["x"]) is None


# ---- origins


@pytest.mark.parametrize(
    ("headers", "served"),
    [
        ({}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "https://proxy.example"}, True),
        ({"sec-fetch-site": "same-site", "origin": "http://localhost:3000"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "nonsense"}, False),
        ({"origin": "http://localhost:8000"}, True),
        ({"origin": "https://localhost:8000"}, True),
        ({"origin": "http://localhost:3000"}, False),
        ({"origin": "http://localhost"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_where_requests_come_from(headers: dict[str, str], served: bool, host: str) -> None:
    headers = {"host": "localhost:8000", **headers}
    assert refused(headers, host=host) == (None if served else "origin_not_allowed")
    assert refused(headers, host=host, allow_origins=["*"]) is None
    if origin := headers.get("origin"):
        assert refused(headers, host=host, allow_origins=["https://b.example", origin]) is None


# ---- over sockets


def code_of(server: Server, method: str, path: str, headers: dict[str, str]) -> Any:
    status, _, data = server.request(method, path, BODY if method == "POST" else None, headers)
    answer = json.loads(data) if data[:1] == b"{" else {}
    return answer["error"]["code"] if status == 403 else status


def test_a_site_whose_name_leads_here(server: Server) -> None:
    """DNS rebinding: for its page, this server is the one it came from."""
    name = f"evil.example:{server.port}"
    page = {"Host": name, "Origin": f"http://{name}", "Referer": f"http://{name}/"}
    for method, path in (
        ("POST", CHAT), ("POST", "/admin/models/tiny/unload"), ("DELETE", "/admin/models/tiny"),
        ("POST", "/tokenize"),
    ):  # fmt: skip
        assert code_of(server, method, path, page) == "host_not_allowed"
    for path in ("/v1/models", "/metrics", "/admin/models"):  # which pages read without an Origin
        assert code_of(server, "GET", path, {"Host": name}) == "host_not_allowed"
    status, _, data = server.request("POST", "/api/chat", BODY, page)
    assert status == 403
    assert "--allowed-host" in json.loads(data)["error"]  # in the API's own form
    assert server.get("/v1/models")[1]["data"][0]["state"] == "loaded"


def test_a_page_that_asks_another_machine(beyond: Server) -> None:
    """Where browsers say nothing but the origin, which pages cannot change."""
    here = f"192.168.1.7:{beyond.port}"
    assert code_of(beyond, "POST", CHAT, {"Host": here, "Origin": f"http://{here}"}) == 200
    for origin in ("https://evil.example", "null"):
        headers = {"Host": here, "Origin": origin, "Content-Type": "text/plain"}
        assert code_of(beyond, "POST", CHAT, headers) == "origin_not_allowed"


def test_programs_go_on_to_work(server: Server, beyond: Server) -> None:
    names = ("localhost", "127.0.0.1", "tidemill", "host.docker.internal")
    for name in names:
        assert code_of(server, "POST", CHAT, {"Host": f"{name}:{server.port}"}) == 200
    for name in (*names, "gpu.example.com"):
        assert code_of(beyond, "POST", CHAT, {"Host": f"{name}:{beyond.port}"}) == 200


@pytest.fixture(scope="module")
def beyond(tiny_chat_model: Path) -> Iterator[Server]:
    """One that other machines may ask."""
    with serving(str(tiny_chat_model), *OPTIONS, "--host", "0.0.0.0", "--insecure") as found:
        yield found


def test_a_name_that_was_allowed(tiny_chat_model: Path) -> None:
    with serving(str(tiny_chat_model), *OPTIONS, "--allowed-host", "chat.example") as server:
        assert code_of(server, "POST", CHAT, {"Host": "chat.example"}) == 200
        assert code_of(server, "POST", CHAT, {"Host": "evil.example"}) == "host_not_allowed"


def test_keys_say_enough(tiny_chat_model: Path, tmp_path: Path) -> None:
    """No page has one, whatever it is called."""
    keys = tmp_path / "keys.toml"
    write_keys(keys, "one")
    with serving(str(tiny_chat_model), *OPTIONS, "--api-key-file", str(keys)) as server:
        page = {"Host": "chat.example", "Origin": "https://chat.example"}
        assert code_of(server, "POST", CHAT, {**page, **by_key("one")}) == 200
        assert code_of(server, "POST", CHAT, page) == 401
