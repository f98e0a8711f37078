"""Who is served next: priority classes, and within a class fair shares of tokens.

Fairness is counted in tokens of service, after the virtual token counter of Sheng et al.,
"Fairness in Serving Large Language Models" (arXiv 2401.00588): a tenant's counter grows by the
tokens that are computed for it, divided by its weight, and the tenant that waits with the lowest
counter is next. A tenant that comes back after a pause begins at the lowest counter of those that
are active, so that nobody saves up while away; two tenants that always have something waiting can
then never be further apart than what runs at once.

Between priority classes the scheduling priority decides (placement.py).

Nobody takes all places: a tenant may have at most MOST times as many as are still free, so that
whoever comes next finds one (the dynamic threshold of Choudhury and Hahne, "Dynamic queue length
thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998). One
tenant alone gets 7/8 of the places, of two that want all each 7/15.

Pure: time is handed in, and nothing waits here (see admission.py).
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from tidemill.server.placement import scheduling_priority, urgency, utilisation, weight

PROMPT_COST = 1.0
OUTPUT_COST = 2.0
"""Of a token, in the unit of counters; the values of the paper."""
MOST = 7


@dataclass(slots=True, eq=False)
class Ticket:
    """A request in the queue: ``size`` sequences for ``tenant``. ``priority`` is its class, smaller
    ones come first; ``order`` is its place among those of its tenant and class, smaller first, then
    by arrival. After ``deadline`` it is given up."""

    tenant: str
    priority: int
    size: int
    arrived: float
    deadline: float = inf
    order: int = 0


@dataclass(slots=True)
class _Account:
    """What is known of a tenant. ``running``: its sequences. ``waiting``: its tickets by class,
    the next one first."""

    weight: float
    served: float = 0.0
    running: int = 0
    waiting: dict[int, list[Ticket]] = field(default_factory=dict)

    @property
    def n_waiting(self) -> int:
        return sum(map(len, self.waiting.values()))

    @property
    def active(self) -> bool:
        return self.running > 0 or bool(self.waiting)


class FairQueue:
    """Tickets, and the tenants' counters. ``capacity``: sequences that can run together.
    ``keeps_places``: for other tenants; not where there are none."""

    def __init__(self, capacity: int, patience: float, *, keeps_places: bool = True) -> None:
        self.running = 0
        """Sequences that do."""
        self._classes: Counter[int] = Counter()
        """The same by class."""
        self._capacity = capacity
        self.most = max(1, capacity * MOST // (MOST + 1)) if keeps_places else capacity
        """Places that one request can have."""
        self._patience = patience
        self._keeps_places = keeps_places
        self._accounts: dict[str, _Account] = {}
        self._passed_over: dict[int, float] = {}
        """Since when, by class; those that have something waiting."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, ticket: Ticket, weight: float = 1.0) -> None:
        account = self._accounts.setdefault(ticket.tenant, _Account(weight))
        account.weight = weight
        if not account.active:
            active = [a.served for a in self._accounts.values() if a.active]
            account.served = max(account.served, min(active, default=account.served))
        insort(account.waiting.setdefault(ticket.priority, []), ticket, key=lambda t: t.order)
        self._passed_over.setdefault(ticket.priority, ticket.arrived)
        self._size += 1

    def next(self, now: float) -> Ticket | None:
        """The ticket that is to be served next; it stays in the queue. None if there is none, or
        no place for it. For a large one places are let run empty, or it would never be served: only
        tenants that have none may pass it, and not for longer than the patience."""
        heads = [(t, a) for t, a in self._heads() if self._may_have(a, t.size)]
        heads.sort(key=lambda head: (head[1].served, head[0].arrived))
        classes: dict[int, tuple[float, float, int]] = {}
        for ticket, _ in heads:
            if ticket.priority not in classes:
                classes[ticket.priority] = self._place_of_class(ticket, now)
        heads.sort(key=lambda head: classes[head[0].priority])
        passing = False
        for ticket, account in heads:
            if passing and account.running:
                continue
            if self.running + ticket.size <= self._capacity:
                return ticket
            if now - ticket.arrived > self._patience:
                return None
            passing = True
        return None

    def _place_of_class(self, first: Ticket, now: float) -> tuple[float, float, int]:
        """Sorts the classes; ``first`` is whose turn it is in its own."""
        since = self._passed_over[first.priority]
        rank = sum(other < first.priority for other in self._passed_over)
        use = utilisation(self.running, first.size, self._capacity, weight(rank))
        bonus = urgency(now - since, first.deadline - now, self._patience)
        return -scheduling_priority(use, bonus), since, first.priority

    def start(self, ticket: Ticket, now: float) -> bool:
        """``ticket`` leaves the queue and runs, until ``end``. Whether it is urgent: its tenant has
        been served no more than any other that runs something, has hardly any of the places beside
        one that has many, and no class before its own runs."""
        account = self._accounts[ticket.tenant]
        others = [a for a in self._accounts.values() if a.running and a is not account]
        urgent = (
            bool(others)
            and account.served <= min(a.served for a in others)
            and account.running * MOST < max(a.running for a in others)
            and ticket.priority <= min(self._classes)
        )
        self.remove(ticket)
        if ticket.priority in self._passed_over:
            self._passed_over[ticket.priority] = now
        account.running += ticket.size
        self.running += ticket.size
        self._classes[ticket.priority] += ticket.size
        return urgent

    def remove(self, ticket: Ticket) -> None:
        """``ticket`` leaves the queue."""
        waiting = self._accounts[ticket.tenant].waiting
        tickets = waiting[ticket.priority]
        tickets.remove(ticket)
        if not tickets:
            del waiting[ticket.priority]
            if all(ticket.priority not in a.waiting for a in self._accounts.values()):
                del self._passed_over[ticket.priority]
        self._size -= 1

    def charge(self, tenant: str, cost: float) -> None:
        """Service for ``tenant``, in the unit of PROMPT_COST and OUTPUT_COST."""
        account = self._accounts[tenant]
        account.served += cost / account.weight

    def end(self, ticket: Ticket) -> None:
        """What was started is over. Tenants with nothing left are forgotten once all others that
        are active have got as far: then a new counter would be no lower."""
        self._accounts[ticket.tenant].running -= ticket.size
        self.running -= ticket.size
        self._classes[ticket.priority] -= ticket.size
        if not self._classes[ticket.priority]:
            del self._classes[ticket.priority]
        active = [a.served for a in self._accounts.values() if a.active]
        least = min(active, default=inf)
        for name in [n for n, a in self._accounts.items() if not a.active and a.served <= least]:
            del self._accounts[name]

    def newest_of_largest(self, tenant: str) -> Ticket | None:
        """Who gives way when the queue is full and ``tenant`` asks: the newest ticket of the tenant
        that has most waiting, if that is at least two more than ``tenant`` has."""
        largest = max(self._accounts, key=lambda n: self._accounts[n].n_waiting, default=None)
        if largest is None:
            return None
        mine = self._accounts[tenant].n_waiting if tenant in self._accounts else 0
        account = self._accounts[largest]
        if account.n_waiting < mine + 2:
            return None
        return account.waiting[max(account.waiting)][-1]

    def _may_have(self, account: _Account, size: int) -> bool:
        """Whether the tenant may have so many more places, if they are free; the first always."""
        if not self._keeps_places or not account.running:
            return True
        return account.running + size <= MOST * (self._capacity - self.running - size)

    def _heads(self) -> Iterator[tuple[Ticket, _Account]]:
        """The first ticket of each tenant and class."""
        for account in self._accounts.values():
            for tickets in account.waiting.values():
                yield tickets[0], account
