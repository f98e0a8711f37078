"""A restarted server goes on from the KV blocks that the one before has left on disk."""

from __future__ import annotations

import signal
from pathlib import Path

from support.serving import Server, serving, until

PROMPT = [(13 * i + i // 17) % 256 for i in range(900)]
BODY = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True,
        "stream": False}  # fmt: skip


def test_a_restarted_server_is_warm(tiny_chat_model: Path, tmp_path: Path) -> None:
    environment = {"TIDEMILL_HOME": str(tmp_path)}
    arguments = (str(tiny_chat_model), "--name", "tiny", "--threads", "1", "--kv-disk", "64MiB")
    texts = []
    with serving(*arguments, environment=environment) as server:
        for cached in (0, 896):  # computed, then in memory
            status, answer = server.post("/v1/completions", BODY)
            assert status == 200
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
            texts.append(answer["choices"][0]["text"])
        status, other = server.post("/v1/completions", {**BODY, "cache_salt": "somebody"})
        assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        texts.append(other["choices"][0]["text"])
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    with serving(*arguments, environment=environment) as server:
        assert server.metric("tidemill:kv_disk_blocks", model_name="tiny") in (0, 2 * 56)
        status, answer = server.post("/v1/completions", BODY)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 896
        texts.append(answer["choices"][0]["text"])
        status, other = server.post("/v1/completions", {**BODY, "cache_salt": "nobody"})
        assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

        def written() -> float:
            # An engine tells how it is doing when it has done something.
            server.post("/v1/completions", {**BODY, "prompt": [1, 2], "max_tokens": 1})
            return server.metric("tidemill:kv_disk_blocks_written_total")

        until(lambda: written() == 56)
        for name, value in (
            ("kv_disk_restored_tokens_total", 896),
            ("kv_disk_blocks_read_total", 56),
            ("kv_disk_blocks", 3 * 56),
            ("kv_disk_blocks_dropped_total", 0),
            ("kv_disk_blocks_damaged_total", 0),
        ):
            assert server.metric(f"tidemill:{name}", model_name="tiny") == value, name
        assert server.metric("tidemill:kv_disk_bytes") > 0
    assert len(set(texts)) == 1


def test_without_it_there_is_nothing_of_it(server: Server) -> None:
    assert server.request("GET", "/metrics")[2].count(b"kv_disk") == 0
