"""Everything at once, for a while: mixed requests of all APIs over real sockets, right and wrong,
clients that leave, several keys, a prefix cache too small for all of them.

TIDEMILL_SOAK_REQUESTS is how many; ``make soak`` sends 20,000, or as many as TIDEMILL_SOAK_MINUTES
have.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.serving import serving, until
from support.soaking import Crowd, Held, slope
from tidemill.bench.processes import cpu_seconds

REQUESTS = int(os.environ.get("TIDEMILL_SOAK_REQUESTS", "400"))
SECONDS = 60 * float(os.environ.get("TIDEMILL_SOAK_MINUTES", "30"))
ROUNDS = 10
# By how much a process may grow for each request of the second half. No object stays, but the C
# library's heap still spreads a little: 0.4 KiB a request after 10,000, and less and less. What is
# kept for one request (its prompt, tokens, events, text) has several KiB.
BYTES_A_REQUEST = 1024


def new_key(file: Path, name: str) -> str:
    made = subprocess.run(
        [sys.executable, "-m", "tidemill", "key", "new", "-f", str(file), name],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return made.stdout.strip()


@pytest.mark.timeout(SECONDS + 600)
def test_a_crowd(tiny_chat_model: Path, tmp_path: Path) -> None:
    """Every request is accounted for; texts are right; what is held comes back to what it was."""
    file = tmp_path / "keys.toml"
    keys = [new_key(file, name) for name in ("first", "second", "third")]
    arguments = ("--name", "tiny", "--threads", "1", "--max-sequences", "8")
    with serving(
        str(tiny_chat_model), *arguments, "--kv-memory", "400000", "--api-key-file", str(file)
    ) as server:
        server.key = keys[0]
        (worker,) = server.workers()
        processes = {"front end": server.process.pid, "worker": worker}
        points: dict[str, list[tuple[float, float]]] = {name: [] for name in processes}
        total, before = 0, dict[str, Held]()
        begun, cpu = time.monotonic(), _cpu(processes)
        for round_ in range(ROUNDS):
            crowd = Crowd(
                server, count=REQUESTS // ROUNDS, seconds=SECONDS / ROUNDS, seed=round_, keys=keys
            )
            crowd.run()
            assert crowd.faults == []
            assert crowd.done == crowd.begun
            total += crowd.done
            until(server.idle)
            for name, pid in processes.items():
                held = Held.by(pid)
                points[name].append((total, held.rss))
                if round_ == 2:  # what is made once has been
                    before[name] = held
        print(f"{total} requests in {time.monotonic() - begun:.0f} s, "
              f"{server.metric('vllm:num_preemptions_total'):.0f} preemptions")  # fmt: skip
        for name, seconds in _cpu(processes).items():
            print(f"{name}: {1e3 * (seconds - cpu[name]) / total:.2f} ms of CPU time a request")
        for name, pid in processes.items():
            held = Held.by(pid)
            grown = slope(points[name][ROUNDS // 2 :])
            print(f"{name}: {held.rss >> 20} MiB, {grown:+.0f} bytes a request in the second half")
            assert held.files <= before[name].files + 2
            # asyncio's pool of threads grows when it is needed, up to its bound.
            assert held.threads <= before[name].threads + min(32, 4 + (os.cpu_count() or 1))
            if total >= 10_000:
                assert grown < BYTES_A_REQUEST
        assert server.workers() == [worker]
        assert "failed" not in server.log


def _cpu(processes: dict[str, int]) -> dict[str, float]:
    """Seconds of CPU time so far, of the clients as well."""
    pids = {**processes, "clients": os.getpid()}
    return {name: cpu_seconds(pid) for name, pid in pids.items()}
