"""Clients that leave, stall, flood or talk nonsense, over real sockets: nobody else notices."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.serving import Server, events_of, paused, send_request, serving, until
from support.tiny_chat_model import write_chat_model

MESSAGES = [{"role": "user", "content": "Tell me a long story."}]
# Greedily, the tiny model does not end its answer to this.
ENDLESS_MESSAGES = [{"role": "user", "content": "What is the sea?"}]
CHAT = "/v1/chat/completions"
LONG = {"model": "tiny", "messages": MESSAGES, "max_tokens": 900, "ignore_eos": True}
SHORT = {
    "model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 0, "ignore_eos": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def small(endless: tuple[str, ...]) -> Iterator[Server]:
    """A server whose limits are easily reached."""
    with serving(
        *endless, "--name", "tiny", "--threads", "1", "--max-sequences", "2",
        "--max-waiting", "2", environment={"TIDEMILL_MAX_BODY_BYTES": "100000"},
    ) as found:  # fmt: skip
        yield found


@pytest.fixture(scope="module")
def impatient(tiny_chat_model: Path) -> Iterator[Server]:
    """A server that soon gives up on clients that stall; no sooner than a client that just has not
    had its turn on a busy machine."""
    with serving(
        str(tiny_chat_model), "--name", "tiny", "--threads", "1", "--max-sequences", "2",
        environment={"TIDEMILL_STALL_SECONDS": "4"},
    ) as found:  # fmt: skip
        yield found


@pytest.fixture(scope="module")
def long_context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = write_chat_model(tmp_path_factory.mktemp("long") / "tiny.gguf", context=8192)
    with serving(str(path), "--name", "tiny", "--threads", "1") as found:
        yield found


@pytest.fixture
def expected(server: Server) -> str:
    status, answer = server.post("/v1/chat/completions", SHORT)
    assert status == 200
    text = answer["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


def begin(server: Server, body: Any, path: str = "/v1/chat/completions") -> socket.socket:
    connection = server.connect()
    send_request(connection, path, body)
    return connection


# An answer that goes on and on, in every API.
ENDLESS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": LONG,
    "/v1/completions": {"prompt": "Once", "max_tokens": 900, "ignore_eos": True},
    "/v1/responses": {"input": "Once", "max_output_tokens": 900, "ignore_eos": True},
    "/v1/messages": {"messages": ENDLESS_MESSAGES, "max_tokens": 900, "temperature": 0},
    "/api/chat": {
        "messages": ENDLESS_MESSAGES, "options": {"num_predict": 900, "temperature": 0},
    },
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ENDLESS)
def test_a_client_that_leaves_frees_its_blocks(
    server: Server, expected: str, path: str, stream: bool
) -> None:
    """At once, or when it has been answered for a while; a neighbour's answer is untouched."""
    generated = partial(server.metric, "vllm:generation_tokens_total")
    for answered in (0, 100):
        for _ in range(10):  # until they do not end before they leave
            before = generated()
            body = {**ENDLESS[path], "model": "tiny", "stream": stream}
            leaving = [begin(server, body, path) for _ in range(32)]
            with ThreadPoolExecutor(1) as pool:
                neighbour = pool.submit(server.post, CHAT, SHORT)
                until(lambda least=before + answered: generated() >= least)
                with paused(server):
                    for connection in leaving:
                        connection.close()
                assert neighbour.result()[1]["choices"][0]["message"]["content"] == expected
            until(server.idle)
            if generated() < before + len(leaving) * 900:
                break
        else:
            pytest.fail("every answer was written to its end")


@pytest.fixture(scope="module")
def ample(endless: tuple[str, ...]) -> Iterator[Server]:
    with serving(*endless, "--name", "tiny", "--threads", "1") as found:
        yield found


