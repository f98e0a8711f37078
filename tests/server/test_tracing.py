"""Traces, as a collector gets them over OTLP/HTTP."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.serving import Server, begin_request, serving, until
from tidemill.engine.params import SamplingParams
from tidemill.llm.outputs import OutputBuilder
from tidemill.server.account import Account
from tidemill.server.config import ConfigError, ServerConfig
from tidemill.server.tracing import _content, start_tracing

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
import itertools

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

SECRET = "xyzzyplugh"
CHAT: dict[str, Any] = {
    "model": "tiny", "max_tokens": 6, "temperature": 0, "ignore_eos": True,
    "messages": [{"role": "user", "content": SECRET}],
}  # fmt: skip
QUICKLY = {"OTEL_BSP_SCHEDULE_DELAY": "50"}  # milliseconds
SERVER, INTERNAL = 2, 1  # span kinds
ERROR = 2


@dataclass
class Span:
    name: str
    kind: int
    trace: str
    id: str
    parent: str
    start: float
    end: float
    status: int
    attributes: dict[str, Any]
    events: list[tuple[str, float, dict[str, Any]]]


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(each) for each in value.array_value.values]
    return getattr(value, kind)


def attributes_of(pairs: Any) -> dict[str, Any]:
    return {pair.key: value_of(pair.value) for pair in pairs}


class Collector:
    """Takes traces over loopback and understands them."""

    def __init__(self) -> None:
        collector = self
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.paths: set[str] = set()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        self.paths.add(path)
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(attributes_of(of_resource.resource.attributes))
            for of_scope in of_resource.scope_spans:
                for s in of_scope.spans:
                    self.spans.append(
                        Span(
                            s.name,
                            s.kind,
                            s.trace_id.hex(),
                            s.span_id.hex(),
                            s.parent_span_id.hex(),
                            s.start_time_unix_nano / 1e9,
                            s.end_time_unix_nano / 1e9,
                            s.status.code,
                            attributes_of(s.attributes),
                            [
                                (e.name, e.time_unix_nano / 1e9, attributes_of(e.attributes))
                                for e in s.events
                            ],
                        )
                    )

    def trace(self, id: str) -> tuple[Span, dict[str, Span]]:
        """The span of the request with that id, and those below it by name."""
        found: list[Span] = []

        def arrived() -> bool:
            found[:] = [s for s in self.spans if s.attributes.get("gen_ai.response.id") == id]
            return bool(found)

        until(arrived)
        (root,) = found
        return root, {s.name: s for s in self.spans if s.parent == root.id}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="module")
def traced(endless: tuple[str, ...], collector: Collector) -> Iterator[Server]:
    options = ("--name", "tiny", "--threads", "1", "--otlp-endpoint", collector.url)
    with serving(*endless, *options, environment=QUICKLY) as found:
        yield found


def ask(
    server: Server, id: str, path: str = "/v1/chat/completions", body: Any = CHAT,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:  # fmt: skip
    status, _, data = server.request(
        "POST", path, body, headers={"X-Request-Id": id, **(headers or {})}
    )
    return status, data


def test_a_request_is_a_span_with_its_phases_below(traced: Server, collector: Collector) -> None:
    before = time.time()
    assert ask(traced, "whole")[0] == 200
    root, below = collector.trace("whole")
    after = time.time()
    assert (root.name, root.kind, root.parent, root.status) == ("chat tiny", SERVER, "", 0)
    assert set(below) == {"queue", "prefill", "decode"}
    assert all((s.kind, s.trace) == (INTERNAL, root.trace) for s in below.values())
    # On one time line, and that is the world's, which may be put right meanwhile.
    times = [
        root.start, below["queue"].start, below["queue"].end, below["prefill"].start,
        below["prefill"].end, below["decode"].start, below["decode"].end, root.end,
    ]  # fmt: skip
    assert all(a <= b + 0.001 for a, b in itertools.pairwise(times)), times
    assert before - 1 <= root.start <= root.end <= after + 1
    ((name, when, said),) = root.events
    assert name == "first_token"
    assert abs(when - below["decode"].start) < 1e-3
    assert abs(root.start + said["tidemill.time_to_first_token"] - when) < 1e-3
    assert (
        root.attributes
        | {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "tidemill",
            "gen_ai.request.model": "tiny",
            "gen_ai.response.model": "tiny",
            "gen_ai.request.max_tokens": 6,
            "gen_ai.request.temperature": 0.0,
            "gen_ai.response.finish_reasons": ["length"],
            "gen_ai.usage.output_tokens": 6,
            "server.address": "127.0.0.1",
            "server.port": traced.port,
            "http.request.method": "POST",
            "http.route": "/v1/chat/completions",
            "http.response.status_code": 200,
            "tidemill.tenant": "anybody",
        }
        == root.attributes
    )
    assert root.attributes["gen_ai.usage.input_tokens"] > 10
    for absent in ("error.type", "gen_ai.request.seed", "gen_ai.request.stream"):
        assert absent not in root.attributes
    assert collector.resources[0]["service.name"] == "tidemill"
    assert collector.paths == {"/v1/traces"}


def test_a_stream_tells_when_its_first_piece_came(traced: Server, collector: Collector) -> None:
    ask(traced, "stream", body=CHAT | {"stream": True, "seed": 7, "n": 2})
    root, below = collector.trace("stream")
    told = root.attributes
    assert told["gen_ai.request.stream"] is True
    assert 0 < told["gen_ai.response.time_to_first_chunk"] < root.end - root.start
    assert (told["gen_ai.request.choice.count"], told["gen_ai.request.seed"]) == (2, 7)
    assert told["gen_ai.response.finish_reasons"] == ["length", "length"]
    assert below["decode"].attributes["gen_ai.usage.output_tokens"] == 12
    assert told["gen_ai.usage.cache_read.input_tokens"] > 0  # asked before


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 1},
         "text_completion tiny"),
        ("/v1/responses", {"model": "tiny", "input": "x", "max_output_tokens": 16}, "chat tiny"),
        ("/v1/messages", {"model": "tiny", "max_tokens": 1,
                          "messages": [{"role": "user", "content": "x"}]}, "chat tiny"),
        ("/api/chat", {"model": "tiny", "messages": [{"role": "user", "content": "x"}],
                       "options": {"num_predict": 1}}, "chat tiny"),
        ("/api/generate", {"model": "tiny", "prompt": "x", "options": {"num_predict": 1}},
         "text_completion tiny"),
        ("/v1/embeddings", {"model": "tiny", "input": "x"}, "embeddings tiny"),
        ("/api/embed", {"model": "tiny", "input": "x"}, "embeddings tiny"),
        ("/api/embeddings", {"model": "tiny", "prompt": "x"}, "embeddings tiny"),
    ],
)  # fmt: skip
def test_every_api_is_traced(
    traced: Server, collector: Collector, path: str, body: Any, name: str
) -> None:
    id = path.strip("/").replace("/", ".")
    assert ask(traced, id, path, body)[0] == 200
    root, below = collector.trace(id)
    assert root.name == name
    nothing_decoded = {"decode"} if name.startswith("embeddings") else set[str]()
    assert set(below) == {"queue", "prefill", "decode"} - nothing_decoded


def test_a_client_s_trace_goes_on(traced: Server, collector: Collector) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    ask(traced, "inside", headers={"traceparent": f"00-{trace}-{parent}-01"})
    root, below = collector.trace("inside")
    assert (root.trace, root.parent) == (trace, parent)
    assert all(span.trace == trace for span in below.values())


def test_what_a_client_does_not_sample_is_not_sent(traced: Server, collector: Collector) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    ask(traced, "unsampled", headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-00"})
    ask(traced, "sampled")
    collector.trace("sampled")
    assert not any(span.trace == trace for span in collector.spans)


@pytest.mark.parametrize("parent", ["00-zz-zz-01", "\xff\xfe", "00-" + "0" * 32 + "-" + "0" * 16])
def test_a_traceparent_that_is_none_begins_a_new_trace(
    traced: Server, collector: Collector, parent: str
) -> None:
    id = f"bad-{abs(hash(parent))}"
    assert ask(traced, id, headers={"traceparent": parent, "tracestate": "=,,\xff"})[0] == 200
    assert collector.trace(id)[0].parent == ""


def test_refusals_and_those_who_leave_have_an_error_type(
    traced: Server, collector: Collector
) -> None:
    assert ask(traced, "unknown", body=CHAT | {"model": "no\nsuch"})[0] == 404
    root, below = collector.trace("unknown")
    assert (root.name, root.attributes["error.type"]) == ("chat", "model_not_found")
    assert (root.status, below) == (0, {})  # the client's error is none of the server's

    body = CHAT | {"max_tokens": 60_000, "n": 8, "temperature": 1}
    connection = begin_request(traced, "/v1/chat/completions", body)
    until(lambda: traced.metric("vllm:num_requests_running") > 0)
    connection.close()
    until(lambda: any(s.attributes.get("error.type") == "499" for s in collector.spans))
    (gone,) = (s for s in collector.spans if s.attributes.get("error.type") == "499")
    assert set(gone.attributes["gen_ai.response.finish_reasons"]) == {"abort"}


def test_only_what_asks_a_model_is_traced(traced: Server, collector: Collector) -> None:
    for path in ("/metrics", "/v1/models", "/health/live"):
        traced.request("GET", path)
    traced.request("POST", "/tokenize", {"model": "tiny", "prompt": "x"})
    ask(traced, "only")
    collector.trace("only")
    routes = {s.attributes["http.route"] for s in collector.spans if "http.route" in s.attributes}
    assert not routes & {"/metrics", "/v1/models", "/health/live", "/tokenize"}


def test_no_word_of_a_prompt_is_in_a_trace(traced: Server, collector: Collector) -> None:
    ask(traced, "secret")
    collector.trace("secret")
    assert SECRET not in str(collector.spans)


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (("--log-prompts",), {}),
        ((), {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}),
    ],
)
def test_content_where_it_is_asked_for(
    tiny_chat_model: Path, collector: Collector, options: tuple[str, ...],
    environment: dict[str, str],
) -> None:  # fmt: skip
    # The standard variables, instead of the setting.
    environment |= QUICKLY | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "ours",
    }  # fmt: skip
    options = ("--name", "tiny", "--threads", "1", *options)
    id = f"content-{len(options)}"
    with serving(str(tiny_chat_model), *options, environment=environment) as server:
        _, data = ask(server, id)
        root, _ = collector.trace(id)
    (asked,) = json.loads(root.attributes["gen_ai.input.messages"])
    (said,) = json.loads(root.attributes["gen_ai.output.messages"])
    assert asked["role"] == "user"
    assert SECRET in asked["parts"][0]["content"]
    text = json.loads(data)["choices"][0]["message"]["content"]
    assert said == {
        "role": "assistant", "parts": [{"type": "text", "content": text}],
        "finish_reason": "length",
    }  # fmt: skip
    assert collector.resources[-1]["service.name"] == "ours"
    assert ("--log-prompts" in options) == (SECRET in server.log)


def test_content_is_cut() -> None:
    params = SamplingParams(max_tokens=1)
    builder = OutputBuilder("r", "x" * 1_000_000, [1], params, None, 0.0)
    told = _content(Account("tiny", params, [builder]))
    assert 30_000 < len(told["gen_ai.input.messages"]) < 40_000
    many = _content(Account("tiny", params, [builder] * 100))
    assert len(json.loads(many["gen_ai.input.messages"])) == 8
    assert len(json.loads(many["gen_ai.output.messages"])) == 8


def test_what_is_left_is_sent_at_the_end(tiny_chat_model: Path, collector: Collector) -> None:
    options = ("--name", "tiny", "--threads", "1", "--otlp-endpoint", f"{collector.url}/v1/traces/")
    environment = {"OTEL_BSP_SCHEDULE_DELAY": "600000"}
    with serving(str(tiny_chat_model), *options, environment=environment) as server:
        ask(server, "at-the-end")
        server.signal()
        assert server.wait(60) == 0
    assert set(collector.trace("at-the-end")[1]) == {"queue", "prefill", "decode"}


# ---- a collector that is not there, or does not answer


@contextmanager
def silent() -> Iterator[str]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def nobody() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("dead", [silent, nobody])
def test_a_dead_collector_hurts_no_request(tiny_chat_model: Path, dead: Any) -> None:
    with dead() as url:
        # A queue that is soon full: what is too much is dropped.
        environment = QUICKLY | {
            "OTEL_BSP_MAX_QUEUE_SIZE": "16", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4",
        }  # fmt: skip
        options = ("--name", "tiny", "--threads", "1", "--otlp-endpoint", url)
        with serving(str(tiny_chat_model), *options, environment=environment) as server:
            body = {"model": "tiny", "prompt": SECRET, "max_tokens": 1}
            for i in range(60):
                assert ask(server, f"d{i}", "/v1/completions", body)[0] == 200
            server.signal()
            assert server.wait(25) == 0  # the SDK alone would wait for half a minute
            assert SECRET not in server.log


# ---- settings


def test_without_a_collector_nothing_of_opentelemetry_is_loaded() -> None:
    code = (
        "import sys, tidemill.server.serve as s; "
        "from tidemill.server.tracing import start_tracing; "
        "assert start_tracing(s.ServerConfig(), {}) is None; "
        "assert not [m for m in sys.modules if m.startswith('opentelemetry')]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
        env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


@pytest.mark.parametrize("off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_the_standard_variables_turn_it_off(off: dict[str, str]) -> None:
    assert start_tracing(ServerConfig(), ENDPOINT | off) is None


@pytest.mark.parametrize("url", ["localhost:4318", "grpc://x:4317", ""])
def test_an_endpoint_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="otlp_endpoint"):
        start_tracing(ServerConfig(otlp_endpoint=url), {})


def test_without_the_extra_a_setting_is_an_error_and_a_variable_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.suppress(KeyError):
        monkeypatch.delitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(ConfigError, match=r"pip install 'tidemill\[otel\]'"):
        start_tracing(ServerConfig(otlp_endpoint="http://127.0.0.1:1"), {})
    assert start_tracing(ServerConfig(), ENDPOINT) is None
    assert "tidemill[otel]" in caplog.text
