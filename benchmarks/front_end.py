"""What the server's front end costs: CPU time for a token and for a request, without an engine.

    python benchmarks/front_end.py [--model smollm2] [--streams 32] [--api chat] [--rounds 20]

The real application, connections and sockets run here; the worker's end of the wire is played by a
few lines, which send what a step of the engine gives. Clients are another process, which throws
away what it reads. Best of all rounds: what others on the machine do makes it more only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import uvicorn

from tidemill.engine.base import Event, FinishEvent, PromptEvent, TokenEvent
from tidemill.hardware.energy import EnergyMeters
from tidemill.llm.loading import open_model
from tidemill.server.app import App
from tidemill.server.config import ModelConfig, ServerConfig
from tidemill.server.connection import Connection
from tidemill.server.keys import Keys
from tidemill.server.metrics import Metrics
from tidemill.server.models import LoadedModel, Models
from tidemill.server.service import Service
from tidemill.server.wire import Frames, Kind, encode, pack_event
from tidemill.server.worker_process import WorkerProcess

CONTEXT = 2048
STEPS = 40  # in a round
WORDS = (" hello", " world", ",", " the", "\n", " “quoted”", " and", " 42")

# Takes sockets over its standard input and reads whatever comes, until there is no more.
_READER = """
import os, select, socket
given, poll = socket.socket(fileno=0), select.epoll()
for _ in range({streams}):
    poll.register(socket.recv_fds(given, 1, 1)[1][0], select.EPOLLIN)
while True:
    for fd, _ in poll.poll():
        if not os.read(fd, 1 << 16):
            raise SystemExit
"""


@dataclass
class PlayedWorker:
    """The transport of a WorkerProcess whose other end is this: accepts every request, and answers
    it at once if it is to be ``brief``."""

    process: WorkerProcess
    brief: bool = False
    ids: list[str] = field(default_factory=list)
    _frames: Frames = field(default_factory=Frames)

    def write(self, data: bytes) -> None:
        for kind, *fields in self._frames.feed(data):
            if kind != Kind.ADD:
                continue
            id_ = fields[0][0]
            self.ids.append(id_)
            self.process.data_received(encode(Kind.ACCEPTED, id_))
            if self.brief:
                self.step([PromptEvent(id_, 30, 0), TokenEvent(id_, 0, 500, " hello"),
                           FinishEvent(id_, 0, "length")])  # fmt: skip

    def step(self, events: Sequence[Event]) -> None:
        self.process.data_received(
            encode(Kind.EVENTS, time.monotonic(), [pack_event(event) for event in events])
        )


async def main(args: argparse.Namespace) -> None:
    worker, config = _server(args.model)
    token = await _token(worker, config, args)
    request = await _request(worker, config, args)
    print(
        f"{args.api}, {args.streams} streams: {1e6 * token:.1f} us for a token, "
        f"{1e6 * request:.0f} us for a request beside its tokens"
    )
    os._exit(0)  # what is still open here would only be taken apart


def _server(model: str) -> tuple[PlayedWorker, uvicorn.Config]:
    settings = ModelConfig(source=model, name="model")
    models = Models([settings])
    service = Service(ServerConfig(models=[settings]), models, Metrics(models, EnergyMeters()))
    opened = open_model(model, max_context=CONTEXT)
    opened.tokenizer.encode("much text " * 1000)
    process = WorkerProcess(None)
    process.info = {"max_context": CONTEXT}
    worker = PlayedWorker(process)
    process._transport = worker  # type: ignore[assignment]
    loaded = LoadedModel(settings, opened, process, 512, several_tenants=False)
    models._put(models.entry("model"), loaded)
    config = uvicorn.Config(
        App(service, Keys(None)), http=Connection, ws="none", lifespan="off", log_config=None,
        access_log=False, server_header=False,
    )  # fmt: skip
    config.load()
    return worker, config


async def _connected(config: uvicorn.Config, count: int) -> list[socket.socket]:
    """The clients' ends of so many connections."""
    state = uvicorn.Server(config).server_state
    clients = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(count):
            clients.append(socket.create_connection(listener.getsockname()))
            ours, _ = listener.accept()
            ours.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(config=config, server_state=state, app_state={}), ours
            )
    return clients


async def _token(worker: PlayedWorker, config: uvicorn.Config, args: argparse.Namespace) -> float:
    """Seconds of CPU time for a token of one of many streams, of which a step gives one each."""
    given, taken = socket.socketpair()
    code = _READER.format(streams=args.streams)
    subprocess.Popen([sys.executable, "-c", code], stdin=taken)
    clients = await _connected(config, args.streams)
    for client in clients:
        client.sendall(_post(args.api))
        socket.send_fds(given, [b"x"], [client.fileno()])
    while len(worker.ids) < args.streams:
        await asyncio.sleep(0.01)
    worker.step([PromptEvent(id_, 30, 0) for id_ in worker.ids])
    best = float("inf")
    for round_ in range(args.rounds):
        await asyncio.sleep(0.05)
        steps = [
            encode(Kind.EVENTS, time.monotonic(), [
                pack_event(TokenEvent(id_, 0, 500, WORDS[(i + step + round_) % len(WORDS)]))
                for i, id_ in enumerate(worker.ids)
            ])
            for step in range(STEPS)
        ]  # fmt: skip
        before = time.process_time()
        for frame in steps:
            worker.process.data_received(frame)
            for _ in range(6):  # until everything has been written
                await asyncio.sleep(0)
        best = min(best, (time.process_time() - before) / (STEPS * args.streams))
    return best


async def _request(worker: PlayedWorker, config: uvicorn.Config, args: argparse.Namespace) -> float:
    """Seconds of CPU time for a request of one token, the reading of its answer included."""
    worker.brief = True
    (client,) = await _connected(config, 1)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    best = float("inf")
    for _ in range(args.rounds):
        before = time.process_time()
        for _ in range(STEPS):
            await loop.sock_sendall(client, _post(args.api))
            got = b""
            while not got.endswith(b"\r\n0\r\n\r\n"):
                got += await loop.sock_recv(client, 1 << 16)
            if b"[DONE]" not in got:
                raise RuntimeError(got.decode())
        best = min(best, (time.process_time() - before) / STEPS)
    return best


def _post(api: str) -> bytes:
    """A request of about 90 tokens for a long stream."""
    question = " ".join(["why is the sky blue and the sea too"] * 10)
    fields: dict[str, Any] = {"model": "model", "stream": True, "max_tokens": CONTEXT - 256}
    if api == "chat":
        path, fields["messages"] = "chat/completions", [{"role": "user", "content": question}]
    else:
        path, fields["prompt"] = "completions", question
    body = msgspec.json.encode(fields | {"stream_options": {"include_usage": True}})
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--api", choices=["chat", "completions"], default="chat")
    parser.add_argument("--rounds", type=int, default=20)
    asyncio.run(main(parser.parse_args()))
