"""Memory that runs out: at the start it is told, later it costs the requests that need it."""

from __future__ import annotations

import http.client
import json
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support.serving import Server, events_of, serving, until

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "tiny", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 8,
    "temperature": 0, "ignore_eos": True,
}  # fmt: skip
OPTIONS = ("--name", "tiny", "--threads", "1")


@contextmanager
def no_more_memory(process: int, more: int = 0) -> Iterator[None]:
    """The process has what it has, and ``more`` bytes."""
    status = Path(f"/proc/{process}/status").read_text()
    (size,) = re.findall(r"VmSize:\s+(\d+) kB", status)
    before = resource.prlimit(process, resource.RLIMIT_AS)
    resource.prlimit(process, resource.RLIMIT_AS, (int(size) * 1024 + more, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it has ended
            resource.prlimit(process, resource.RLIMIT_AS, before)


@pytest.fixture
def own(tiny_chat_model: Path) -> Iterator[Server]:
    with serving(str(tiny_chat_model), *OPTIONS) as found:
        yield found


def end_of(server: Server, body: Any, path: str = CHAT) -> str:
    """How a request ended: "whole", an error's code, or "closed"."""
    try:
        status, _, data = server.request("POST", path, body)
    except (OSError, http.client.HTTPException):
        return "closed"
    if status != 200:
        return str(json.loads(data)["error"]["code"])
    if not isinstance(body, dict) or not body.get("stream"):
        return "whole"
    last = events_of(data)[-1]
    return "whole" if last == "[DONE]" else str(last["error"]["code"])


def test_what_does_not_fit_is_refused_with_the_sum(tiny_chat_model: Path) -> None:
    """Also where only this process may have no more."""
    ended = subprocess.run(
        ["prlimit", "--as=4000000000", sys.executable, "-m", "tidemill", "serve",
         str(tiny_chat_model), "--port", "0", "--threads", "1", "--max-sequences", "60000",
         "--kv-memory", "12000000000"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 1
    assert re.search(r"does not fit into memory: weights .* MiB are available", ended.stderr)
    assert "Traceback" not in ended.stderr


def test_a_worker_without_memory_costs_requests_only(own: Server) -> None:
    """They end whole, or with an error; when there is memory again, all is as before. (Native code
    that gets none may end the process, which is then started again.)"""
    bodies = [
        {**BODY, "n": 16, "max_tokens": 60, "stream": i % 2 == 0, **_grammar(i)} for i in range(8)
    ]
    (worker,) = own.workers()
    with no_more_memory(worker), ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(lambda body: end_of(own, body), bodies))
    assert set(ends) <= {"whole", "generation_failed", "model_unavailable"}, ends
    assert set(ends) != {"whole"}
    until(lambda: end_of(own, BODY) == "whole")
    assert own.process.poll() is None


def _grammar(i: int) -> dict[str, Any]:
    """For every other request one that takes megabytes."""
    properties = {f"p{i}_{k}": {"type": "string", "pattern": "^(a|b){1,99}$"} for k in range(300)}
    return {} if i % 2 else {"guided_json": {"type": "object", "properties": properties}}


def test_a_front_end_without_memory_costs_requests_only(own: Server) -> None:
    """Those that are large: the others go on meanwhile. Only one that comes in the very moment in
    which large ones have taken the last piece may have to be asked again: the smallest piece that
    Python asks for fails then, whoever it is for, and no process can have its memory both used up
    by some and at hand for others."""
    large = {**BODY, "messages": [{"role": "user", "content": "x" * 25_000_000}]}
    workers = own.workers()
    assert end_of(own, BODY) == "whole"
    with no_more_memory(own.process.pid, 8 << 20):
        with ThreadPoolExecutor(4) as pool:
            ends = list(pool.map(lambda body: end_of(own, body), [large, BODY, large, BODY] * 2))
        until(lambda: end_of(own, BODY) == "whole")  # without any more memory
    assert set(ends[::2]) <= {"closed", "out_of_memory", "internal_error"}, ends
    assert set(ends[1::2]) <= {"whole", "closed", "out_of_memory"}, ends
    assert end_of(own, BODY) == "whole"
    assert own.workers() == workers
