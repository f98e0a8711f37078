"""The web page's files: what they are served as, and that nothing else is."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from support.serving import Server
from tidemill import presentation
from tidemill.server import web

FILES = {
    path.name: path
    for room in (web, presentation)
    for path in sorted(Path(room.__file__).parent.iterdir())
    if path.is_file() and path.suffix != ".py"
}
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_as_what_it_is(server: Server, name: str) -> None:
    status, headers, body = server.request("GET", f"/web/{name}")
    assert (status, body) == (200, FILES[name].read_bytes())
    assert headers["content-type"] == TYPES[Path(name).suffix]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-cache"


def test_the_page_is_at_the_root(server: Server) -> None:
    status, headers, body = server.request("GET", "/")
    assert (status, body) == (200, FILES["index.html"].read_bytes())
    assert headers["content-type"] == "text/html; charset=utf-8"
    status, headers, nothing = server.request("HEAD", "/")
    assert (status, nothing, headers["content-length"]) == (200, b"", str(len(body)))
    assert server.request("POST", "/", {})[0] == 405


def test_a_copy_that_is_still_right_is_not_sent_again(server: Server) -> None:
    _, headers, _ = server.request("GET", "/web/app.js")
    tag = headers["etag"]
    for given in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        status, again, body = server.request("GET", "/web/app.js", None, {"If-None-Match": given})
        assert (status, again["etag"], body) == (304, tag, b"")
        assert "content-length" not in again
    for other in ('"other"', tag.strip('"')):
        status, _, body = server.request("GET", "/web/app.js", None, {"If-None-Match": other})
        assert (status, body) == (200, FILES["app.js"].read_bytes())
    assert len({server.request("GET", f"/web/{name}")[1]["etag"] for name in FILES}) == len(FILES)


def test_the_policy_lets_nothing_in(server: Server) -> None:
    for path in ("/", "/web/app.js"):
        _, headers, _ = server.request("GET", path)
        policy = dict(
            part.strip().partition(" ")[::2]
            for part in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
        for name in ("base-uri", "form-action", "frame-ancestors", "trusted-types"):
            assert policy[name] == "'none'"
        for name in ("script-src", "style-src", "connect-src", "img-src"):
            assert policy[name] == "'self'"
        assert headers["referrer-policy"] == "no-referrer"


def test_the_page_needs_nothing_from_elsewhere() -> None:
    for name, path in FILES.items():
        text = path.read_text()
        for address in re.findall(r"https?://[\w./-]+", text):
            assert address == "http://www.w3.org/2000/svg"  # a name, not a place
        for used in re.findall(r'(?:from "\./|(?:src|href)="web/)([^"]+)"', text):
            assert used in FILES, f"{name} uses {used}"
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text
        )


@pytest.mark.parametrize(
    "path",
    [
        "/web/", "/web", "/web/../app.py", "/web/../../../../../etc/passwd", "/web/%2e%2e/app.py",
        "/web/..%2fapp.py", "/web/__init__.py", "/web/./app.js", "/web//app.js", "/web/app.js/",
        "/web/app.js%00", "/web/APP.JS", "/web/%5c..%5capp.py", "/web/__pycache__",
    ],
)  # fmt: skip
def test_paths_lead_nowhere_else(server: Server, path: str) -> None:
    # By hand: clients tidy paths up before they send them.
    with server.connect() as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = read_all(connection)
    assert answer.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 307 "))
    assert b"import" not in answer
    assert b"root:" not in answer


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)
