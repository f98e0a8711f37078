"""The headers that tell a client of its quotas, as OpenAI's and Anthropic's APIs write them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime

from tidemill.server.quotas import Limit


def openai_headers(limits: Iterable[Limit]) -> dict[str, str]:
    """``x-ratelimit-*``; a reset is a duration such as 6m0s."""
    found = {}
    for limit in limits:
        found[f"x-ratelimit-limit-{limit.kind}"] = str(limit.limit)
        found[f"x-ratelimit-remaining-{limit.kind}"] = str(limit.remaining)
        found[f"x-ratelimit-reset-{limit.kind}"] = duration(limit.reset)
    return found


def anthropic_headers(limits: Iterable[Limit], wall: float) -> dict[str, str]:
    """``anthropic-ratelimit-*``; a reset is a time of day, ``wall`` being now."""
    found = {}
    for limit in limits:
        name = f"anthropic-ratelimit-{limit.kind}"
        found[f"{name}-limit"] = str(limit.limit)
        found[f"{name}-remaining"] = str(limit.remaining)
        reset = datetime.fromtimestamp(math.ceil(wall + limit.reset), UTC)
        found[f"{name}-reset"] = reset.strftime("%Y-%m-%dT%H:%M:%SZ")
    return found


def duration(seconds: float) -> str:
    """As Go writes it, which is how OpenAI does: 20ms, 1.5s, 6m0s, 2h0m5s. Rounded up."""
    thousandths = math.ceil(seconds * 1000 - 1e-6)
    if thousandths < 1000:
        return f"{thousandths}ms" if thousandths else "0s"
    minutes, rest = divmod(thousandths, 60_000)
    last = f"{rest / 1000:g}s"
    if not minutes:
        return last
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{last}" if hours else f"{minutes}m{last}"