SEVERAL = {"model": "tiny", "max_tokens": 60_000, "ignore_eos": True, "temperature": 0}


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_blocks_of_all_its_prompts(
    ample: Server, stream: bool
) -> None:
    """Also of those whose answers nobody has begun to read: they are read one after the other."""
    before = ample.metric("vllm:generation_tokens_total")
    connection = begin(
        ample, {**SEVERAL, "prompt": ["a", "b", "c"], "stream": stream}, "/v1/completions"
    )
    until(lambda: ample.metric("vllm:num_requests_running") == 3)
    connection.close()
    until(ample.idle)
    assert ample.metric("vllm:generation_tokens_total") < before + 60_000


def test_what_is_refused_for_one_of_its_prompts_runs_none(ample: Server) -> None:
    before = ample.metric("vllm:generation_tokens_total")
    body = {**SEVERAL, "prompt": [[65], [65], [65] * 10_000]}
    status, answer = ample.post("/v1/completions", body)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    until(ample.idle)
    assert ample.metric("vllm:generation_tokens_total") < before + 60_000


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_leave_while_their_prompts_are_read(
    long_context: Server, stream: bool
) -> None:
    """What was begun of them is not computed to its end."""
    server = long_context

    def left_off() -> float:
        """Tokens that were computed of prompts that were not."""
        tokens = server.metric("vllm:iteration_tokens_total_sum")
        return tokens - server.metric("vllm:prompt_tokens_total")

    before = left_off()
    for attempt in range(20):  # until they do not leave just between two prompts
        begun = server.metric("vllm:iteration_tokens_total_sum")
        leaving = [
            begin(
                server,
                {"model": "tiny", "prompt": [65 + i % 26 for i in range(8000)], "max_tokens": 1,
                 "stream": stream, "cache_salt": f"{attempt} {number} {stream}"},
                "/v1/completions",
            )
            for number in range(8)
        ]  # fmt: skip
        until(lambda least=begun: server.metric("vllm:iteration_tokens_total_sum") > least)
        for connection in leaving:
            connection.close()
        until(server.idle)
        if left_off() > before:
            return
    pytest.fail("every prompt was computed whole")


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """A request has all that there is, and gets no further."""
    with begin(server, {**LONG, "stream": True, "n": 64, "max_tokens": 60_000}):
        until(lambda: server.metric("vllm:num_requests_running") == 2)
        with paused(server):
            yield


def test_clients_that_leave_while_they_are_queued(small: Server) -> None:
    with busy(small):
        queued = small.metric("vllm:num_requests_waiting")
        waiting = [begin(small, LONG) for _ in range(2)]
        until(lambda: small.metric("vllm:num_requests_waiting") == queued + 2)
        for connection in waiting:
            connection.close()
        until(lambda: small.metric("vllm:num_requests_waiting") == queued)
        assert small.metric("vllm:num_requests_running") == 2
    until(small.idle)


def test_a_full_queue_is_429_with_a_time_to_come_back(small: Server) -> None:
    with busy(small):
        queued = small.metric("vllm:num_requests_waiting")
        waiting = [begin(small, LONG) for _ in range(2)]
        until(lambda: small.metric("vllm:num_requests_waiting") == queued + 2)
        status, headers, body = small.request("POST", "/v1/chat/completions", SHORT)
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert json.loads(body)["error"]["code"] == "queue_full"
        for connection in waiting:
            connection.close()
    until(small.idle)
    assert small.post("/v1/chat/completions", SHORT)[0] == 200


def test_a_client_that_does_not_read_holds_nothing_for_ever(impatient: Server) -> None:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    connection.connect(("127.0.0.1", impatient.port))
    answered = partial(impatient.metric, "tidemill:http_requests_total", status="200",
                       route="/v1/chat/completions")  # fmt: skip
    before = answered()
    body = {**LONG, "stream": True, "n": 64, "logprobs": True, "top_logprobs": 20}
    send_request(connection, "/v1/chat/completions", body)
    # The handler is at its end long before the client has read what there is.
    until(lambda: answered() > before)
    until(impatient.idle)
    connection.close()


