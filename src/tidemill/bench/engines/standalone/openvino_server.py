"""A thin OpenAI-compatible server over OpenVINO GenAI, for measuring it.

Run by path with an interpreter that has ``openvino_genai``, so that it needs nothing else: it
imports neither Tidemill nor any other package. All requests share one pipeline with continuous
batching, whose steps one thread runs.

It can: chat and text completions, streamed, with counts of tokens; greedy and sampled; stop
strings; ``ignore_eos``; answers under a JSON schema. It refuses the rest (tools, logprobs, several
answers, answers in one piece) with an error that says so, rather than do something else.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_MAX_BODY = 64 << 20

_KNOWN = {
    "model", "stream", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature",
    "top_p", "top_k", "seed", "stop", "ignore_eos", "stream_options", "response_format",
}  # fmt: skip


class Refused(Exception):
    """A request that is wrong or cannot be carried out; the message is for who sent it."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


class Request:
    """One request: what goes into the pipeline, and what comes out of it, piece by piece."""

    def __init__(self, inputs: Any, config: Any, n_prompt: int) -> None:
        self.inputs = inputs
        self.config = config
        self.n_prompt = n_prompt
        self.handle: Any = None
        self.abandoned = False
        self.tokens: queue.SimpleQueue[list[int] | None] = queue.SimpleQueue()
        """Ids as they come, and None at the end."""
        self.failure: str | None = None


class Pipeline:
    """The model. ``submit`` from any thread; one thread of its own runs the steps."""

    def __init__(self, options: argparse.Namespace) -> None:
        genai = self._genai = importlib.import_module("openvino_genai")
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_seqs = options.sequences
        scheduler.enable_prefix_caching = options.prefix_caching
        # A block of the CPU plugin holds 32 tokens; a sequence may begin one more.
        scheduler.num_kv_blocks = options.sequences * (-(-options.context // 32) + 1)
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": options.threads}
        if options.kv_type is not None:
            properties["KV_CACHE_PRECISION"] = options.kv_type
        self._pipeline = genai.ContinuousBatchingPipeline(
            options.model, scheduler, options.device, properties
        )
        self.tokenizer = self._pipeline.get_tokenizer()
        self._context = options.context
        self._numbers = itertools.count()
        self._incoming: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._running: list[Request] = []
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, body: dict[str, Any]) -> Request:
        """Raises Refused."""
        unknown = body.keys() - _KNOWN
        if unknown:
            raise Refused(
                f"this server over OpenVINO GenAI cannot do: {', '.join(sorted(unknown))}"
            )
        try:
            text, special = self._prompt(body)
            inputs = self.tokenizer.encode(text, add_special_tokens=special).input_ids
            n_prompt = inputs.get_shape()[1]
            config = self._config(body, self._context - n_prompt)
        except Refused:
            raise
        except Exception as error:  # whatever the library says of what was asked
            raise Refused(f"it cannot be asked so: {error}") from None
        request = Request(inputs, config, n_prompt)
        self._incoming.put(request)
        return request

    def _prompt(self, body: dict[str, Any]) -> tuple[str, bool]:
        """The text, and whether it still lacks special tokens such as BOS."""
        if "messages" not in body:
            prompt = body.get("prompt")
            if not isinstance(prompt, str):
                raise Refused("prompt must be a text")
            return prompt, True
        messages = body["messages"]
        if not isinstance(messages, list) or not all(
            isinstance(m, dict) and isinstance(m.get("content"), str) for m in messages
        ):
            raise Refused("messages must be a list of {role, content}, content a text")
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True), False

    def _config(self, body: dict[str, Any], room: int) -> Any:
        config = self._genai.GenerationConfig()
        given = body.get("max_completion_tokens") or body.get("max_tokens") or room
        if not isinstance(given, int) or given < 1:
            raise Refused("max_tokens must be a number of at least 1")
        if given > room:
            raise Refused(
                f"a prompt of {self._context - room} tokens and {given} more do not fit into "
                f"{self._context}"
            )
        config.max_new_tokens = given
        config.ignore_eos = bool(body.get("ignore_eos"))
        temperature = body.get("temperature", 1)
        config.do_sample = temperature != 0
        if config.do_sample:
            config.temperature = temperature
            config.rng_seed = body.get("seed") or 0
            for name in ("top_p", "top_k"):
                if body.get(name) is not None:
                    setattr(config, name, body[name])
        stop = body.get("stop")
        if stop:
            config.stop_strings = {stop} if isinstance(stop, str) else set(stop)
        schema = _schema(body.get("response_format"))
        if schema is not None:
            config.structured_output_config = self._genai.StructuredOutputConfig(
                json_schema=json.dumps(schema)
            )
        return config

    def _run(self) -> None:
        while True:
            if not self._running:
                self._begin(self._incoming.get())  # waits
            while not self._incoming.empty():
                self._begin(self._incoming.get())
            try:
                if self._running:
                    self._pipeline.step()
            except Exception as error:  # of all requests in it: which is to blame is not told
                for request in self._running:
                    request.handle.cancel()
                    self._end(request, str(error))
            self._running = [request for request in self._running if self._goes_on(request)]

    def _begin(self, request: Request) -> None:
        try:
            request.handle = self._pipeline.add_request(
                next(self._numbers), request.inputs, request.config
            )
        except Exception as error:
            self._end(request, str(error))
            return
        self._running.append(request)

    def _goes_on(self, request: Request) -> bool:
        handle, status = request.handle, self._genai.GenerationStatus
        if request.failure is not None:
            return False
        if request.abandoned:
            handle.cancel()
            return False
        over = handle.get_status() != status.RUNNING  # asked first, so that no token is missed
        while handle.can_read():
            for output in handle.read().values():
                if output.generated_ids:
                    request.tokens.put(list(output.generated_ids))
        if not over:
            return True
        ignored = handle.get_status() == status.IGNORED
        self._end(request, "it does not fit into the KV cache" if ignored else None)
        return False

    def _end(self, request: Request, failure: str | None) -> None:
        request.failure = failure
        request.tokens.put(None)


