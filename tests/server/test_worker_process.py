"""The front end's end of a worker, without one: what arrives when."""

from __future__ import annotations

import asyncio

from tidemill.engine.base import Event, FinishEvent, Request, TokenEvent
from tidemill.engine.params import SamplingParams
from tidemill.llm.mailbox import Mailbox
from tidemill.server.worker_process import WorkerProcess


def token(text: str) -> TokenEvent:
    return TokenEvent("r", 0, 1, text)


def test_what_comes_while_the_reader_is_busy_is_not_lost() -> None:
    """Also the end, which has come before the reader has come back for what was before it."""

    async def main() -> list[Event]:
        worker, mailbox = WorkerProcess(None), Mailbox(1)
        request = Request("r", (1,), SamplingParams(max_tokens=3))
        mailbox.post([token("a")], 1.0)
        got: list[Event] = []
        async for batches in worker.events(request, mailbox):
            got += [event for events, _ in batches for event in events]
            if len(got) == 1:
                mailbox.post([token("b")], 2.0)
                mailbox.post([FinishEvent("r", 0, "length")], 3.0)
        return got

    events = asyncio.run(asyncio.wait_for(main(), 60))
    assert events == [token("a"), token("b"), FinishEvent("r", 0, "length")]
