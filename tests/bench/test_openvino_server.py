"""The thin server over OpenVINO GenAI as a process, over a package that stands for the real one."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemill.bench.arrivals import Closed
from tidemill.bench.client import Client, Endpoint
from tidemill.bench.engines import ENGINES, EngineProcess, Launch, TargetError, started
from tidemill.bench.engines.standalone import openvino_server
from tidemill.bench.run import Plan, run
from tidemill.bench.stream import Answer, read
from tidemill.bench.workload import Fixed, Shape, Workload

OPENVINO = ENGINES["openvino"]
STAND_IN = Path(__file__).parent.parent / "support/openvino_stand_in"


def launch(folder: Path) -> Launch:
    return Launch(model=folder / "m.gguf", context=200, sequences=4, threads=3, folder=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("openvino")
    (folder / "m.gguf").touch()
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[EngineProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(STAND_IN), prepend=os.pathsep)
        with started(OPENVINO, launch(folder)) as process:
            process.until_ready(60)
            yield process


def ask(server: EngineProcess, api: str = "chat", **fields: Any) -> Answer:
    body: dict[str, Any] = {"model": "model", "stream": True, "max_tokens": 5}
    body["stream_options"] = {"include_usage": True}
    said = fields.pop("text", "hello there")
    if api == "chat":
        body["messages"] = [{"role": "user", "content": said}]
    else:
        body["prompt"] = said

    async def send() -> Answer:
        client = Client(Endpoint(server.url, "model", api), 60.0)  # type: ignore[arg-type]
        try:
            return read(await client.send(json.dumps(body | fields).encode()))
        finally:
            client.close()

    return asyncio.run(send())


@pytest.mark.usefixtures("server")
def test_it_is_started_with_what_the_load_needs(folder: Path) -> None:
    said = (folder / "log").read_text()
    assert "m.gguf CPU" in said
    assert "('max_num_seqs', 4), ('num_kv_blocks', 32)" in said  # (7 blocks of 32 and one) x 4
    assert "{'INFERENCE_NUM_THREADS': 3}" in said


def test_answers_stream_with_counts(server: EngineProcess) -> None:
    answer = ask(server)
    assert (answer.error, answer.content) == (None, "lo th")
    assert (answer.prompt_tokens, answer.output_tokens) == (len("<user>hello there"), 5)
    assert len(answer.times) == 5
    answer = ask(server, "completions", text="once upon")
    assert (answer.text, answer.prompt_tokens) == ("nce u", 1 + len("once upon"))


def test_an_answer_ends_by_itself_or_at_the_length_asked_for(server: EngineProcess) -> None:
    assert ask(server, text="stop!").output_tokens == 3
    assert ask(server, text="stop!", ignore_eos=True).output_tokens == 5


def test_characters_of_several_tokens_come_whole(server: EngineProcess) -> None:
    answer = ask(server, text="äöüß", max_tokens=16)
    assert answer.text == "äöüßäöüß"
    assert len(answer.times) == 8
    # One that is cut off is told as what it is.
    assert ask(server, text="äöüß", max_tokens=3).text == "ä\ufffd"


def test_sampling_stops_and_schemas_are_taken(server: EngineProcess) -> None:
    answer = ask(
        server, temperature=0.7, top_p=0.9, seed=3, stop=["x"],
        response_format={"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    )  # fmt: skip
    assert answer.error is None
    assert ask(server, response_format={"type": "json_object"}).error is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tools": []}, "cannot do: tools"),
        ({"logprobs": True, "n": 2}, "cannot do: logprobs, n"),
        ({"stream": False}, "only streams"),
        ({"max_tokens": 500}, "a prompt of 17 tokens and 500 more do not fit into 200"),
        ({"max_tokens": "many"}, "max_tokens must be"),
        ({"messages": "hello"}, "messages must be a list"),
        ({"messages": [{"role": "user", "content": [1]}]}, "content a text"),
        ({"temperature": "hot"}, "cannot be asked so: temperature: a number"),
        ({"response_format": {"type": "xml"}}, "'xml' is not text, json_object or json_schema"),
        ({"prompt": "x", "messages": None}, "messages must be a list"),
    ],
)
def test_what_it_cannot_is_refused(
    server: EngineProcess, fields: dict[str, Any], said: str
) -> None:
    answer = ask(server, **fields)
    assert answer.error == "http_400"
    assert said in answer.detail


def test_another_model_is_not_there(server: EngineProcess) -> None:
    answer = ask(server, model="other")
    assert (answer.error, answer.detail) == ("http_404", "there is no model 'other'")


def test_a_failure_in_the_middle_is_told_in_the_stream(server: EngineProcess) -> None:
    for said, why in (("it fails", "out of memory"), ("ignored", "not fit into the KV cache")):
        answer = ask(server, text=said)
        assert answer.error == "in_stream"
        assert why in answer.detail
    assert ask(server).error is None  # the next one is none the worse


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/health", None, 200),
        ("GET", "/v1/models", None, 200),
        ("GET", "/", None, 404),
        ("POST", "/v1/embeddings", b"{}", 404),
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", b"[" * 100_000, 400),
        ("POST", "/v1/chat/completions", b"[]", 400),
        ("POST", "/v1/chat/completions", b'{"prompt": "a"}', 400),
    ],
)
def test_what_else_may_be_asked(
    server: EngineProcess, method: str, path: str, body: bytes | None, status: int
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, path, body)
    answer = connection.getresponse()
    assert answer.status == status
    assert json.loads(answer.read())
    connection.close()


def test_many_at_once_have_their_own_answers(server: EngineProcess) -> None:
    """Some of whom go away before their answer has ended."""
    for _ in range(2):
        gone = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = {"messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 150}
        gone.request("POST", "/v1/chat/completions", json.dumps(body))
        gone.getresponse().read(10)
        gone.close()
    plan = Plan(
        endpoint=Endpoint(server.url, "model", extra=dict(OPENVINO.greedy | OPENVINO.full_length)),
        workload=Workload((Shape("chat", Fixed(5), Fixed(4)),)), load=Closed(6), seconds=0.2,
        requests=20,
    )  # fmt: skip
    recording = asyncio.run(run(plan))
    assert all(r.error is None and r.output_tokens == 4 for r in recording.records)


def reset(client: socket.socket) -> None:
    """Leave without a farewell: whoever reads or writes at the other end has an error."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize(
    "sent", [b"POST /v1/chat", b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"]
)
def test_a_client_that_leaves_in_its_request_is_no_failure(
    sent: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with openvino_server.Server(("127.0.0.1", 0), openvino_server.Handler) as server:
        client = socket.create_connection(server.server_address)
        client.sendall(sent)
        reset(client)
        server.process_request_thread(*server.get_request())
    assert capsys.readouterr().err == ""


def test_a_client_that_leaves_before_its_answer_begins_is_not_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    request = openvino_server.Request(None, None, 0)

    class Pipeline:
        def submit(self, body: dict[str, Any]) -> openvino_server.Request:
            reset(client)
            return request

    class Handler(openvino_server.Handler):
        name = "model"
        pipeline = Pipeline()  # type: ignore[assignment]

    with openvino_server.Server(("127.0.0.1", 0), Handler) as server:
        client = socket.create_connection(server.server_address)
        body = b'{"messages": [], "stream": true}'
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b"
                       % (len(body), body))  # fmt: skip
        server.process_request_thread(*server.get_request())
    assert request.abandoned
    assert capsys.readouterr().err == ""


def test_any_other_error_of_a_connection_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    class Handler(openvino_server.Handler):
        def do_GET(self) -> None:
            raise KeyError("no such thing")

    with (
        openvino_server.Server(("127.0.0.1", 0), Handler) as server,
        socket.create_connection(server.server_address) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        server.process_request_thread(*server.get_request())
    assert "no such thing" in capsys.readouterr().err


def test_a_model_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN), prepend=os.pathsep)
    with (
        started(OPENVINO, launch(tmp_path)) as process,
        pytest.raises(
            TargetError, match=r"openvino ended with status 1: (?s:.*)there is no .*m.gguf"
        ),
    ):
        process.until_ready(60)
