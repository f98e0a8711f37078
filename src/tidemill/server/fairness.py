"""Who is served next: priority classes, and within a class fair shares of tokens.

Fairness is counted in tokens of service, after the virtual token counter of Sheng et al.,
"Fairness in Serving Large Language Models" (arXiv 2401.00588): a tenant's counter grows by the
tokens that are computed for it, divided by its weight, and the tenant that waits with the lowest
counter is next. A tenant that comes back after a pause begins at the lowest counter of those that
are active, so that nobody saves up while away; two tenants that always have something waiting can
then never be further apart than what runs at once.

Classes come first: of a more urgent class everything is served before anything of a less urgent
one, except what has waited longer than ``patience``, which is served in the order in which it came.
Pure: time is handed in, and nothing waits here (see admission.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

PROMPT_COST = 1.0
OUTPUT_COST = 2.0
"""Of a token, in the unit of counters; the values of the paper."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A request in the queue: ``size`` sequences for ``tenant``. Smaller ``priority`` is first."""

    tenant: str
    priority: int
    size: int
    arrived: float


@dataclass(slots=True)
class _Account:
    """What is known of a tenant. ``waiting``: its tickets by class, each in order of arrival."""

    weight: float
    served: float = 0.0
    running: int = 0
    waiting: dict[int, deque[Ticket]] = field(default_factory=dict)

    @property
    def n_waiting(self) -> int:
        return sum(map(len, self.waiting.values()))

    @property
    def active(self) -> bool:
        return self.running > 0 or bool(self.waiting)


class FairQueue:
    """Tickets, and the tenants' counters."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._accounts: dict[str, _Account] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, ticket: Ticket, weight: float = 1.0) -> None:
        account = self._accounts.setdefault(ticket.tenant, _Account(weight))
        account.weight = weight
        if not account.active:
            active = [a.served for a in self._accounts.values() if a.active]
            account.served = max(account.served, min(active, default=account.served))
        account.waiting.setdefault(ticket.priority, deque()).append(ticket)
        self._size += 1

    def next(self, now: float) -> Ticket | None:
        """The ticket that is to be served next; it stays in the queue."""
        heads = list(self._heads())
        if not heads:
            return None
        late = [ticket for ticket, _ in heads if now - ticket.arrived > self._patience]
        if late:
            return min(late, key=lambda ticket: ticket.arrived)
        return min(heads, key=lambda head: (head[0].priority, head[1], head[0].arrived))[0]

    def start(self, ticket: Ticket) -> None:
        """``ticket`` leaves the queue and runs, until ``end``."""
        self.remove(ticket)
        self._accounts[ticket.tenant].running += 1

    def remove(self, ticket: Ticket) -> None:
        """``ticket`` leaves the queue."""
        account = self._accounts[ticket.tenant]
        tickets = account.waiting[ticket.priority]
        tickets.remove(ticket)
        if not tickets:
            del account.waiting[ticket.priority]
        self._size -= 1

    def charge(self, tenant: str, cost: float) -> None:
        """Service for ``tenant``, in the unit of PROMPT_COST and OUTPUT_COST."""
        account = self._accounts[tenant]
        account.served += cost / account.weight

    def end(self, ticket: Ticket) -> None:
        """What was started is over. Tenants with nothing left are forgotten once all others that
        are active have got as far: then a new counter would be no lower."""
        self._accounts[ticket.tenant].running -= 1
        active = [a.served for a in self._accounts.values() if a.active]
        least = min(active, default=float("inf"))
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

    def _heads(self) -> Iterator[tuple[Ticket, float]]:
        """The first ticket of each tenant and class, and the tenant's counter."""
        for account in self._accounts.values():
            for tickets in account.waiting.values():
                yield tickets[0], account.served
