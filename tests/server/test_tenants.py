"""Tenants side by side on a real server: a flood of one does not keep another waiting."""

from __future__ import annotations

import select
import threading
from pathlib import Path
from typing import Any

from support.serving import begin_request, paused, serving, until, write_keys
from support.tiny_chat_model import write_chat_model

BODY: dict[str, Any] = {
    "model": "tiny", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 300,
    "ignore_eos": True, "n": 4,
}  # fmt: skip


def test_a_flood_does_not_keep_others_waiting(tiny_chat_model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    write_keys(keys, "flood", "modest")
    with serving(
        str(tiny_chat_model), "--name", "tiny", "--threads", "1", "--max-sequences", "4",
        "--api-key-file", str(keys),
    ) as server:  # fmt: skip
        order: list[str] = []

        def ask(tenant: str) -> None:
            headers = {"Authorization": f"Bearer {tenant}"}
            status, _, _ = server.request("POST", "/v1/chat/completions", BODY, headers)
            assert status == 200
            order.append(tenant)

        def metric(name: str) -> float:
            text = server.request("GET", "/metrics", None, {"x-api-key": "flood"})[2].decode()
            return sum(float(x.split()[-1]) for x in text.splitlines() if x.startswith(name))

        flood = [threading.Thread(target=ask, args=["flood"]) for _ in range(16)]
        for thread in flood:
            thread.start()
        until(lambda: metric("vllm:num_requests_running{") > 0)
        with paused(server):  # until all wait but the one that runs, and those that have ended
            until(lambda: len(order) + metric("vllm:num_requests_waiting{") >= 15)
            modest = [threading.Thread(target=ask, args=["modest"]) for _ in range(3)]
            for thread in modest:
                thread.start()
            until(lambda: len(order) + metric("vllm:num_requests_waiting{") >= 18)
        for thread in (*flood, *modest):
            thread.join()
        # One that ran already and one in turn for each of theirs, not the whole flood.
        assert order.count("flood") == 16
        last = max(i for i, tenant in enumerate(order) if tenant == "modest")
        before = order[:last].count("flood")
        assert before < 16 - 4


def test_another_is_served_while_the_flood_goes_on(tmp_path: Path) -> None:
    """It finds a place at once, where all places are wanted, and its prompt does not wait."""
    keys = tmp_path / "keys.toml"
    write_keys(keys, "flood", "modest")
    model = write_chat_model(tmp_path / "long.gguf", context=8192)
    with serving(
        str(model), "--name", "tiny", "--threads", "1", "--max-sequences", "8",
        "--api-key-file", str(keys),
    ) as server:  # fmt: skip
        body = {**BODY, "n": 1, "max_tokens": 8000, "stream": True}  # which take many seconds
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