def test_a_body_that_comes_a_byte_at_a_time_is_408(impatient: Server) -> None:
    with impatient.connect() as connection:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"
        connection.sendall(head)
        connection.settimeout(0.25)
        answer = b""
        for _ in range(200):  # each of them well within the time limit
            with suppress(ConnectionError):  # it has answered, and closed
                connection.sendall(b" ")
            with suppress(TimeoutError):
                answer = connection.recv(4096)
                break
        assert b" 408 " in answer.split(b"\r\n")[0]


def test_a_body_that_never_comes_is_408(impatient: Server) -> None:
    with impatient.connect() as connection:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        connection.sendall(head)
        assert b" 408 " in connection.recv(4096).split(b"\r\n")[0]


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHos"])
def test_a_head_that_never_comes_ends_the_connection(impatient: Server, sent: bytes) -> None:
    with impatient.connect() as connection:
        connection.sendall(sent)
        with suppress(ConnectionResetError):
            assert connection.recv(100) == b""


def test_a_thousand_idle_connections_hold_nobody_up(tiny_chat_model: Path) -> None:
    """Also where programs may have a few hundred files open unless they ask for more."""
    arguments = (str(tiny_chat_model), "--name", "tiny", "--threads", "1")
    with serving(*arguments, under=("prlimit", "--nofile=256:")) as server:
        held = [server.connect() for _ in range(1000)]
        assert server.post("/v1/chat/completions", SHORT)[0] == 200
        for connection in held:
            connection.close()


def test_more_connections_than_there_may_be_are_told(tiny_chat_model: Path) -> None:
    """And whoever has one goes on."""
    arguments = (str(tiny_chat_model), "--name", "tiny", "--threads", "1")
    environment = {"TIDEMILL_MAX_CONNECTIONS": "4"}
    with serving(*arguments, environment=environment) as server:
        held = [server.connect() for _ in range(4)]
        for _ in range(3):  # those that are refused are closed, and take no place
            status, headers, body = server.request("POST", CHAT, SHORT)
            assert (status, json.loads(body)["error"]["code"]) == (503, "too_many_connections")
            assert int(headers["retry-after"]) > 0
        send_request(held[0], CHAT, SHORT)
        assert b" 200 " in held[0].recv(4096).split(b"\r\n")[0]
        for connection in held:
            connection.close()
        until(lambda: server.request("POST", CHAT, SHORT)[0] == 200)


