"""Tenants side by side on a real server: a flood of one does not keep another waiting."""

from __future__ import annotations

import json
import select
import socket
from pathlib import Path
from typing import Any

from support.serving import begin_request, paused, serving, until, write_keys

BODY: dict[str, Any] = {
    "model": "tiny", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 300,
    "ignore_eos": True, "n": 4,
}  # fmt: skip


def test_a_flood_does_not_keep_others_waiting(tiny_chat_model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    write_keys(keys, "flood", "modest")
    with serving(
        str(tiny_chat_model), "--name", "tiny", "--threads", "1", "--max-sequences", "4",
        "--api-key-file", str(keys), "--log-format", "json",
    ) as server:  # fmt: skip
        server.key = "flood"  # for the metrics

        def begin(tenant: str, n: int) -> list[socket.socket]:
            path = "/v1/chat/completions"
            return [begin_request(server, path, BODY, key=tenant) for _ in range(n)]

        def served() -> list[str]:
            """Whose requests have been answered, one after the other, as the server tells it:
            clients may learn of several at once."""
            lines = [json.loads(line) for line in server.lines if "chat/completions" in line]
            assert {line["status"] for line in lines} <= {200}
            return [line["tenant"] for line in lines]

        with paused(server):  # until all wait but the one whose turn it is
            connections = begin("flood", 16)
            until(lambda: server.waiting() == 15)
            connections += begin("modest", 3)
            until(lambda: server.waiting() == 18)
        until(lambda: len(served()) == 19)
        for connection in connections:
            connection.close()
        order = served()
        # One whose turn it was and one in turn for each of theirs, not the whole flood.
        assert order.count("flood") == 16
        last = max(i for i, tenant in enumerate(order) if tenant == "modest")
        before = order[:last].count("flood")
        assert before < 16 - 4


def test_another_is_served_while_the_flood_goes_on(
    endless: tuple[str, ...], tmp_path: Path
) -> None:
    """It finds a place at once, where all places are wanted, and its prompt does not wait."""
    keys = tmp_path / "keys.toml"
    write_keys(keys, "flood", "modest")
    with serving(
        *endless, "--name", "tiny", "--threads", "1", "--max-sequences", "8",
        "--api-key-file", str(keys),
    ) as server:  # fmt: skip
        body = {**BODY, "n": 1, "max_tokens": 60_000, "stream": True}
        flood = [
            begin_request(server, "/v1/chat/completions", body, key="flood") for _ in range(20)
        ]

        def begun() -> int:
            return len(select.select(flood, [], [], 0)[0])

        until(lambda: begun() >= 7)
        for _ in range(5):
            headers = {"Authorization": "Bearer modest"}
            status, _, _ = server.request(
                "POST", "/v1/chat/completions", {**BODY, "n": 1, "max_tokens": 4}, headers
            )
            assert status == 200
        assert begun() == 7  # nothing of the flood has ended meanwhile, so that another could begin
        for connection in flood:
            connection.close()


def test_nobody_learns_from_the_cache_what_others_have_asked(
    tiny_chat_model: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    write_keys(keys, "one", "other")
    messages = [{"role": "user", "content": "The secret is 42. " * 20}]
    body = {**BODY, "n": 1, "max_tokens": 1, "messages": messages}

    with serving(
        str(tiny_chat_model), "--name", "tiny", "--threads", "1", "--api-key-file", str(keys)
    ) as server:

        def cached(tenant: str, **salt: str) -> int:
            headers = {"Authorization": f"Bearer {tenant}"}
            status, answer = server.post("/v1/chat/completions", {**body, **salt}, headers=headers)
            assert status == 200
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert cached("one") == 0
        assert cached("one") > 0
        assert cached("other") == 0
        assert cached("one", cache_salt="x") == 0
        assert cached("other", cache_salt="x") == 0
        assert cached("one", cache_salt="x") > 0
