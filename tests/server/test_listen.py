"""The socket that the server listens at."""

from __future__ import annotations

import select
import socket

from tidemill.server.config import ServerConfig
from tidemill.server.serve import listen


def test_small_pieces_of_a_stream_do_not_wait_for_acknowledgements() -> None:
    """With Nagle's algorithm the first token of a second request on a connection waits for the
    client's delayed ACK, 40 ms on Linux."""
    with (
        listen(ServerConfig(port=0)) as listening,
        socket.create_connection(listening.getsockname(), timeout=30),
    ):
        assert select.select([listening], [], [], 30)[0]
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
