"""HTTP connections: uvicorn's, with time limits on clients that send nothing or read nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Connection(HttpToolsProtocol):
    """A connection that is ended at once, unsent data and all, when its client stalls.

    The head of a request must have arrived within ``stall_seconds`` of the connection's being made,
    and of having begun to arrive. Where so much has been written that the client is to read first,
    it must have read within that time.
    """

    stall_seconds = 60.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._head_timer = self._abort_later()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._head_timer)
        _cancel(self._write_timer)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._head_timer = self._abort_later()

    def on_headers_complete(self) -> None:
        _cancel(self._head_timer)
        self._head_timer = None
        super().on_headers_complete()

    def pause_writing(self) -> None:
        self._write_timer = self._abort_later()
        super().pause_writing()

    def resume_writing(self) -> None:
        _cancel(self._write_timer)
        super().resume_writing()

    def _abort_later(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self.stall_seconds, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
