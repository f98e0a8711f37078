"""A server that says what a test wants, byte by byte."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Canned:
    """Calls ``answer(connection, number)`` for each request that has arrived; its connection is
    closed when that returns False."""

    def __init__(self, answer: Callable[[socket.socket, int], bool]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while (request := _request(connection)) is not None:
                self.requests.append(request)
                if not self._answer(connection, len(self.requests) - 1):
                    return

    def close(self) -> None:
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _request(connection: socket.socket) -> bytes | None:
    data = b""
    while b"\r\n\r\n" not in data:
        got = connection.recv(65536)
        if not got:
            return None
        data += got
    head, _, body = data.partition(b"\r\n\r\n")
    length = int((head.lower().partition(b"content-length:")[2].split() or [b"0"])[0])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def http(body: bytes, kind: str = "application/json", status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


def listing(*names: str) -> bytes:
    """What ``/v1/models`` answers."""
    return http(json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode())


def always(answer: bytes) -> Callable[[socket.socket, int], bool]:
    return lambda connection, _: connection.sendall(answer) is None


@contextmanager
def canned(answer: Callable[[socket.socket, int], bool]) -> Iterator[Canned]:
    server = Canned(answer)
    try:
        yield server
    finally:
        server.close()
