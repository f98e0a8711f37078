"""Quotas on a real server: what clients are told in each API, and what survives."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from support.serving import Server, begin_request, paused, serving, until
from tidemill.server.key_database import KeyDatabase
from tidemill.server.keys import digest_of

BODY: dict[str, Any] = {
    "model": "tiny", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 8,
    "ignore_eos": True,
}  # fmt: skip
TENANTS: dict[str, dict[str, Any]] = {
    "free": {},
    "few": {"requests_per_minute": 1, "burst_requests": 3},
    "claude": {"requests_per_minute": 1, "burst_requests": 3, "tokens_per_minute": 10**6},
    "words": {"tokens_per_minute": 60, "burst_tokens": 200},
    "one": {"max_concurrent": 1},
    "day": {"tokens_per_day": 1000},
    "sdk": {"requests_per_minute": 1, "burst_requests": 1},
}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> KeyDatabase:
    store = KeyDatabase(tmp_path_factory.mktemp("keys") / "keys.db")
    for name, settings in TENANTS.items():
        store.add_key(name, settings, digest_of(name))
    return store


@pytest.fixture(scope="module")
def tenants(endless: tuple[str, ...], database: KeyDatabase) -> Iterator[Server]:
    with serving(
        *endless, "--name", "tiny", "--threads", "1", "--api-key-file",
        str(database.path),
    ) as found:  # fmt: skip
        yield found


def ask(server: Server, name: str, **changes: Any) -> tuple[int, dict[str, str], bytes]:
    return server.request(
        "POST", "/v1/chat/completions", {**BODY, **changes}, {"Authorization": f"Bearer {name}"}
    )


def limits(headers: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in headers.items() if "ratelimit" in k}


def test_requests_are_counted_and_told(tenants: Server) -> None:
    assert limits(ask(tenants, "free")[1]) == {}
    for left in (2, 1, 0):
        status, headers, _ = ask(tenants, "few", stream=left == 1)
        assert status == 200
        assert headers["x-ratelimit-limit-requests"] == "3"
        assert headers["x-ratelimit-remaining-requests"] == str(left)
        assert headers["x-ratelimit-reset-requests"].endswith("s")
    status, headers, data = ask(tenants, "few")
    assert status == 429
    assert b"rate_limit_exceeded" in data
    assert b"1 requests per minute" in data
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert 0 < int(headers["retry-after"]) <= 60
    milliseconds = int(headers["retry-after-ms"])
    assert int(headers["retry-after"]) - 1 <= milliseconds / 1000 <= int(headers["retry-after"])
    headers = tenants.request("GET", "/v1/models", None, {"x-api-key": "few"})[1]
    assert headers["x-ratelimit-remaining-requests"] == "0"


def test_anthropics_form(tenants: Server) -> None:
    client = anthropic.Anthropic(base_url=tenants.url, api_key="claude", max_retries=0)
    message = {"model": "tiny", "max_tokens": 8, "messages": BODY["messages"]}
    for _ in range(3):
        told = client.messages.with_raw_response.create(**message).headers
    assert told["anthropic-ratelimit-requests-remaining"] == "0"
    assert told["anthropic-ratelimit-tokens-limit"] == "1000000"
    assert told["anthropic-ratelimit-requests-reset"].endswith("Z")
    with pytest.raises(anthropic.RateLimitError) as caught:
        client.messages.create(**message)
    assert caught.value.body["error"]["type"] == "rate_limit_error"
    assert caught.value.response.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert "x-ratelimit-limit-requests" not in caught.value.response.headers


def test_ollamas_form(tenants: Server) -> None:
    body = {"model": "tiny", "prompt": "x" * 3000, "stream": False}
    status, _, data = tenants.request("POST", "/api/generate", body, {"x-api-key": "words"})
    assert status == 400
    assert b"quota" in data


def test_the_sdk_is_told_that_a_quota_is_used_up(tenants: Server) -> None:
    client = openai.OpenAI(base_url=f"{tenants.url}/v1", api_key="sdk", max_retries=0)
    client.chat.completions.create(model="tiny", messages=BODY["messages"], max_tokens=1)
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model="tiny", messages=BODY["messages"], max_tokens=1)
    assert caught.value.code == "rate_limit_exceeded"


def test_tokens_are_settled_on_what_came(tenants: Server) -> None:
    begun = left(tenants, "words")
    short = {"max_tokens": 150, "guided_choice": ["a"], "ignore_eos": False}
    _, headers, data = ask(tenants, "words", **short)
    used = json.loads(data)["usage"]["total_tokens"]
    assert used < 40
    # What was not used of what had been reserved is there again.
    assert int(headers["x-ratelimit-remaining-tokens"]) >= begun - used
    _, headers, _ = ask(tenants, "words", stream=True, **short)
    assert int(headers["x-ratelimit-remaining-tokens"]) < begun - 80  # while it ran
    until(lambda: left(tenants, "words") >= begun - 2 * used)
    _, headers, data = ask(tenants, "words", max_tokens=50)
    assert b'"completion_tokens":50' in data
    status, headers, data = ask(tenants, "words", max_tokens=1000)
    assert status == 429
    assert b"60 tokens per minute" in data
    status, headers, data = ask(
        tenants, "words", messages=[{"role": "user", "content": "far too much " * 100}]
    )
    assert status == 400  # which no client tries again
    assert b"request_exceeds_quota" in data


def left(server: Server, name: str) -> int:
    headers = server.request("GET", "/v1/models", None, {"x-api-key": name})[1]
    return int(headers["x-ratelimit-remaining-tokens"])


def test_requests_at_the_same_time(tenants: Server) -> None:
    body = {**BODY, "max_tokens": 60_000, "n": 8, "stream": True}
    with begin_request(tenants, "/v1/chat/completions", body, key="one") as first:
        assert first.recv(12) == b"HTTP/1.1 200"
        with paused(tenants):
            status, headers, data = ask(tenants, "one")
        assert status == 429
        assert b"1 requests at the same time" in data
        assert headers["retry-after"] == "1"
    until(lambda: ask(tenants, "one")[0] == 200)  # it has left


def test_tokens_of_a_client_that_leaves_are_counted(tenants: Server) -> None:
    before = left(tenants, "day")
    with begin_request(
        tenants, "/v1/chat/completions", {**BODY, "max_tokens": 500, "stream": True}, key="day"
    ) as connection:
        told = b""
        while told.count(b'"content"') < 2:  # the first is of a role
            told += connection.recv(4096)

    def used() -> float:
        """As its metrics tell, which they do when it is over."""
        text = tenants.request("GET", "/metrics", headers={"x-api-key": "day"})[2].decode()
        counts = re.findall(r"tenant_(?:prompt|generation)_tokens_total\{.*\} (\S+)", text)
        return sum(map(float, counts))

    until(lambda: left(tenants, "day") == before - used() < before)
    until(lambda: ask(tenants, "day")[0] == 200)  # and nothing is reserved for it any more


def test_quotas_change_while_it_runs(tenants: Server, database: KeyDatabase) -> None:
    database.add_key("new", {"requests_per_minute": 60}, digest_of("new"))
    until(lambda: ask(tenants, "new")[0] == 200)
    database.change("new", {"requests_per_minute": 600})
    until(lambda: ask(tenants, "new")[1].get("x-ratelimit-limit-requests") == "600")
    database.revoke("new")
    until(lambda: ask(tenants, "new")[0] == 401)


def test_tokens_of_a_day_survive_a_restart(tiny_chat_model: Path, tmp_path: Path) -> None:
    if 86400 - time.time() % 86400 < 120:
        pytest.skip("it is midnight")
    store = KeyDatabase(tmp_path / "keys.db")
    store.add_key("day", {"tokens_per_day": 10_000}, digest_of("day"))
    arguments = (
        str(tiny_chat_model), "--name", "tiny", "--threads", "1", "--api-key-file",
        str(store.path),
    )  # fmt: skip
    with serving(*arguments) as server:
        assert ask(server, "day", max_tokens=100)[0] == 200
        remaining = left(server, "day")
        assert remaining < 10_000 - 100
    with serving(*arguments) as server, serving(*arguments) as other:
        assert left(server, "day") == remaining
        assert ask(other, "day", max_tokens=100)[0] == 200
        until(lambda: left(server, "day") < remaining - 100)  # both count together


@pytest.mark.parametrize("priority", [-1, -(2**63), 2**63 - 1])
def test_a_client_cannot_put_itself_before_its_class(tenants: Server, priority: int) -> None:
    status, _, data = ask(tenants, "free", priority=priority)
    assert status == 400
    assert b'"param":"priority"' in data
