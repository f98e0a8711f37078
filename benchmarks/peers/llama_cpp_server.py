"""llama.cpp's server, of the same build as its tools, called through its API as Tidemill is."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.llama_cpp import PROMPT, LlamaCpp
from peers.protocol import (
    ApiPeer,
    Figures,
    Limits,
    Model,
    Settings,
    Work,
    die_with_parent,
    high_water,
    main,
    prompts_of,
    tail,
)

TOOLS = LlamaCpp()
# Of the ways to be greedy the quickest: no other sampler looks at the vocabulary.
GREEDY = {"samplers": ["top_k"], "top_k": 1}


class LlamaCppServer(ApiPeer):
    name = "llama.cpp-server"
    timed = (
        "the API of llama-server: token ids in, last token out, greedy, not streamed; a slot for "
        "each stream, all prompts in one request over a Unix socket; start: to the first token "
        "streamed"
    )

    def __init__(self) -> None:
        super().__init__()
        self._server: Server | None = None

    def install(self) -> Path:
        return TOOLS.install()

    def version(self) -> str:
        return f"{TOOLS.version()}, llama-server"

    def variants(self, model: Model, work: Work) -> list[Settings]:
        return TOOLS.variants(model, work)

    def measure(
        self, model: Model, work: Work, threads: int, settings: Settings, limits: Limits
    ) -> Figures:
        # Its cache is allocated whole for every slot: a server for each size of work.
        limits = Limits.of(work)
        if work.kind == "speed":
            return super().measure(model, work, threads, settings, limits)
        self.close()
        if work.kind == "memory":
            with Server(model, threads, settings, limits) as server:
                server.complete(prompts_of(work, model, seed=1), 1)
                return {"MiB": high_water(server.pid) / (1 << 20)}
        seconds = 0.0
        for _ in range(2):  # the first warms the page cache
            begin = time.perf_counter()
            with Server(model, threads, settings, limits, "--no-warmup") as server:
                server.first_token(PROMPT)
                seconds = time.perf_counter() - begin
        return {"seconds": seconds}

    def load(self, model: Model, threads: int, settings: Settings, limits: Limits) -> None:
        self.close()
        self._server = Server(model, threads, settings, limits)

    def warm_up(self, model: Model, work: Work) -> None:
        """It has run once by itself; this is for the connection."""
        self.timed_generate([[300, 301, 302, 303]], 2)

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Sequence[int]:
        assert self._server is not None
        answers = self._server.complete(prompts, new_tokens)
        return [answer["tokens_predicted"] for answer in answers]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._server = self._loaded = None


class Server:
    """A llama-server process, made to be ready for requests; what it is asked must succeed."""

    def __init__(
        self, model: Model, threads: int, settings: Settings, limits: Limits, *options: str
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="peer-")
        # No port to choose, and no acknowledgement is ever delayed.
        address = Path(self._folder.name) / "server.sock"
        self._log = Path(self._folder.name) / "log"
        # What it would keep of earlier prompts costs time and memory and is never of use here.
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(TOOLS.tools / "llama-server"), "-m", model.path, "-t", str(threads),
                 *TOOLS.options(settings), "-np", str(limits.streams),
                 "-c", str(limits.streams * limits.context), "--no-cache-prompt",
                 "--cache-ram", "0", "--ctx-checkpoints", "0", "--host", str(address), *options],
                cwd=self._folder.name, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, preexec_fn=die_with_parent,
            )  # fmt: skip
        self._connection = _Connection(address)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def complete(self, prompts: list[list[int]], new_tokens: int) -> list[dict[str, Any]]:
        """Its answer to each prompt, with its own ``timings``."""
        answer = json.loads(self._ask(prompts, new_tokens).read())
        return answer if isinstance(answer, list) else [answer]

    def first_token(self, prompt: str) -> None:
        """Wait for the first of two streamed tokens."""
        self._ask(prompt, 2, stream=True).readline()

    def close(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def _ask(self, prompt: object, new_tokens: int, **more: object) -> http.client.HTTPResponse:
        body = {"prompt": prompt, "n_predict": new_tokens, "ignore_eos": True,
                "cache_prompt": False, **GREEDY, **more}  # fmt: skip
        self._connection.close()  # the server closes one that is idle for five seconds
        self._connection.request(
            "POST", "/completion", json.dumps(body), {"Content-Type": "application/json"}
        )
        response = self._connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"HTTP status {response.status}: {tail(response.read())}")
        return response

    def _wait(self) -> None:
        """Until the model is loaded."""
        while self._process.poll() is None:
            try:
                self._connection.request("GET", "/health")
                response = self._connection.getresponse()
                response.read()
                if response.status == http.HTTPStatus.OK:
                    return
            except (OSError, http.client.HTTPException):  # it does not listen yet
                self._connection.close()
            time.sleep(0.002)
        raise RuntimeError(
            f"llama-server: exit status {self._process.returncode}: {tail(self._log.read_bytes())}"
        )


class _Connection(http.client.HTTPConnection):
    """Over a Unix socket."""

    def __init__(self, address: Path) -> None:
        super().__init__("localhost")
        self._address = str(address)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._address)


if __name__ == "__main__":
    main(LlamaCppServer())
