"""TTFT of an interactive tenant alone, and beside a flood of another key.

    python benchmarks/server_fairness.py [--model smollm2] [--rounds 5] [--streams 64]

A real server, with two keys. The interactive one asks short questions, one after the other, each
after a pause for thought: in a round first alone, then beside ``--streams`` connections of the
other one that always have a request with a long prompt and a long answer open, each of its own. A
round ends when the flood has been cut off and the server is idle again.

TTFT is from the moment a request is sent to the first piece of its answer with text; connections
are kept alive. Questions have a number of their own in front, so that nothing of them but the chat
template's beginning is in the prefix cache. The first questions of each part are not counted: the
first of all beside a flood still finds long steps.

The flood reads its answers in a process of its own, which takes some of the same cores. Printed are
p50 and p99 over all rounds, and their ratios; the bar is 2 at p99. With ``--plain`` the flood and
the interactive tenant have the same key, which shows what the difference is.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import multiprocessing
import os
import random
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

from tidemill.server.key_database import KeyDatabase
from tidemill.server.keys import digest_of

WORDS = (
    "river", "stone", "lamp", "winter", "copper", "garden", "letter", "signal", "harbour", "thread",
    "mirror", "engine",
)  # fmt: skip
FLOOD, INTERACTIVE = "tm-flood", "tm-interactive"
WARM_UP = 3  # questions of each part that are not counted


@contextmanager
def server(model: str, threads: int | None) -> Iterator[int]:
    """A server with both keys; its port."""
    with tempfile.TemporaryDirectory() as folder:
        keys = KeyDatabase(Path(folder) / "keys.db")
        keys.add_key("flood", {}, digest_of(FLOOD))
        keys.add_key("interactive", {}, digest_of(INTERACTIVE))
        command = [
            sys.executable, "-m", "tidemill", "serve", model, "--name", "model", "--port", "0",
            "--api-key-file", str(keys.path), "--log-level", "warning",
            *([] if threads is None else ["--threads", str(threads)]),
        ]  # fmt: skip
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"serving .* at http://[\d.]+:(\d+)/", line):
                    yield int(found[1])
                    return
            raise SystemExit("the server did not start")
        finally:
            process.terminate()
            process.wait(60)


def flood(port: int, streams: int, prompt: int, output: int, stop: Event, tokens: object) -> None:
    """Keep ``streams`` requests open until ``stop``; ``tokens.value`` counts pieces of answers."""
    rng = random.Random(os.getpid())
    selector = selectors.DefaultSelector()

    def begin() -> None:
        connection = socket.create_connection(("127.0.0.1", port))
        text = " ".join(rng.choices(WORDS, k=prompt))
        body = json.dumps(
            {
                "model": "model", "messages": [{"role": "user", "content": text}], "stream": True,
                "max_tokens": rng.randrange(output // 2, output + 1), "ignore_eos": True,
            }
        ).encode()  # fmt: skip
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Authorization: Bearer {FLOOD}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        selector.register(connection, selectors.EVENT_READ)

    for _ in range(streams):
        begin()
    while not stop.is_set():
        for key, _ in selector.select(0.2):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            data = connection.recv(1 << 16)
            tokens.value += data.count(b"data: ")  # type: ignore[attr-defined]
            if not data:
                selector.unregister(connection)
                connection.close()
                begin()
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]


class Interactive:
    """Asks questions, one after the other."""

    def __init__(self, port: int, key: str, answer: int, think: float) -> None:
        self._port = port
        self._key = key
        self._answer = answer
        self._think = think
        self._rng = random.Random(5)
        self._connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(self) -> float:
        """Seconds to the first text of the answer, which is read to its end."""
        number, words = self._rng.randrange(10**6), self._rng.sample(WORDS, 3)
        question = f"{number}: what have a {words[0]}, a {words[1]} and a {words[2]} in common?"
        body = json.dumps(
            {
                "model": "model", "messages": [{"role": "user", "content": question}],
                "stream": True, "max_tokens": self._answer, "ignore_eos": True,
            }
        )  # fmt: skip
        headers = {"Authorization": f"Bearer {self._key}"}
        started = time.perf_counter()
        self._connection.request("POST", "/v1/chat/completions", body, headers)
        answer = self._connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {answer.read().decode()}")
        first = math.inf
        while line := answer.readline():
            if first == math.inf and line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                if choices and choices[0]["delta"].get("content"):
                    first = time.perf_counter() - started
        return first

    def questions(self, n: int) -> list[float]:
        found = []
        for _ in range(n + WARM_UP):
            found.append(self.ask())
            time.sleep(self._rng.uniform(0.5, 1.5) * self._think)
        return found[WARM_UP:]


def until_idle(port: int) -> None:
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/metrics", headers={"X-Api-Key": INTERACTIVE})
        text = connection.getresponse().read().decode()
        busy = re.findall(
            r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", text, re.MULTILINE
        )
        if not any(map(float, busy)):
            return
        time.sleep(0.1)


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--questions", type=int, default=40, help="counted in a part of a round")
    parser.add_argument("--answer", type=int, default=16, help="tokens of an interactive answer")
    parser.add_argument(
        "--think", type=float, default=0.3, help="mean seconds between two questions"
    )
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=300, help="words of a prompt of the flood")
    parser.add_argument("--output", type=int, default=400, help="most tokens of its answers")
    parser.add_argument(
        "--settle", type=float, default=15, help="seconds for the flood to build up"
    )
    parser.add_argument("--plain", action="store_true", help="both have the same key")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    alone: list[float] = []
    beside: list[float] = []
    rates: dict[str, list[float]] = {"flood alone": [], "flood beside": []}
    with server(arguments.model, arguments.threads) as port:
        key = FLOOD if arguments.plain else INTERACTIVE
        person = Interactive(port, key, arguments.answer, arguments.think)
        for number in range(arguments.rounds):
            alone += person.questions(arguments.questions)
            stop, tokens = context.Event(), context.Value("q", 0, lock=False)
            rest = (arguments.streams, arguments.prompt, arguments.output, stop, tokens)
            process = context.Process(target=flood, args=(port, *rest))
            process.start()
            time.sleep(arguments.settle)
            before, began = tokens.value, time.perf_counter()
            time.sleep(min(5.0, arguments.settle))
            rates["flood alone"].append((tokens.value - before) / (time.perf_counter() - began))
            before, began = tokens.value, time.perf_counter()
            beside += person.questions(arguments.questions)
            rates["flood beside"].append((tokens.value - before) / (time.perf_counter() - began))
            stop.set()
            process.join()
            until_idle(port)
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    result = {
        f"{name} {share:.0%}": quantile(values, share)
        for name, values in (("alone", alone), ("beside", beside)) for share in (0.5, 0.99)
    }  # fmt: skip
    print(f"{'TTFT, ms':24} {'p50':>8} {'p99':>8}   (n = {len(alone)}, {len(beside)})")
    for name in ("alone", "beside"):
        print(f"{name:24} {1e3 * result[f'{name} 50%']:8.1f} {1e3 * result[f'{name} 99%']:8.1f}")
    ratios = [result[f"beside {s}"] / result[f"alone {s}"] for s in ("50%", "99%")]
    print(f"{'beside / alone':24} {ratios[0]:8.2f} {ratios[1]:8.2f}   (bar: p99 at most 2)")
    for name, values in rates.items():
        print(f"{name + ', events/s':24} {statistics.median(values):8.0f}")
    if arguments.json:
        record = {"arguments": {**vars(arguments), "json": str(arguments.json)}, "alone": alone,
                  "beside": beside, "flood": rates}  # fmt: skip
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