def test_large_bodies_are_refused(small: Server) -> None:
    status, _, body = small.request("POST", "/v1/chat/completions", b"x" * 200_000)
    assert (status, json.loads(body)["error"]["code"]) == (413, "too_large")
    # Also where the length is not told before.
    with small.connect() as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        with suppress(OSError):  # refused meanwhile
            for _ in range(200):
                connection.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        answer = b""
        with suppress(ConnectionResetError):
            answer = connection.recv(4096)
        assert answer == b"" or b" 413 " in answer.split(b"\r\n")[0]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"model": "tiny"}',
        b'{"model": "tiny", "messages": "hi"}',
        b'{"model": ["tiny"], "messages": []}',
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "tiny", "messages": [' + b'{"a":' * 1000 + b"1" + b"}" * 1000 + b"]}",
        b'{"model": "tiny", "messages": [], "max_tokens": 1e999}',
        b'{"model": "tiny", "messages": [], "seed": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]
)
def test_nonsense_is_the_clients_fault(server: Server, path: str, body: bytes) -> None:
    status, _, answer = server.request("POST", path, body)
    assert status in (400, 404), answer
    error = json.loads(answer)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert isinstance(error["code"], str)


@pytest.mark.parametrize(
    "prompt", [[], [-1], [10**6], [2**40], [[]], [["a"]], [1, "a"], [None], {"a": 1}, [[1], "a", 3]]
)
def test_prompts_that_are_none(server: Server, prompt: Any) -> None:
    status, answer = server.post("/v1/completions", {"model": "tiny", "prompt": prompt})
    assert status == 400, answer
    assert answer["error"]["param"].startswith("prompt")


def test_unknown_paths_and_methods(server: Server) -> None:
    status, answer = server.get("/v1/nothing")
    assert (status, answer["error"]["code"]) == (404, "not_found")
    status, headers, _ = server.request("GET", "/v1/chat/completions")
    assert (status, headers["allow"]) == (405, "POST")


def test_request_ids_go_through(server: Server) -> None:
    _, headers, body = server.request(
        "POST", "/v1/chat/completions", SHORT, {"X-Request-Id": "mine-1"}
    )
    assert headers["x-request-id"] == "mine-1"
    assert json.loads(body)["id"] == "chatcmpl-mine-1"
    _, headers, _ = server.request("GET", "/v1/models", None, {"X-Request-Id": "bad id\t" * 99})
    assert len(headers["x-request-id"]) == 32


def test_every_request_under_one_name_is_its_own(server: Server, expected: str) -> None:
    """Two requests with the same X-Request-Id, one of which leaves."""
    with begin(server, {**LONG, "stream": True}):
        status, _, body = server.request(
            "POST", "/v1/chat/completions", SHORT, {"X-Request-Id": "twin"}
        )
    assert status == 200
    assert json.loads(body)["choices"][0]["message"]["content"] == expected
    until(server.idle)


def test_metrics_after_one_request(server: Server, expected: str) -> None:
    name = {"model_name": "tiny"}
    for metric in (
        "vllm:time_to_first_token_seconds_count", "vllm:inter_token_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_count", "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total", "vllm:prefix_cache_queries_total",
    ):  # fmt: skip
        assert server.metric(metric, **name) > 0, metric
    _, _, text = server.request("GET", "/metrics")
    for series in ("num_preemptions_total", "kv_cache_usage_perc", "prefix_cache_hits_total"):
        assert f"vllm:{series}{{".encode() in text


def test_health_and_version(server: Server) -> None:
    assert server.get("/health/live")[0] == 200
    status, answer = server.get("/health/ready")
    assert (status, answer["models"]) == (200, {"tiny": "loaded"})
    assert server.get("/version")[0] == 200


def test_tokenize_and_back(server: Server) -> None:
    status, answer = server.post("/tokenize", {"model": "tiny", "prompt": "Hello there"})
    assert status == 200
    assert answer["count"] == len(answer["tokens"])
    status, back = server.post("/detokenize", {"model": "tiny", "tokens": answer["tokens"]})
    assert (status, back["prompt"]) == (200, "Hello there")
    status, chat = server.post("/tokenize", {"model": "tiny", "messages": MESSAGES})
    _, counted = server.post("/v1/chat/completions", SHORT)
    assert chat["count"] == counted["usage"]["prompt_tokens"]
    status, answer = server.post("/detokenize", {"model": "tiny", "tokens": [10**9]})
    assert (status, answer["error"]["param"]) == (400, "tokens")


def test_streams_say_how_they_end(server: Server) -> None:
    _, headers, data = server.request("POST", "/v1/chat/completions", {**SHORT, "stream": True})
    assert headers["content-type"].startswith("text/event-stream")
    *chunks, done = events_of(data)
    assert done == "[DONE]"
    assert all(chunk["choices"] for chunk in chunks)  # no usage where none was asked for


def test_nothing_of_prompts_is_logged(server: Server) -> None:
    secret = "xyzzy-plugh"
    body = {**SHORT, "messages": [{"role": "user", "content": secret}]}
    assert server.post("/v1/chat/completions", body)[0] == 200
    assert server.post("/v1/completions", {"model": "tiny", "prompt": [secret, 1]})[0] == 400
    assert secret not in server.log
