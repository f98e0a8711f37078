"""Which replica a request goes to.

A policy sees the replicas that take requests at the moment, always in the same order. A ``static``
one looks at nothing that depends on how requests fare.
"""

from __future__ import annotations

import hashlib
import math
import random
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

_POINTS = 64
"""Of each replica on the ring."""

_MOST = 1.25
"""Times its share of what is outstanding that a replica may have before the next on the ring is
asked."""


class Target(Protocol):
    """A replica as policies see it. ``weight``: what it can do, relative to others.
    ``outstanding``: requests that were sent to it and have not ended."""

    number: int
    weight: float
    outstanding: int


class Policy(Protocol):
    static: bool

    def choose(self, key: bytes, targets: Sequence[Target]) -> int:
        """Which of ``targets`` gets a request; ``key`` is equal where KV blocks can be shared.
        Where the targets are others than before, so is the list."""
        ...


class RoundRobin:
    """One after the other."""

    static = True

    def __init__(self, rng: random.Random) -> None:
        self._next = 0

    def choose(self, key: bytes, targets: Sequence[Target]) -> int:
        chosen = self._next % len(targets)
        self._next = chosen + 1
        return chosen


class Random:
    """Any of them, all as likely."""

    static = True

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, key: bytes, targets: Sequence[Target]) -> int:
        return self._rng.randrange(len(targets))


class Weighted:
    """In proportion to their weights, evenly spread: each time all gain their weight, the one with
    the most is chosen and loses what all gained (the smooth weighted round robin of nginx)."""

    static = True

    def __init__(self, rng: random.Random) -> None:
        self._credit: dict[int, float] = {}

    def choose(self, key: bytes, targets: Sequence[Target]) -> int:
        credit = self._credit
        best, most, total = 0, -math.inf, 0.0
        for i, target in enumerate(targets):
            total += target.weight
            own = credit.get(target.number, 0.0) + target.weight
            credit[target.number] = own
            if own > most:
                best, most = i, own
        credit[targets[best].number] -= total
        return best


class LeastOutstanding:
    """The one with the fewest requests for its weight; of several the one after the last chosen,
    so that idle ones take turns."""

    static = False

    def __init__(self, rng: random.Random) -> None:
        self._last = -1

    def choose(self, key: bytes, targets: Sequence[Target]) -> int:
        n = len(targets)
        loads = [target.outstanding / target.weight for target in targets]
        least = min(loads)
        chosen = (self._last + 1) % n
        while loads[chosen] != least:
            chosen = (chosen + 1) % n
        self._last = chosen
        return chosen


class TwoChoices:
    """The less loaded of two that are drawn (Mitzenmacher, "The power of two choices in randomized
    load balancing", IEEE TPDS 12(10), 2001)."""

    static = False

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, key: bytes, targets: Sequence[Target]) -> int:
        if len(targets) == 1:
            return 0
        a, b = self._rng.sample(range(len(targets)), 2)
        loads = [targets[i].outstanding / targets[i].weight for i in (a, b)]
        return a if loads[0] <= loads[1] else b


class PrefixAffinity:
    """Equal beginnings to the same replica, which has their KV, as long as that has not much more
    than its share: consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, SODA
    2018)."""

    static = False

    def __init__(self, rng: random.Random) -> None:
        self._targets: Sequence[Target] = ()  # those on the ring
        self._weight = 0.0  # of all
        self._hashes: list[int] = []
        self._owners: list[int] = []  # the same points' targets

    def choose(self, key: bytes, targets: Sequence[Target]) -> int:
        if targets is not self._targets:
            self._make_ring(targets)
        outstanding = 1 + sum([target.outstanding for target in targets])
        start = bisect(self._hashes, _place(key))
        n = len(self._owners)
        for i in range(n):
            owner = self._owners[(start + i) % n]
            most = math.ceil(_MOST * outstanding * targets[owner].weight / self._weight)
            if targets[owner].outstanding < most:
                return owner
        raise AssertionError("somebody has less than his share")

    def _make_ring(self, targets: Sequence[Target]) -> None:
        points = sorted(
            (_place(b"%d %d" % (target.number, point)), i)
            for i, target in enumerate(targets)
            for point in range(_POINTS)
        )
        self._targets = targets
        self._weight = sum(target.weight for target in targets)
        self._hashes = [place for place, _ in points]
        self._owners = [i for _, i in points]


def _place(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


POLICIES: Mapping[str, Callable[[random.Random], Policy]] = {
    "round-robin": RoundRobin,
    "random": Random,
    "weighted": Weighted,
    "least-outstanding": LeastOutstanding,
    "two-choices": TwoChoices,
    "prefix": PrefixAffinity,
}


def policy(name: str, seed: int) -> Policy:
    """By its name; ``seed`` is of what it draws. Raises ValueError."""
    if name not in POLICIES:
        raise ValueError(f"there is no policy {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name](random.Random(f"routing {seed}"))