def _schema(asked: Any) -> Any:
    """The JSON schema of a response_format; None for plain text."""
    kind = asked.get("type") if isinstance(asked, dict) else None
    if asked is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    described = asked.get("json_schema") if isinstance(asked, dict) else None
    if kind != "json_schema" or not isinstance(described, dict) or "schema" not in described:
        raise Refused(f"response_format {kind!r} is not text, json_object or json_schema")
    return described["schema"]


class Text:
    """Makes pieces of text out of ids: what a character still lacks is held back."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._start = 0
        """Ids before it are told; those right before the next ones are decoded with them, as how a
        token reads depends on the one before."""
        self._told = 0

    def push(self, ids: list[int], *, last: bool = False) -> str:
        self._ids += ids
        before = self._decode(self._ids[self._start : self._told])
        text = self._decode(self._ids[self._start :])
        if not last and text.endswith("\ufffd"):
            return ""
        self._start, self._told = self._told, len(self._ids)
        return text[len(before) :]


def answer(pipeline: Pipeline, body: dict[str, Any], request: Request) -> Iterator[dict[str, Any]]:
    """The events of a stream."""
    chat = "messages" in body
    head = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{id(request):x}",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "model": body.get("model"),
    }
    text = Text(pipeline.tokenizer.decode)
    count = 0

    def event(piece: str, finish: str | None = None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        choice |= {"delta": {"content": piece}} if chat else {"text": piece}
        return {**head, "choices": [choice]}

    while (ids := request.tokens.get()) is not None:
        count += len(ids)
        piece = text.push(ids)
        if piece:
            yield event(piece)
    if request.failure is not None:
        yield {"error": {"message": request.failure, "type": "server_error"}}
        return
    yield event(
        text.push([], last=True), "length" if count >= request.config.max_new_tokens else "stop"
    )
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = {
            "prompt_tokens": request.n_prompt, "completion_tokens": count,
            "total_tokens": request.n_prompt + count,
        }  # fmt: skip
        yield {**head, "choices": [], "usage": usage}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    pipeline: Pipeline | None = None
    name = ""

    def do_GET(self) -> None:
        if self.path == "/health":
            ready = type(self).pipeline is not None
            self._json({"status": "ok" if ready else "loading"}, HTTPStatus(200 if ready else 503))
        elif self.path == "/v1/models":
            self._json({"object": "list", "data": [{"id": self.name, "object": "model"}]})
        else:
            self._refuse(Refused(f"there is no {self.path}", HTTPStatus.NOT_FOUND))

    def do_POST(self) -> None:
        try:
            body = self._body()
            pipeline = type(self).pipeline
            if pipeline is None:
                raise Refused("the model is being loaded", HTTPStatus.SERVICE_UNAVAILABLE)
            request = pipeline.submit(body)
        except Refused as refused:
            self._refuse(refused)
            return
        try:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in answer(pipeline, body, request):
                self._chunk(f"data: {json.dumps(event)}\n\n".encode())
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        except OSError:  # who asked has gone
            request.abandoned = True
            self.close_connection = True

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _MAX_BODY:
            self.close_connection = True
            raise Refused(f"a body of at most {_MAX_BODY} bytes is needed, and its Content-Length")
        data = self.rfile.read(int(length))
        if self.path not in ("/v1/chat/completions", "/v1/completions"):
            raise Refused(f"there is no {self.path}", HTTPStatus.NOT_FOUND)
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Refused(f"the body is no JSON: {error}") from None
        if not isinstance(body, dict):
            raise Refused("the body must be a JSON object")
        if ("messages" in body) != (self.path == "/v1/chat/completions"):
            raise Refused("messages are for /v1/chat/completions, prompt is for /v1/completions")
        if body.get("model") not in (None, self.name):
            raise Refused(f"there is no model {body['model']!r}", HTTPStatus.NOT_FOUND)
        if not body.get("stream"):
            raise Refused('this server only streams: ask with "stream": true')
        return body

    def _refuse(self, refused: Refused) -> None:
        self._json({"error": {"message": str(refused), "type": "invalid_request"}}, refused.status)

    def _json(self, content: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _chunk(self, data: bytes) -> None:
        """An empty one is the last."""
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Clients may leave at any point, in the middle of their request too: that is no failure.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    parser = argparse.ArgumentParser(description="An OpenAI-compatible server over OpenVINO GenAI.")
    parser.add_argument("model", help="a GGUF file, or a folder with openvino_model.xml")
    parser.add_argument("--name", default="model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens of one sequence")
    parser.add_argument("--sequences", type=int, default=8, help="most at once")
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--kv-type", help="such as u8 or f16; by default, as the library has it")
    parser.add_argument("--prefix-caching", action="store_true")
    options = parser.parse_args()
    Handler.name = options.name
    with Server(("127.0.0.1", options.port), Handler) as server:
        # It listens while the model is loaded, and says that it is not ready.
        threading.Thread(target=server.serve_forever, daemon=True).start()
        Handler.pipeline = Pipeline(options)
        threading.Event().wait()


if __name__ == "__main__":
    main()
