"""Fair shares: properties of the queue by itself, in simulated time."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.server.fairness import MOST, FairQueue, Ticket

SETTINGS = settings(derandomize=True, deadline=None)


def ticket(tenant: str, arrived: float = 0.0, priority: int = 0, size: int = 1) -> Ticket:
    return Ticket(tenant, priority, size, arrived)


def serve(queue: FairQueue, now: float, cost: float) -> Ticket:
    found = queue.next(now)
    assert found is not None
    queue.start(found, now)
    queue.charge(found.tenant, cost)
    queue.end(found)
    return found


def test_one_tenant_is_served_in_order() -> None:
    queue = FairQueue(1, 30)
    tickets = [ticket("a", arrived=i) for i in range(5)]
    for each in tickets:
        queue.add(each)
    assert [serve(queue, 5, 1) for _ in tickets] == tickets
    assert queue.next(5) is None
    assert len(queue) == 0


@pytest.mark.parametrize(("weight", "share"), [(1.0, 0.5), (3.0, 0.75)])
def test_a_flood_does_not_take_more_than_its_share(weight: float, share: float) -> None:
    queue = FairQueue(1, 1e9)
    for i in range(1000):
        queue.add(ticket("flood", arrived=i), 1.0)
    for i in range(1000):
        queue.add(ticket("other", arrived=2000 + i), weight)
    served = Counter(serve(queue, 3000, 10).tenant for _ in range(800))
    assert served["other"] / 800 == pytest.approx(share, abs=0.01)


@SETTINGS
@given(st.integers(0, 10**6))
def test_backlogged_tenants_stay_close(seed: int) -> None:
    """The bound of the paper: what each has been served differs by no more than one request's
    cost and what runs at once, here twice the dearest request."""
    rng = random.Random(seed)
    queue = FairQueue(1, 1e9)
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
    queue = FairQueue(1, 1e9)
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
    queue = FairQueue(1, 1e9)
    queue.add(ticket("greedy"))
    queue.add(ticket("modest"))
    queue.start(found := queue.next(0) or ticket("?"), 0)
    queue.charge(found.tenant, 1000)
    queue.end(found)
    queue.add(ticket("greedy", arrived=1))
    queue.add(ticket("modest", arrived=2))
    assert [serve(queue, 3, 10).tenant for _ in range(2)] == ["modest", "modest"]


def test_a_class_that_is_passed_over_gets_a_place_now_and_then() -> None:
    """And no more than that: its backlog, however old, does not turn the order round."""
    queue = FairQueue(1, 30)
    for i in range(100):
        queue.add(ticket("batch", priority=10))
        queue.add(ticket("live", arrived=i, priority=0))
    served = []
    for now in range(60):
        served.append(serve(queue, now, 1).tenant)
        queue.add(ticket("live", arrived=now))
    assert served[0] == "live"
    assert 2 <= served.count("batch") <= 20
    gaps = [i for i, tenant in enumerate(served) if tenant == "batch"]
    assert all(b - a <= 31 for a, b in zip([0, *gaps], gaps, strict=False))


@SETTINGS
@given(
    st.lists(
        st.tuples(
            st.integers(-1000, 1000),  # class
            st.integers(1, 8),  # size
            st.floats(0, 20),  # seconds after the one before
            st.floats(0.1, 100),  # until it is given up
        ),
        min_size=1, max_size=80,
    ),
    st.floats(0.05, 3),
)  # fmt: skip
def test_no_class_is_starved(arrivals: list[tuple[int, int, float, float]], each: float) -> None:
    """Whatever comes, a class with something waiting gets a place within the patience, and one
    turn of each class that was at the top before it. Places come one by one, every ``each``
    seconds; requests are not given up here, which makes it harder."""
    patience = 10.0
    queue = FairQueue(8, patience)
    now = 0.0
    waiting: dict[int, float] = {}  # since when each class has been passed over
    left: dict[int, int] = {}
    coming = []
    for priority, size, gap, allowed in arrivals:
        now += gap
        coming.append(ticket(f"t{priority % 5}", now, priority, size))
        coming[-1].deadline = now + allowed
    now = 0.0
    while coming or queue:
        while coming and coming[0].arrived <= now:
            each_one = coming.pop(0)
            queue.add(each_one)
            waiting.setdefault(each_one.priority, each_one.arrived)
            left[each_one.priority] = left.get(each_one.priority, 0) + 1
        if queue:
            found = serve(queue, now, 1.0)
            over = now - waiting[found.priority]
            assert over <= patience + (len(waiting) + 1) * each
            waiting[found.priority] = now
            left[found.priority] -= 1
            if not left[found.priority]:
                del waiting[found.priority], left[found.priority]
        now += each


def test_nobody_takes_all_places() -> None:
    queue = FairQueue(64, 30)
    for i in range(200):
        queue.add(ticket("flood", arrived=i))
    taken = 0
    while (found := queue.next(300)) is not None:
        queue.start(found, 300)
        taken += 1
    assert taken == 64 * MOST // (MOST + 1)
    queue.add(ticket("other"))
    found = queue.next(300)
    assert found is not None
    assert found.tenant == "other"


def test_all_places_where_there_is_one_tenant_only() -> None:
    queue = FairQueue(64, 30, keeps_places=False)
    for i in range(100):
        queue.add(ticket("anybody", arrived=i))
    while (found := queue.next(300)) is not None:
        queue.start(found, 300)
    assert queue.running == 64


@SETTINGS
@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 6)), max_size=200))
def test_whoever_has_nothing_finds_a_place(asked: list[tuple[str, int]]) -> None:
    """As long as there are fewer than MOST tenants, one of them can always begin at once."""
    queue = FairQueue(64, 30)
    for i, (tenant, size) in enumerate(asked):
        queue.add(ticket(tenant, arrived=i, size=size))
    while (found := queue.next(300)) is not None:
        queue.start(found, 300)
    assert queue.running <= 64
    newcomer = ticket("newcomer", arrived=301)
    queue.add(newcomer)
    assert queue.next(301) is newcomer


def test_who_is_urgent() -> None:
    queue = FairQueue(64, 30)

    def begin(tenant: str, size: int = 1) -> bool:
        new = ticket(tenant, size=size)
        queue.add(new)
        return queue.start(new, 0)

    assert not begin("a")  # nobody else is there
    assert begin("b")
    assert not begin("b")  # it has one already
    queue.charge("a", 100)
    assert begin("c")  # begins where "b" is
    queue.charge("c", 50)
    assert not begin("a")  # has been served more
    for _ in range(20):
        begin("a")
    assert begin("b")  # has two, which is hardly any beside those of "a"
    assert begin("b")
    assert not begin("b")


def test_nothing_is_urgent_beside_a_class_before_its_own() -> None:
    queue = FairQueue(64, 30)
    for tenant, priority, urgent in (("a", 1, False), ("b", 2, False), ("c", 1, True)):
        new = ticket(tenant, priority=priority)
        queue.add(new)
        assert queue.start(new, 0) is urgent
    queue.end(new)


@SETTINGS
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=60), st.data())
def test_whatever_happens_everything_is_served_once(
    given_: list[tuple[str, int]], data: st.DataObject
) -> None:
    queue = FairQueue(1, 5)
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
    queue = FairQueue(1, 30)
    tickets = [ticket("flood", arrived=i, priority=i % 2) for i in range(4)]
    for each in tickets:
        queue.add(each)
    assert queue.newest_of_largest("other") is tickets[3]
    assert queue.newest_of_largest("flood") is None


@pytest.mark.parametrize(("places", "taken"), [(1, 1), (2, 1), (4, 3), (8, 7), (64, 56)])
def test_one_place_at_least_stays_free(places: int, taken: int) -> None:
    queue = FairQueue(places, 30)
    for i in range(100):
        queue.add(ticket("flood", arrived=i))
    while (found := queue.next(300)) is not None:
        queue.start(found, 300)
    assert queue.running == taken


def test_a_large_request_is_passed_by_newcomers_only_and_not_for_ever() -> None:
    queue = FairQueue(8, 30)
    running = [ticket("flood", arrived=i) for i in range(6)]
    for each in running:
        queue.add(each)
        queue.start(each, 0)
    large = ticket("large", arrived=0, size=7)
    queue.add(large)
    queue.add(ticket("flood", arrived=1))
    assert queue.next(1) is None
    small = ticket("newcomer", arrived=2)
    queue.add(small)
    assert queue.next(2) is small
    assert queue.next(31) is None
    for each in running:
        queue.end(each)
    assert queue.next(31) is large
