"""Events between an engine and the stream that reads them, and commands in the other direction."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tidemill.engine.base import ErrorEvent, FinishEvent, TokenEvent
from tidemill.llm.commands import Commands
from tidemill.llm.mailbox import Mailbox


def token(id: int, index: int = 0) -> TokenEvent:
    return TokenEvent("r", index, id, "")


def end(index: int = 0) -> FinishEvent:
    return FinishEvent("r", index, "stop")


def test_what_piles_up_is_taken_at_once_by_step() -> None:
    async def main() -> None:
        mailbox = Mailbox(2)
        mailbox.post([token(1)], 1.0)
        mailbox.post([token(2, 1)], 1.0)
        mailbox.post([token(3)], 2.0)
        assert await mailbox.take() == [([token(1), token(2, 1)], 1.0), ([token(3)], 2.0)]
        mailbox.post([end()], 3.0)
        assert not mailbox.complete
        mailbox.post([end(1)], 3.0)
        assert (mailbox.complete, mailbox.done) == (True, False)
        assert await mailbox.take() == [([end(), end(1)], 3.0)]
        assert mailbox.done

    asyncio.run(main())


def test_a_reader_waits_for_what_comes_and_can_be_told_to_stop_waiting() -> None:
    async def main() -> None:
        mailbox = Mailbox(3)
        reading = asyncio.create_task(mailbox.take())
        await asyncio.sleep(0)
        reading.cancel()
        mailbox.post([token(1)], 1.0)  # between the cancellation and the reader's next turn
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await mailbox.take() == [([token(1)], 1.0)]
        reading = asyncio.create_task(mailbox.take())
        await asyncio.sleep(0)
        assert not reading.done()
        mailbox.post([ErrorEvent("r", "boom")], 2.0)
        assert len(await reading) == 1
        assert mailbox.done  # whatever was to come of its samples

    asyncio.run(main())


def test_how_it_went_is_said_once() -> None:
    async def main() -> None:
        mailbox = Mailbox(1)
        mailbox.settle(ValueError("no"))
        mailbox.settle()
        with pytest.raises(ValueError, match="no"):
            await mailbox.accepted
        left = Mailbox(1)
        left.accepted.cancel()
        left.settle()
        assert left.accepted.cancelled()

    asyncio.run(main())


def test_another_loop_may_not_read() -> None:
    async def make() -> Mailbox:
        return Mailbox(1)

    mailbox = asyncio.run(make())
    with pytest.raises(RuntimeError, match="event loop in which it was begun"):
        asyncio.run(mailbox.take())


def test_commands_are_taken_in_order_and_waited_for() -> None:
    commands: Commands[int] = Commands()
    assert commands.take(wait=False) == []
    assert commands.put(1, 2)
    assert commands.put(3)
    assert commands.take(wait=True) == [1, 2, 3]
    found: list[list[int] | None] = []
    thread = threading.Thread(target=lambda: found.append(commands.take(wait=True)))
    thread.start()
    commands.put(4)
    thread.join(60)
    assert found == [[4]]


def test_nothing_is_taken_or_put_once_it_is_closed() -> None:
    commands: Commands[int] = Commands()
    found: list[list[int] | None] = []
    thread = threading.Thread(target=lambda: found.append(commands.take(wait=True)))
    thread.start()
    commands.close()
    thread.join(60)
    assert found == [None]
    assert not commands.put(1)
    assert commands.take(wait=False) is None


def test_what_was_never_taken_is_handed_out_at_the_end() -> None:
    commands: Commands[int] = Commands()
    commands.put(1)
    commands.close()
    assert commands.take(wait=False) is None
    assert commands.drain() == [1]
    assert commands.drain() == []
    open_still: Commands[int] = Commands()
    open_still.put(2)
    assert open_still.drain() == [2]
    assert not open_still.put(3)
