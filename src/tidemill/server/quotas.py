"""How much a tenant may ask for: requests and tokens a minute, tokens a day, requests at once.

What is per minute is a token bucket: it holds a burst, at first and at most, and fills evenly. The
tokens of a request are not known before its end, so an estimate is reserved (the prompt, and what
it may generate up to EXPECTED_OUTPUT for each answer), and settled on what it really was. Where
that was more, the bucket is in debt, and later requests wait for longer.

Days are those of UTC. Tokens of the prompt count whether they were in the prefix cache or not.

Pure: time is handed in, in seconds of a clock that never goes back (time.monotonic), which also
tells the day, by what the wall clock said when it began. So setting the clock neither fills a
bucket nor begins a day.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from tidemill.server.errors import ApiError
from tidemill.server.keys import Tenant

EXPECTED_OUTPUT = 1024
"""Tokens of one answer that are reserved at most: what clients write into max_tokens is often far
more than comes."""
DAY = 86400.0
_AT_ONCE_RETRY = 1.0  # seconds; when one of those that run will end is not known


@dataclass(slots=True)
class Bucket:
    """Holds ``capacity`` at most, gets ``rate`` more a second; ``level`` is from the time ``at``,
    and below 0 while in debt."""

    rate: float
    capacity: float
    level: float
    at: float

    def refill(self, now: float) -> None:
        if now > self.at:
            self.level = min(self.capacity, self.level + (now - self.at) * self.rate)
            self.at = now

    def seconds_until(self, level: float) -> float:
        return max(0.0, (level - self.level) / self.rate)

    def put(self, amount: float) -> None:
        """``amount`` is negative for what is taken."""
        self.level = min(self.capacity, self.level + amount)

    def resize(self, rate: float, capacity: float) -> None:
        """What has been used stays used."""
        self.level += capacity - self.capacity
        self.rate, self.capacity = rate, capacity


@dataclass(slots=True)
class DayCount:
    """Tokens of one day: ``saved`` by whoever keeps them, settled and not yet saved, reserved."""

    day: int
    saved: int = 0
    unsaved: int = 0
    reserved: int = 0

    @property
    def used(self) -> int:
        return self.saved + self.unsaved + self.reserved


@dataclass(frozen=True, slots=True)
class Limit:
    """A quota as it is told to clients: of ``kind`` there are ``limit``, ``remaining`` now, and
    all again in ``reset`` seconds."""

    kind: Literal["requests", "tokens"]
    limit: int
    remaining: int
    reset: float


class Reservation:
    """What was set aside for a request. ``spend`` what it uses; ``end`` it once."""

    def __init__(self, ledger: _Ledger, tokens: int, day: int) -> None:
        self.tokens = tokens
        self.day = day
        self.spent = 0
        self._ledger: _Ledger | None = ledger

    def spend(self, tokens: int) -> None:
        self.spent += tokens

    def end(self, now: float) -> None:
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.settle(self, now)


class Quotas:
    """What every tenant with quotas has used. ``epoch``: the wall clock's time (Unix) when the
    clock that is handed in was 0."""

    def __init__(self, epoch: float) -> None:
        self._epoch = epoch
        self._ledgers: dict[str, _Ledger] = {}
        self._saved: dict[tuple[str, int], int] = {}

    def reserve(
        self, tenant: Tenant, prompt: int, outputs: Sequence[float], now: float
    ) -> Reservation:
        """Set aside what a request may use: its prompts' tokens, and for each answer the most that
        it may have. Raises ApiError 429 if a quota is used up, 400 if it can never be enough."""
        ledger = self._ledger(tenant, now)
        ledger.follow(tenant, now)
        return ledger.reserve(prompt, outputs, now)

    def limits(self, tenant: Tenant, now: float) -> list[Limit]:
        """What there is to tell of the tenant's quotas; of those in tokens the tightest. They are
        those of its last request: the ``tenant`` of an answer may be that of minutes ago."""
        return self._ledger(tenant, now).limits(now) if tenant.has_quotas else []

    def wall(self, now: float) -> float:
        """The time of day, as Unix time, by which days are counted."""
        return self._epoch + now

    def day(self, now: float) -> int:
        """Days since 1970."""
        return int(self.wall(now) // DAY)

    def unsaved(self) -> dict[tuple[str, int], int]:
        """By tenant and day: tokens that have been settled and not saved. Those of the days that
        are over are told once."""
        found: dict[tuple[str, int], int] = {}
        for name, ledger in self._ledgers.items():
            for count in (*ledger.past, ledger.today):
                if count.unsaved:
                    found[name, count.day] = count.unsaved
        return found

    def note_saved(
        self, saved: dict[tuple[str, int], int], totals: dict[tuple[str, int], int]
    ) -> None:
        """What ``unsaved`` gave is kept now; ``totals`` is what is kept in all."""
        self._saved = dict(totals)
        for name, ledger in self._ledgers.items():
            for count in (*ledger.past, ledger.today):
                key = name, count.day
                count.unsaved -= saved.get(key, 0)
                count.saved = totals.get(key, count.saved + saved.get(key, 0))
            ledger.past = [count for count in ledger.past if count.unsaved or count.reserved]

    def _ledger(self, tenant: Tenant, now: float) -> _Ledger:
        ledger = self._ledgers.get(tenant.name)
        if ledger is None:
            ledger = self._ledgers[tenant.name] = _Ledger(tenant, self._epoch, now)
            ledger.today.saved = self._saved.get((tenant.name, ledger.today.day), 0)
        ledger.pass_time(now)
        return ledger


class _Ledger:
    """One tenant's buckets and counts."""

    def __init__(self, tenant: Tenant, epoch: float, now: float) -> None:
        self._tenant = tenant
        self._epoch = epoch
        self._requests = _bucket(tenant.requests_per_minute, tenant.burst_requests, now)
        self._tokens = _bucket(tenant.tokens_per_minute, tenant.burst_tokens, now)
        self._running = 0
        self.today = DayCount(self._day(now))
        self.past: list[DayCount] = []
        """Days that are over, of which something is not saved or not settled yet."""

    def follow(self, tenant: Tenant, now: float) -> None:
        """Take over the tenant's quotas as the keys have them now."""
        if tenant is not self._tenant:
            self._requests = _changed(
                self._requests, tenant.requests_per_minute, tenant.burst_requests, now
            )
            self._tokens = _changed(
                self._tokens, tenant.tokens_per_minute, tenant.burst_tokens, now
            )
            self._tenant = tenant

    def pass_time(self, now: float) -> None:
        for bucket in (self._requests, self._tokens):
            if bucket is not None:
                bucket.refill(now)
        if (day := self._day(now)) != self.today.day:
            if self.today.unsaved or self.today.reserved:
                self.past.append(self.today)
            self.today = DayCount(day)

    def reserve(self, prompt: int, outputs: Sequence[float], now: float) -> Reservation:
        most = min(inf if self._tokens is None else self._tokens.capacity, self._of_day)
        if prompt > most:
            raise ApiError(
                400, f"the prompt has {prompt} tokens, and this key's quota never holds more than "
                f"{int(most)}", code="request_exceeds_quota",
            )  # fmt: skip
        wanted = prompt + sum(min(output, EXPECTED_OUTPUT) for output in outputs)
        tokens = int(min(wanted, most))
        name, wait = max(self._waits(tokens, now), key=lambda found: found[1], default=("", 0.0))
        if wait > 0:
            raise ApiError(
                429, f"this key's quota of {name} is used up; try again in {_about(wait)}",
                code="rate_limit_exceeded", kind="rate_limit_error", retry_after=wait,
            )  # fmt: skip
        self._running += 1
        if self._requests is not None:
            self._requests.put(-1)
        if self._tokens is not None:
            self._tokens.put(-tokens)
        self.today.reserved += tokens
        return Reservation(self, tokens, self.today.day)

    def settle(self, reservation: Reservation, now: float) -> None:
        self.pass_time(now)
        self._running -= 1
        if self._tokens is not None:
            self._tokens.put(reservation.tokens - reservation.spent)
        for count in (*self.past, self.today):
            if count.day == reservation.day:
                count.reserved -= reservation.tokens
                count.unsaved += reservation.spent

    def limits(self, now: float) -> list[Limit]:
        found = []
        tokens = []
        if self._requests is not None:
            found.append(_limit("requests", self._requests))
        if self._tokens is not None:
            tokens.append(_limit("tokens", self._tokens))
        if (most := self._tenant.tokens_per_day) is not None:
            left = max(0, most - self.today.used)
            tokens.append(Limit("tokens", most, left, self._until_tomorrow(now)))
        if tokens:
            found.append(min(tokens, key=lambda limit: limit.remaining))
        return found

    @property
    def _of_day(self) -> float:
        return inf if self._tenant.tokens_per_day is None else self._tenant.tokens_per_day

    def _waits(self, tokens: int, now: float) -> Iterator[tuple[str, float]]:
        """Seconds until each quota would allow a request of so many tokens."""
        tenant = self._tenant
        if self._requests is not None:
            yield (
                f"{tenant.requests_per_minute} requests per minute",
                self._requests.seconds_until(1),
            )
        if self._tokens is not None:
            yield (
                f"{tenant.tokens_per_minute} tokens per minute",
                self._tokens.seconds_until(tokens),
            )
        if self.today.used + tokens > self._of_day:
            yield f"{tenant.tokens_per_day} tokens per day", self._until_tomorrow(now)
        if tenant.max_concurrent is not None and self._running >= tenant.max_concurrent:
            yield f"{tenant.max_concurrent} requests at the same time", _AT_ONCE_RETRY

    def _day(self, now: float) -> int:
        return int((self._epoch + now) // DAY)

    def _until_tomorrow(self, now: float) -> float:
        return DAY - (self._epoch + now) % DAY


def _bucket(per_minute: int | None, burst: int | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    capacity = per_minute if burst is None else burst
    return Bucket(per_minute / 60, capacity, capacity, now)


def _changed(
    bucket: Bucket | None, per_minute: int | None, burst: int | None, now: float
) -> Bucket | None:
    fresh = _bucket(per_minute, burst, now)
    if bucket is None or fresh is None:
        return fresh
    bucket.refill(now)
    bucket.resize(fresh.rate, fresh.capacity)
    return bucket


def _limit(kind: Literal["requests", "tokens"], bucket: Bucket) -> Limit:
    remaining = max(0, int(bucket.level))
    return Limit(kind, int(bucket.capacity), remaining, bucket.seconds_until(bucket.capacity))


def _about(seconds: float) -> str:
    """In words, never less than it is."""
    if seconds < 120:
        return f"{seconds + 0.05:.1f} s"
    minutes = int(seconds // 60) + 1
    return f"{minutes} minutes" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
