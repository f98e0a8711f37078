"""The queue in front of a model: order, refusal, and clients that leave while they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from tidemill.server.admission import Admission, Overloaded
from tidemill.server.keys import ANYBODY, Tenant

A, B = Tenant("a"), Tenant("b")
URGENT = Tenant("urgent", priority=-1)


def run(main: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main, 30)

    asyncio.run(bounded())


class Requests:
    """Requests that hold their place until they are told to end; ``order`` is how they ran."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.order: list[str] = []
        self.refused: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str, tenant: Tenant, size: int = 1, priority: int = 0) -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.ensure_future(self._one(name, tenant, size, priority))
        for _ in range(3):  # whoever has to give way is told, too
            await asyncio.sleep(0)

    async def _one(self, name: str, tenant: Tenant, size: int, priority: int) -> None:
        try:
            async with self.admission.slot(tenant, size, priority) as grant:
                self.order.append(name)
                grant.prompt(10)
                await self._ends[name].wait()
                grant.output(10)
        except Overloaded:
            self.refused.append(name)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]
        await asyncio.sleep(0)

    async def leave(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.gather(self._tasks[name], return_exceptions=True)
        await asyncio.sleep(0)


def test_tenants_take_turns() -> None:
    async def main() -> None:
        requests = Requests(Admission(1, 10))
        for name in ("a1", "a2", "a3"):
            await requests.begin(name, A)
        for name in ("b1", "b2"):
            await requests.begin(name, B)
        for _ in range(5):
            await requests.end(requests.order[-1])
        assert requests.order == ["a1", "b1", "a2", "b2", "a3"]
        assert requests.admission.running == 0

    run(main())


def test_urgent_ones_go_first() -> None:
    async def main() -> None:
        requests = Requests(Admission(1, 10))
        for name, tenant in (("a1", A), ("a2", A), ("u1", URGENT)):
            await requests.begin(name, tenant)
        await requests.end("a1")
        assert requests.order == ["a1", "u1"]

    run(main())


def test_a_large_request_is_not_passed_by_for_ever() -> None:
    async def main() -> None:
        requests = Requests(Admission(4, 10))
        await requests.begin("a1", A, 2)
        await requests.begin("a2", A, 4)
        await requests.begin("a3", A, 1)
        assert requests.order == ["a1"]
        await requests.end("a1")
        assert requests.order == ["a1", "a2"]
        await requests.end("a2")
        assert requests.order == ["a1", "a2", "a3"]

    run(main())


def test_more_than_there_is_runs_alone() -> None:
    async def main() -> None:
        requests = Requests(Admission(4, 10, keeps_places=False))
        await requests.begin("a1", A, 100)
        await requests.begin("a2", A, 1)
        assert requests.order == ["a1"]
        await requests.end("a1")
        assert requests.order == ["a1", "a2"]

    run(main())


def test_beside_the_largest_request_there_is_a_place_for_others() -> None:
    async def main() -> None:
        requests = Requests(Admission(8, 10))
        await requests.begin("a1", A, 100)
        await requests.begin("b1", B, 1)
        assert requests.order == ["a1", "b1"]

    run(main())


def test_who_is_told_to_be_urgent() -> None:
    async def main() -> None:
        admission = Admission(8, 10)
        async with (
            admission.slot(A, 1) as first,
            admission.slot(A, 4) as second,
            admission.slot(B, 1) as third,
            admission.slot(URGENT, 1) as fourth,
            admission.slot(Tenant("c"), 1) as fifth,
        ):
            urgent = [grant.urgent for grant in (first, second, third, fourth, fifth)]
            assert urgent == [False, False, True, True, False]  # not beside a class before its own
        assert admission.running == 0

    run(main())


def test_leaving_while_waiting_or_running_frees_the_place() -> None:
    async def main() -> None:
        requests = Requests(Admission(1, 10))
        for name in ("a1", "a2", "a3"):
            await requests.begin(name, A)
        await requests.leave("a2")
        assert requests.admission.waiting == 1
        await requests.leave("a1")
        assert requests.order == ["a1", "a3"]
        await requests.leave("a3")
        assert (requests.admission.running, requests.admission.waiting) == (0, 0)

    run(main())


def test_leaving_just_as_it_is_called() -> None:
    async def main() -> None:
        admission = Admission(1, 10)
        requests = Requests(admission)
        await requests.begin("a1", A)
        await requests.begin("a2", A)
        requests._ends["a1"].set()
        # a1 ends and calls a2 in the same turn of the loop in which a2 is cancelled.
        await asyncio.sleep(0)
        requests._tasks["a2"].cancel()
        await asyncio.gather(*requests._tasks.values(), return_exceptions=True)
        assert (admission.running, admission.waiting) == (0, 0)
        await requests.begin("a3", A)
        assert requests.order[-1] == "a3"

    run(main())


def test_a_full_queue_refuses_whoever_has_most_in_it() -> None:
    async def main() -> None:
        requests = Requests(Admission(1, 3))
        for name in ("a1", "a2", "a3", "a4", "a5"):
            await requests.begin(name, A)
        assert requests.refused == ["a5"]
        await requests.begin("b1", B)
        assert requests.refused == ["a5", "a4"]
        await requests.begin("b2", B)
        assert requests.refused == ["a5", "a4", "b2"]
        await requests.end("a1")
        assert requests.order == ["a1", "b1"]

    run(main())


def test_refusals_say_when_to_come_back() -> None:
    async def main() -> None:
        admission = Admission(1, 1)
        requests = Requests(admission)
        for name in ("a1", "a2"):
            await requests.begin(name, A)
        with pytest.raises(Overloaded) as caught:
            async with admission.slot(A, 1):
                pass
        assert 1 <= caught.value.retry_after <= 600

    run(main())


def test_a_requests_own_priority_orders_it_among_its_tenants() -> None:
    async def main() -> None:
        requests = Requests(Admission(1, 10))
        for name, tenant, priority in (("a1", A, 0), ("a2", A, 7), ("a3", A, 0), ("b1", B, 9)):
            await requests.begin(name, tenant, priority=priority)
        for _ in range(3):
            await requests.end(requests.order[-1])
        assert requests.order == ["a1", "b1", "a3", "a2"]

    run(main())


def test_without_keys_a_requests_priority_is_its_class() -> None:
    async def main() -> None:
        requests = Requests(Admission(1, 10, patience=1e-9, keeps_places=False))
        for name, priority in (("1", 0), ("late", 7), ("2", 0), ("3", 0)):
            await requests.begin(name, ANYBODY, priority=priority)
        await requests.end("1")
        assert requests.order == ["1", "late"]  # nothing is passed over for ever

    run(main())


def test_whoever_gives_way_may_be_leaving_just_then() -> None:
    async def main() -> None:
        requests = Requests(Admission(1, 2))
        for name in ("a1", "a2", "a3"):
            await requests.begin(name, A)
        coming = asyncio.ensure_future(requests.begin("b1", B))
        await asyncio.sleep(0)  # b1 is about to ask
        requests._tasks["a3"].cancel()  # which it has not been told yet
        await coming
        await requests.end("a1")
        assert requests.order == ["a1", "b1"]
        await requests.end("b1")
        await requests.end("a2")
        assert requests.refused == []
        assert (requests.admission.running, requests.admission.waiting) == (0, 0)

    run(main())
