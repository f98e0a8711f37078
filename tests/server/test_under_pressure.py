"""More than fits into memory, long prompts beside short ones, secrets beside secrets: answers stay
what they are alone, over real sockets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.serving import Server, begin_request, serving, until

CHAT = "/v1/chat/completions"
GREEDY = {"model": "tiny", "temperature": 0, "ignore_eos": True}
CLIENTS = 8


def chat(secret: str, **options: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"The secret is {secret}. " * 4}]
    return {**GREEDY, "messages": messages, "max_tokens": 400, **options}


def text_of(answer: tuple[int, Any]) -> str:
    status, body = answer
    assert status == 200, body
    return str(body["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def cramped(tiny_chat_model: Path) -> Iterator[Server]:
    """Room for the KV of about half of ``CLIENTS`` requests."""
    arguments = ("--name", "tiny", "--threads", "1", "--max-sequences", str(CLIENTS))
    with serving(str(tiny_chat_model), *arguments, "--kv-memory", "600000") as found:
        yield found


def test_twice_the_memory_there_is(cramped: Server) -> None:
    """Requests that do not fit together are put off, not failed, a bounded number of times; their
    texts are those that they have alone, so none has read another's memory."""
    bodies = [chat(f"{i}-{'abcdefgh'[i]}" * 3) for i in range(CLIENTS)]
    alone = [text_of(cramped.post(CHAT, body)) for body in bodies]
    assert len(set(alone)) == CLIENTS
    before = cramped.metric("vllm:num_preemptions_total")
    for _ in range(3):
        with ThreadPoolExecutor(CLIENTS) as pool:
            together = list(pool.map(lambda body: text_of(cramped.post(CHAT, body)), bodies))
        assert together == alone
    preemptions = cramped.metric("vllm:num_preemptions_total") - before
    assert 0 < preemptions <= 3 * CLIENTS * 8
    until(cramped.idle)


def test_what_fits_the_context_but_no_memory_is_told(tiny_chat_model: Path) -> None:
    """At the start, where it can be known."""
    ended = subprocess.run(
        [sys.executable, "-m", "tidemill", "serve", str(tiny_chat_model), "--port", "0",
         "--kv-memory", "20000"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr


def test_cold_warm_partly_warm_and_after_eviction(cramped: Server) -> None:
    body = chat("cold")
    cold = text_of(cramped.post(CHAT, body))
    status, warm = cramped.post(CHAT, body)
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert text_of((status, warm)) == cold
    longer = {**body, "messages": [*body["messages"], {"role": "user", "content": "More."}]}
    part = text_of(cramped.post(CHAT, longer))
    for i in range(6):
        cramped.post(CHAT, chat(f"filler {i} " * 8))
    _, evicted = cramped.post(CHAT, {**longer, "cache_salt": "none has this"})
    assert evicted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert text_of((200, evicted)) == part
    assert text_of(cramped.post(CHAT, body)) == cold


def test_a_salt_keeps_prefixes_apart(server: Server) -> None:
    def cached(salt: str) -> int:
        body = {**chat("salted"), "max_tokens": 1, "cache_salt": salt}
        status, answer = server.post(CHAT, body)
        assert status == 200
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached("mine") == 0
    assert cached("mine") > 0
    assert cached("yours") == 0
    assert cached("") == 0


def test_a_long_prompt_beside_a_stream(endless: tuple[str, ...]) -> None:
    """It is computed in parts, and in the steps in which that happens the stream goes on. (Steps
    are counted, and not what a client reads meanwhile, which depends on when it reads.) Cut into
    parts or not, the answer is the same."""
    with serving(*endless, "--name", "tiny", "--threads", "1", "--max-sequences", "4") as server:

        def shared() -> float:
            """Steps of two sequences, where there are no more than two."""
            name = "tidemill:step_sequences"
            return server.metric(f"{name}_sum") - server.metric(f"{name}_count")

        prompt = [65 + i % 26 for i in range(6000)]
        long = {**GREEDY, "prompt": prompt, "max_tokens": 8}
        _, alone = server.post("/v1/completions", {**long, "cache_salt": "a"})
        assert shared() == 0
        body = chat("long", stream=True, max_tokens=60_000, temperature=1)
        with begin_request(server, CHAT, body):
            until(lambda: server.metric("vllm:num_requests_running") == 1)
            status, beside = server.post("/v1/completions", {**long, "cache_salt": "b"})
            assert status == 200
            assert beside["choices"][0]["text"] == alone["choices"][0]["text"]
            assert beside["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            # They are told now and then; those for its 8 tokens alone are fewer.
            until(lambda: shared() >= 6000 // 256)


def test_almost_no_temperature_is_none(server: Server) -> None:
    body = chat("t", max_tokens=60)
    greedy = text_of(server.post(CHAT, body))
    for temperature in (1e-4, 1e-9, 1e-38):
        assert text_of(server.post(CHAT, {**body, "temperature": temperature})) == greedy


def test_a_seed_holds_whatever_runs_beside(server: Server) -> None:
    body = chat("s", max_tokens=60, temperature=1, seed=11)
    alone = text_of(server.post(CHAT, body))
    with ThreadPoolExecutor(6) as pool:
        found = pool.map(
            lambda i: server.post(CHAT, {**body, "seed": 11 if i % 2 else 100 + i}), range(12)
        )
        texts = [text_of(answer) for answer in found]
    assert set(texts[1::2]) == {alone}
    assert len({*texts[::2], alone}) == 7


def test_logprobs_are_finite_and_before_the_filters(server: Server) -> None:
    """Whatever the sampling leaves no chance: JSON has no infinity."""
    options = {"logprobs": True, "top_logprobs": 20, "max_tokens": 16}
    biased = {str(token): -100 for token in range(200)}

    def scores(**more: Any) -> Any:
        status, answer = server.post(CHAT, chat("l", **options, **more))
        assert status == 200
        return answer["choices"][0]["logprobs"]["content"]

    plain = scores()
    for more in ({"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}, {"temperature": 1e-4}):
        assert scores(**more) == plain, more
    for entry in scores(logit_bias=biased):
        assert all(-10_000 < top["logprob"] <= 0 for top in entry["top_logprobs"])


def test_threads_follow_the_affinity(tiny_chat_model: Path) -> None:
    with serving(str(tiny_chat_model), "--name", "tiny", under=("taskset", "-c", "0")) as server:
        line = server.until_logged("loaded in process")
        assert "threads: 1 " in line
        assert server.post(CHAT, chat("x", max_tokens=2))[0] == 200


def test_a_load_goes_on_when_who_asked_for_it_leaves(tiny_chat_model: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(
        f'[[models]]\nsource = "{tiny_chat_model}"\nname = "tiny"\npreload = false\nthreads = 1\n'
    )
    with serving("--config", str(config)) as server:
        leaving = server.connect()
        data = json.dumps(chat("x", max_tokens=2)).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        leaving.sendall(head.encode() + data)
        until(lambda: server.get("/health/ready")[1]["models"]["tiny"] != "unloaded")
        leaving.close()
        assert server.post(CHAT, chat("x", max_tokens=2))[0] == 200
        server.stop()
        assert server.log.count("tiny: loaded in process") == 1
