"""KV blocks on a server's disk: a restart goes on from them, and a disk that fills up costs no
answer."""

from __future__ import annotations

import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.serving import Server, serving, until

OPTIONS = ("--name", "tiny", "--threads", "1", "--kv-disk", "64MiB")
# Reading from the disk always pays, however long it takes on a busy machine.
PATIENT = """
import tidemill.engine.kv_tier as kv_tier
import tidemill.llm.kv_disk as kv_disk

kv_disk.DiskTier.seconds = lambda self, n: 0.0
kv_disk._CLOSE_SECONDS = 60.0
kv_tier._LEAST_PATIENCE = 60.0
"""
FULL = 896  # tokens of a prompt that are in full blocks


def prompt(number: int) -> list[int]:
    return [(13 * i + i // 17 + 31 * number) % 256 for i in range(900)]


def ask(server: Server, number: int = 0, **fields: Any) -> tuple[str, int]:
    """The answer to a prompt, and how many of its tokens had not to be computed."""
    body = {"model": "tiny", "prompt": prompt(number), "max_tokens": 8, "temperature": 0,
            "ignore_eos": True, **fields}  # fmt: skip
    status, answer = server.post("/v1/completions", body)
    assert status == 200, answer
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return str(answer["choices"][0]["text"]), int(cached)


def metric(server: Server, name: str) -> float:
    """Of the blocks on disk, now: an engine tells how it is doing when it has done something."""
    ask(server, prompt=[1, 2], max_tokens=1)
    return server.metric(f"tidemill:kv_disk_{name}", model_name="tiny")


def end(server: Server) -> None:
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "sitecustomize.py").write_text(PATIENT)
    return {"TIDEMILL_HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}


def test_a_restarted_server_is_warm(tiny_chat_model: Path, environment: dict[str, str]) -> None:
    with serving(str(tiny_chat_model), *OPTIONS, environment=environment) as server:
        answers = [ask(server), ask(server), ask(server, cache_salt="somebody")]
        assert [cached for _, cached in answers] == [0, FULL, 0]  # computed, then in memory
        until(lambda: metric(server, "blocks_written_total") == 2 * 56)
        end(server)
    with serving(str(tiny_chat_model), *OPTIONS, environment=environment) as server:
        assert server.metric("tidemill:kv_disk_blocks", model_name="tiny") in (0, 2 * 56)
        answers += [ask(server), ask(server, cache_salt="nobody")]
        assert [cached for _, cached in answers[3:]] == [FULL, 0]
        until(lambda: metric(server, "blocks_written_total") == 56)
        for name, value in (
            ("restored_tokens_total", FULL),
            ("blocks_read_total", 56),
            ("blocks", 3 * 56),
            ("blocks_dropped_total", 0),
            ("blocks_damaged_total", 0),
        ):
            assert metric(server, name) == value, name
        assert metric(server, "bytes") > 0
    assert len({text for text, _ in answers}) == 1


def test_a_disk_that_is_full_in_the_middle_of_a_block(
    tiny_chat_model: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """Under load: every answer is whole and right, what is kept is kept in the room that there is,
    and is sound after a restart."""
    with serving(str(tiny_chat_model), *OPTIONS, environment=environment) as server:
        alone = [ask(server)[0]]
        until(lambda: metric(server, "blocks_written_total") == 56)
        (worker,) = server.workers()
        (blocks,) = tmp_path.glob("kv/*/blocks")
        _, hard = resource.prlimit(worker, resource.RLIMIT_FSIZE)
        resource.prlimit(worker, resource.RLIMIT_FSIZE, (blocks.stat().st_size + 1000, hard))
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda n: ask(server, n % 4)[0], range(12)))
        assert together == together[:4] * 3
        assert together[0] == alone[0]
        until(lambda: metric(server, "blocks_dropped_total") > 0)
        assert "KV blocks cannot be kept" in server.until_logged("cannot be kept")
        # What comes now takes the place of what was not used for longest.
        before = metric(server, "blocks_written_total")
        alone.append(ask(server, 4)[0])
        # What was waiting to be written is among these; the rest is written at the end.
        until(lambda: metric(server, "blocks_written_total") >= before + 56)
        assert blocks.stat().st_size <= 57 * 4096
        assert server.workers() == [worker]
        assert server.get("/health/ready")[0] == 200
        end(server)
    with serving(str(tiny_chat_model), *OPTIONS, environment=environment) as server:
        assert ask(server, 4) == (alone[1], FULL)
        assert [ask(server, n)[0] for n in range(4)] == together[:4]
        assert metric(server, "blocks_damaged_total") == 0


def test_without_it_there_is_nothing_of_it(server: Server) -> None:
    assert server.request("GET", "/metrics")[2].count(b"kv_disk") == 0
