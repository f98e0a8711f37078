"""Quotas by themselves, in simulated time, and the headers that tell of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.server.errors import ApiError
from tidemill.server.keys import Tenant
from tidemill.server.quotas import DAY, EXPECTED_OUTPUT, Limit, Quotas, Reservation
from tidemill.server.rate_limits import anthropic_headers, duration, openai_headers

SETTINGS = settings(derandomize=True, deadline=None)

MIDNIGHT = 20_000 * DAY  # UTC


def tenant(**quotas: Any) -> Tenant:
    return Tenant("editor", **quotas)


def refused(quotas: Quotas, who: Tenant, prompt: int, output: float, now: float) -> ApiError:
    with pytest.raises(ApiError) as caught:
        quotas.reserve(who, prompt, [output], now)
    return caught.value


def use(quotas: Quotas, who: Tenant, now: float, *, prompt: int = 1, output: int = 0,
        spent: int | None = None) -> Reservation:  # fmt: skip
    reserved = quotas.reserve(who, prompt, [output], now)
    reserved.spend(prompt + output if spent is None else spent)
    reserved.end(now)
    return reserved


def test_requests_per_minute() -> None:
    quotas, who = Quotas(MIDNIGHT), tenant(requests_per_minute=60)
    for _ in range(60):
        use(quotas, who, 5.0)
    error = refused(quotas, who, 1, 0, 5.25)
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    assert "60 requests per minute" in error.message
    assert error.retry_after == pytest.approx(0.75)
    use(quotas, who, 5.25 + error.retry_after + 1e-9)


def test_a_burst_of_its_own() -> None:
    quotas, who = Quotas(MIDNIGHT), tenant(requests_per_minute=60, burst_requests=2)
    use(quotas, who, 0)
    use(quotas, who, 0)
    assert refused(quotas, who, 1, 0, 0).retry_after == pytest.approx(1)


def test_tokens_are_reserved_and_settled() -> None:
    quotas, who = Quotas(MIDNIGHT), tenant(tokens_per_minute=600)
    reserved = quotas.reserve(who, 100, [400], 0)
    assert refused(quotas, who, 100, 100, 0).retry_after == pytest.approx(10)
    reserved.spend(150)
    reserved.end(0)
    reserved.end(0)  # settled once
    (limit,) = quotas.limits(who, 0)
    assert (limit.kind, limit.limit, limit.remaining) == ("tokens", 600, 450)
    assert limit.reset == pytest.approx(15)
    use(quotas, who, 0, prompt=100, output=100)


def test_more_than_was_reserved_is_a_debt() -> None:
    quotas, who = Quotas(MIDNIGHT), tenant(tokens_per_minute=6000)
    use(quotas, who, 0, prompt=10, output=1 << 20, spent=7000)
    assert quotas.limits(who, 0)[0].remaining == 0
    assert refused(quotas, who, 10, 0, 0).retry_after == pytest.approx(10.1)
    use(quotas, who, 10.2, prompt=10)


def test_what_is_reserved_is_bounded() -> None:
    """Clients ask for far more than they get, and such requests are served one beside another."""
    quotas, who = Quotas(MIDNIGHT), tenant(tokens_per_minute=10_000)
    first = quotas.reserve(who, 100, [1 << 30] * 2, 0)
    assert first.tokens == 100 + 2 * EXPECTED_OUTPUT
    small = tenant(tokens_per_minute=500)
    assert Quotas(MIDNIGHT).reserve(small, 100, [1 << 30], 0).tokens == 500


@pytest.mark.parametrize("quota", ["tokens_per_minute", "tokens_per_day"])
def test_what_can_never_be_is_no_429(quota: str) -> None:
    error = refused(Quotas(MIDNIGHT), tenant(**{quota: 1000}), 1001, 1, 0)
    assert (error.status, error.code) == (400, "request_exceeds_quota")
    assert "1001" in error.message
    assert "1000" in error.message


def test_tokens_per_day_come_back_at_midnight() -> None:
    quotas, who = Quotas(MIDNIGHT - 3600), tenant(tokens_per_day=1000)
    use(quotas, who, 0, prompt=900)
    error = refused(quotas, who, 200, 0, 0)
    assert error.retry_after == pytest.approx(3600)
    assert "1000 tokens per day" in error.message
    assert "61 minutes" in error.message
    refused(quotas, who, 200, 0, 3599)
    use(quotas, who, 3600, prompt=200)
    assert quotas.limits(who, 3600) == [Limit("tokens", 1000, 800, DAY)]


def test_a_request_over_midnight_counts_on_the_day_it_began() -> None:
    quotas, who = Quotas(MIDNIGHT - 10), tenant(tokens_per_day=1000)
    reserved = quotas.reserve(who, 500, [100], 0)
    use(quotas, who, 11, prompt=100)
    reserved.spend(550)
    reserved.end(12)
    assert quotas.unsaved() == {("editor", 19_999): 550, ("editor", 20_000): 100}
    quotas.note_saved(quotas.unsaved(), {})
    assert quotas.unsaved() == {}
    assert quotas.limits(who, 12)[0].remaining == 900


def test_what_others_and_earlier_lives_have_used_counts() -> None:
    quotas, who = Quotas(MIDNIGHT), tenant(tokens_per_day=1000)
    quotas.note_saved({}, {("editor", 20_000): 600})
    assert quotas.limits(who, 1)[0].remaining == 400
    use(quotas, who, 1, prompt=100)
    saving = quotas.unsaved()
    use(quotas, who, 1, prompt=50)  # while it is being saved
    quotas.note_saved(saving, {("editor", 20_000): 600 + 100 + 30})
    assert quotas.unsaved() == {("editor", 20_000): 50}
    assert quotas.limits(who, 1)[0].remaining == 1000 - 780


def test_requests_at_the_same_time() -> None:
    quotas, who = Quotas(MIDNIGHT), tenant(max_concurrent=2)
    first = quotas.reserve(who, 1, [1], 0)
    quotas.reserve(who, 1, [1], 0)
    error = refused(quotas, who, 1, 1, 0)
    assert (error.status, error.retry_after) == (429, 1.0)
    first.end(0)
    quotas.reserve(who, 1, [1], 0)
    assert quotas.limits(who, 0) == []


def test_what_is_refused_costs_nothing() -> None:
    quotas, who = Quotas(MIDNIGHT), tenant(requests_per_minute=60, tokens_per_minute=100)
    use(quotas, who, 0, prompt=90)
    for _ in range(100):
        refused(quotas, who, 50, 0, 0)
    assert quotas.limits(who, 0)[0].remaining == 59


def test_quotas_that_change_keep_what_has_been_used() -> None:
    quotas = Quotas(MIDNIGHT)
    old, more = tenant(requests_per_minute=60), tenant(requests_per_minute=120, tokens_per_day=1000)
    use(quotas, old, 0)
    use(quotas, more, 0)
    assert [limit.remaining for limit in quotas.limits(more, 0)] == [118, 998]
    # An answer to a request from before tells of what holds now, and changes nothing.
    assert quotas.limits(old, 0) == quotas.limits(more, 0)
    less = tenant(requests_per_minute=6)
    use(quotas, less, 0)
    assert [limit.remaining for limit in quotas.limits(less, 0)] == [3]
    none = tenant()
    assert quotas.limits(none, 0) == []
    use(quotas, none, 0, prompt=10**9)


requests = st.lists(
    st.tuples(
        st.floats(0, 30),  # seconds after the one before
        st.integers(1, 80),  # prompt
        st.integers(0, 50),  # answer at most
        st.floats(0, 1),  # share of it that comes
        st.floats(0, 20),  # seconds that it takes
    ),
    max_size=60,
)


@SETTINGS
@given(requests)
def test_no_more_than_the_quota_however_it_is_asked_for(
    asked: list[tuple[float, int, int, float, float]],
) -> None:
    """In any stretch of time: the burst, and what the time brings."""
    who = tenant(tokens_per_minute=120, burst_tokens=100, requests_per_minute=30, burst_requests=5)
    quotas = Quotas(MIDNIGHT)
    running: list[tuple[float, Reservation]] = []
    begun: list[tuple[float, int]] = []
    now = 0.0
    for gap, prompt, output, share, takes in asked:
        now += gap
        running.sort(key=lambda item: item[0])
        while running and running[0][0] <= now:
            end, reserved = running.pop(0)
            reserved.end(end)
        try:
            reserved = quotas.reserve(who, prompt, [output], now)
        except ApiError:
            continue
        reserved.spend(prompt + int(share * min(output, reserved.tokens - prompt)))
        begun.append((now, reserved.spent))
        running.append((now + takes, reserved))
    for i in range(len(begun)):
        for j in range(i, len(begun)):
            seconds = begun[j][0] - begun[i][0]
            assert sum(spent for _, spent in begun[i : j + 1]) <= 100 + 2 * seconds + 1e-6
            assert j - i + 1 <= 5 + 0.5 * seconds + 1e-6


@SETTINGS
@given(st.floats(0, 1e7), st.integers(1, 100), st.integers(1, 1000))
def test_the_time_to_come_back_is_exact(start: float, used: int, per_minute: int) -> None:
    who = tenant(tokens_per_minute=per_minute, burst_tokens=100)
    quotas = Quotas(MIDNIGHT)
    use(quotas, who, start, prompt=100)
    wait = refused(quotas, who, used, 0, start).retry_after
    assert wait == pytest.approx(used / per_minute * 60)
    refused(quotas, who, used, 0, start + wait * 0.999 - 1e-6)
    use(quotas, who, start + wait * 1.001 + 1e-6, prompt=used)


# ---- headers

LIMITS = [Limit("requests", 60, 59, 1.0), Limit("tokens", 1000, 0, 360.0)]


def test_openai_headers() -> None:
    assert openai_headers(LIMITS) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "6m0s",
    }


def test_anthropic_headers() -> None:
    assert anthropic_headers(LIMITS, MIDNIGHT + 0.5) == {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "59",
        "anthropic-ratelimit-requests-reset": "2024-10-04T00:00:02Z",
        "anthropic-ratelimit-tokens-limit": "1000",
        "anthropic-ratelimit-tokens-remaining": "0",
        "anthropic-ratelimit-tokens-reset": "2024-10-04T00:06:01Z",
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.0203, "21ms"), (1.5, "1.5s"), (59.9996, "1m0s"), (360, "6m0s"),
     (7205, "2h0m5s"), (86400, "24h0m0s")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
