"""Fair shares: properties of the queue by itself, in simulated time."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.server.fairness import FairQueue, Ticket


def ticket(tenant: str, arrived: float = 0.0, priority: int = 0, size: int = 1) -> Ticket:
    return Ticket(tenant, priority, size, arrived)


def serve(queue: FairQueue, now: float, cost: float) -> Ticket:
    found = queue.next(now)
    assert found is not None
    queue.start(found)
    queue.charge(found.tenant, cost)
    queue.end(found)
    return found


def test_one_tenant_is_served_in_order() -> None:
    queue = FairQueue(30)
    tickets = [ticket("a", arrived=i) for i in range(5)]
    for each in tickets:
        queue.add(each)
    assert [serve(queue, 5, 1) for _ in tickets] == tickets
    assert queue.next(5) is None
    assert len(queue) == 0


@pytest.mark.parametrize(("weight", "share"), [(1.0, 0.5), (3.0, 0.75)])
def test_a_flood_does_not_take_more_than_its_share(weight: float, share: float) -> None:
    queue = FairQueue(1e9)
    for i in range(1000):
        queue.add(ticket("flood", arrived=i), 1.0)
    for i in range(1000):
        queue.add(ticket("other", arrived=2000 + i), weight)
    served = Counter(serve(queue, 3000, 10).tenant for _ in range(800))
    assert served["other"] / 800 == pytest.approx(share, abs=0.01)


@given(st.integers(0, 10**6))
def test_backlogged_tenants_stay_close(seed: int) -> None:
    """The bound of the paper: what each has been served differs by no more than one request's
    cost and what runs at once, here twice the dearest request."""
    rng = random.Random(seed)
    queue = FairQueue(1e9)
    served = {"a": 0.0, "b": 0.0, "c": 0.0}
    for name in served:
        for _ in range(2):  # so that there is one left while the other is served
            queue.add(ticket(name))
    for now in range(300):
        cost = rng.uniform(1, 100)
        name = serve(queue, now, cost).tenant
        served[name] += cost
        queue.add(ticket(name, arrived=now))
        assert max(served.values()) - min(served.values()) <= 200


def test_nobody_saves_up_while_away() -> None:
    queue = FairQueue(1e9)
    for i in range(200):
        queue.add(ticket("busy", arrived=i))
    queue.add(ticket("rare"))
    for _ in range(100):
        serve(queue, 200, 10)
    for i in range(100):
        queue.add(ticket("rare", arrived=300 + i))
    first = [serve(queue, 400, 10).tenant for _ in range(20)]
    assert 9 <= first.count("rare") <= 11


def test_leaving_does_not_clear_a_debt() -> None:
    queue = FairQueue(1e9)
    queue.add(ticket("greedy"))
    queue.add(ticket("modest"))
    queue.start(found := queue.next(0) or ticket("?"))
    queue.charge(found.tenant, 1000)
    queue.end(found)
    queue.add(ticket("greedy", arrived=1))
    queue.add(ticket("modest", arrived=2))
    assert [serve(queue, 3, 10).tenant for _ in range(2)] == ["modest", "modest"]


def test_classes_come_first_until_patience_ends() -> None:
    queue = FairQueue(30)
    queue.add(ticket("batch", arrived=0, priority=10))
    for i in range(100):
        queue.add(ticket("live", arrived=i, priority=0))
    assert serve(queue, 20, 1).tenant == "live"
    assert serve(queue, 31, 1).tenant == "batch"  # it has waited longer than patience
    assert serve(queue, 31, 1).tenant == "live"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=60), st.data())
def test_whatever_happens_everything_is_served_once(
    given_: list[tuple[str, int]], data: st.DataObject
) -> None:
    queue = FairQueue(5)
    waiting = []
    for now, (tenant, priority) in enumerate(given_):
        waiting.append(ticket(tenant, now, priority))
        queue.add(waiting[-1])
        if waiting and data.draw(st.booleans()):
            gone = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            queue.remove(gone)
        if waiting and data.draw(st.booleans()):
            waiting.remove(serve(queue, now, 3))
        assert len(queue) == len(waiting)
    while waiting:
        waiting.remove(serve(queue, 1000, 3))
    assert queue.next(2000) is None


def test_who_gives_way_in_a_full_queue() -> None:
    queue = FairQueue(30)
    tickets = [ticket("flood", arrived=i, priority=i % 2) for i in range(4)]
    for each in tickets:
        queue.add(each)
    assert queue.newest_of_largest("other") is tickets[3]
    assert queue.newest_of_largest("flood") is None
