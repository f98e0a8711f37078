"""A crowd of clients that ask a server for everything, well and badly, and count how it ended.

Each request's kind, size and misbehaviour come from a seed. Every one is accounted for: answered in
full, refused as it was to be, or left by its client; anything else is a fault that is kept.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from support.serving import Server, send_request

CANARIES = 24
SCHEMA = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "days": {"enum": [1, 2, 3]}},
    "required": ["unit", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


class Ask(NamedTuple):
    """A request, and what is to come of it: ``check`` says of status and body what is wrong."""

    kind: str
    path: str
    body: Any
    check: Callable[[int, bytes], str | None]


def canary(number: int) -> dict[str, Any]:
    """A greedy request with a secret of its own, whose answer is known beforehand."""
    messages = [{"role": "user", "content": f"My number is {number * 7919}. Say it again."}]
    return {
        "model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 24,
        "ignore_eos": True,
    }  # fmt: skip


class Crowd:
    """``clients`` threads that send requests until there have been ``count``, or ``seconds`` are
    over. ``keys`` are used in turn; ``crowd.faults`` are the answers that were not as they were to
    be, ``crowd.ends`` counts the others by kind."""

    def __init__(
        self, server: Server, *, count: int, seconds: float, clients: int = 8, seed: int = 0,
        keys: Sequence[str | None] = (None,),
    ) -> None:  # fmt: skip
        self.ends: Counter[str] = Counter()
        self.faults: list[str] = []
        self.begun = 0
        self._server = server
        self._count = count
        self._deadline = time.monotonic() + seconds
        self._clients = clients
        self._seed = seed
        self._keys = keys
        self._lock = threading.Lock()
        self._known = [self._text(canary(i)) for i in range(CANARIES)]

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._client, args=[i], daemon=True)
            for i in range(self._clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self._deadline - time.monotonic()) + 120)
            assert not thread.is_alive(), "a request hangs"

    @property
    def done(self) -> int:
        return sum(self.ends.values()) + len(self.faults)

    def _text(self, body: Any) -> str:
        status, answer = self._server.post("/v1/chat/completions", body, headers=self._headers(0))
        assert status == 200, answer
        return str(answer["choices"][0]["message"]["content"])

    def _headers(self, turn: int) -> dict[str, str]:
        key = self._keys[turn % len(self._keys)]
        return {} if key is None else {"Authorization": f"Bearer {key}"}

    def _client(self, number: int) -> None:
        rng = random.Random(self._seed * 1000 + number)
        connection: http.client.HTTPConnection | None = None
        while True:
            with self._lock:
                if self.begun >= self._count or time.monotonic() > self._deadline:
                    return
                self.begun += 1
                turn = self.begun
            ask = self._ask(rng)
            if connection is None:
                connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=90)
            try:
                if rng.random() < 0.15:
                    self._leave(ask, rng, self._keys[turn % len(self._keys)])
                    wrong, kind = None, "left"
                else:
                    data = ask.body if isinstance(ask.body, bytes) else json.dumps(ask.body)
                    connection.request("POST", ask.path, data, self._headers(turn))
                    answer = connection.getresponse()
                    wrong, kind = ask.check(answer.status, answer.read()), ask.kind
            except (OSError, http.client.HTTPException) as error:
                wrong, kind = f"{type(error).__name__}: {error}", ask.kind
                connection = None
            with self._lock:
                if wrong is None:
                    self.ends[kind] += 1
                else:
                    self.faults.append(f"{ask.kind}: {wrong}")
            if connection is not None and rng.random() < 0.02:
                connection.close()
                connection = None

    def _leave(self, ask: Ask, rng: random.Random, key: str | None) -> None:
        """Send a request, read a part of the answer or nothing, and go."""
        with self._server.connect() as connection:
            connection.settimeout(rng.choice((0.001, 0.02, 0.1)))
            with suppress(OSError):
                if isinstance(ask.body, bytes):
                    connection.sendall(ask.body)
                else:
                    send_request(connection, ask.path, ask.body, key or "")
                connection.recv(rng.choice((1, 100, 5000)))
            if rng.random() < 0.5:  # reset instead of an orderly end
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    # ---- what is asked

    def _ask(self, rng: random.Random) -> Ask:
        return rng.choice(self._MAKERS)(self, rng)

    def _canary(self, rng: random.Random) -> Ask:
        number = rng.randrange(CANARIES)
        known = self._known[number]
        if rng.random() < 0.5:
            return Ask("canary", "/v1/chat/completions", canary(number), _says(known, _chat_text))
        body = {**canary(number), "stream": True, "stream_options": {"include_usage": True}}
        return Ask("canary", "/v1/chat/completions", body, _says(known, _streamed_text))

    def _chat(self, rng: random.Random) -> Ask:
        body = {
            "model": "tiny", "messages": [{"role": "user", "content": "x" * rng.randrange(1, 300)}],
            "max_tokens": rng.randrange(1, 120), "n": rng.choice((1, 1, 2, 4)),
            "seed": rng.randrange(1000), "stream": rng.random() < 0.5,
            "stop": rng.choice(([], "e")), "logprobs": rng.random() < 0.3,
            "cache_salt": rng.choice(("", "a", "b")),
        }  # fmt: skip
        return Ask("chat", "/v1/chat/completions", body, _status(200))

    def _completion(self, rng: random.Random) -> Ask:
        prompt: Any = rng.choice(("Once", ["a", "b"], [65] * rng.randrange(1, 700)))
        body = {
            "model": "tiny", "prompt": prompt, "max_tokens": rng.randrange(1, 60),
            "stream": rng.random() < 0.5, "echo": rng.random() < 0.2,
        }  # fmt: skip
        return Ask("completion", "/v1/completions", body, _status(200))

    def _other_api(self, rng: random.Random) -> Ask:
        messages = [{"role": "user", "content": "Sing."}]
        stream = rng.random() < 0.5
        return rng.choice((
            Ask("messages", "/v1/messages",
                {"model": "tiny", "messages": messages, "max_tokens": 20, "stream": stream},
                _status(200)),
            Ask("responses", "/v1/responses",
                {"model": "tiny", "input": "Sing.", "max_output_tokens": 20, "stream": stream},
                _status(200)),
            Ask("ollama", "/api/chat",
                {"model": "tiny", "messages": messages, "stream": stream,
                 "options": {"num_predict": 20}}, _status(200)),
            Ask("tokenize", "/tokenize", {"model": "tiny", "prompt": "x" * 500}, _status(200)),
        ))  # fmt: skip

    def _structured(self, rng: random.Random) -> Ask:
        body = {
            "model": "tiny", "messages": [{"role": "user", "content": "Go."}], "max_tokens": 120,
            "seed": rng.randrange(1000),
        }  # fmt: skip
        if rng.random() < 0.5:
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
            more: dict[str, Any] = {"response_format": form}
            return Ask("schema", "/v1/chat/completions", {**body, **more}, _fits(_chat_text))
        choice = {"type": "function", "function": {"name": "weather"}}
        more = {"tools": [TOOL], "tool_choice": choice}
        return Ask("call", "/v1/chat/completions", {**body, **more}, _fits(_call_arguments))

    def _wrong(self, rng: random.Random) -> Ask:
        good = canary(0)
        path = "/v1/chat/completions"
        body, status = rng.choice((
            ({**good, "max_tokens": -1}, 400), ({**good, "n": 10**6}, 400),
            ({**good, "max_tokens": 10**6}, 400), ({**good, "nothing": 1}, 400),
            ({**good, "model": "nobody"}, 404), ({**good, "messages": []}, 400),
            ({**good, "guided_regex": "("}, 400), ({**good, "top_p": 7}, 400),
            ({**good, "tools": [TOOL], "tool_choice": "never"}, 400),
            (b"{", 400), (b"\xff" * 50, 400), ({**good, "temperature": "hot"}, 400),
        ))  # fmt: skip
        return Ask("wrong", path, body, _status(status))

    _MAKERS: Sequence[Callable[[Crowd, random.Random], Ask]] = (
        _canary, _canary, _canary, _chat, _chat, _completion, _other_api, _structured, _wrong,
    )  # fmt: skip


def _status(wanted: int) -> Callable[[int, bytes], str | None]:
    def check(status: int, body: bytes) -> str | None:
        if status != wanted:
            return f"{status}: {body[:300]!r}"
        if wanted == 200 and (b'{"error":' in body or b'"type":"error"' in body):
            return f"an error: {body[-300:]!r}"
        return None

    return check


def _says(known: str, text_of: Callable[[bytes], str]) -> Callable[[int, bytes], str | None]:
    def check(status: int, body: bytes) -> str | None:
        if status != 200:
            return f"{status}: {body[:300]!r}"
        text = text_of(body)
        return None if text == known else f"{text!r} in place of {known!r}"

    return check


def _fits(text_of: Callable[[bytes], str]) -> Callable[[int, bytes], str | None]:
    def check(status: int, body: bytes) -> str | None:
        if status != 200:
            return f"{status}: {body[:300]!r}"
        try:
            found = json.loads(text_of(body))
        except ValueError:
            return f"no JSON: {body[:300]!r}"
        return None if set(found) == {"unit", "days"} else f"not by the schema: {found!r}"

    return check


def _chat_text(body: bytes) -> str:
    return str(json.loads(body)["choices"][0]["message"]["content"])


def _call_arguments(body: bytes) -> str:
    (call,) = json.loads(body)["choices"][0]["message"]["tool_calls"]
    return str(call["function"]["arguments"])


def _streamed_text(body: bytes) -> str:
    text = ""
    lines = [line for line in body.decode().split("\n") if line.startswith("data: ")]
    if lines[-1:] != ["data: [DONE]"] or '"usage":{' not in lines[-2]:
        return f"a stream that ends in {lines[-2:]}"
    for line in lines[:-1]:
        for choice in json.loads(line[6:])["choices"]:
            text += choice["delta"].get("content") or ""
    return text


# ---- what is held


class Held(NamedTuple):
    """What a process holds: resident bytes, open files, threads."""

    rss: int
    files: int
    threads: int

    @classmethod
    def by(cls, pid: int) -> Held:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return cls(int(fields["VmRSS"].split()[0]) << 10, files, int(fields["Threads"]))


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line of least squares through the points."""
    n = len(points)
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return covariance / sum((x - mean_x) ** 2 for x, _ in points)
