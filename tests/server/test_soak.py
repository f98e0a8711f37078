"""Everything at once, for a while: mixed requests of all APIs over real sockets, right and wrong,
clients that leave, several keys, a prefix cache too small for all of them.

TIDEMILL_SOAK_REQUESTS is how many; ``make soak`` sends 20,000.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.serving import serving, until
from support.soaking import Crowd, Held, slope

REQUESTS = int(os.environ.get("TIDEMILL_SOAK_REQUESTS", "400"))
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


@pytest.mark.timeout(7200)  # minutes on two quiet cores
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
        processes = (server.process.pid, worker)
        points: dict[int, list[tuple[float, float]]] = {pid: [] for pid in processes}
        total, before = 0, dict[int, Held]()
        for round_ in range(ROUNDS):
            crowd = Crowd(server, count=REQUESTS // ROUNDS, seconds=600, seed=round_, keys=keys)
            crowd.run()
            assert crowd.faults == []
            assert crowd.done == crowd.begun
            total += crowd.done
            until(server.idle)
            for pid in processes:
                held = Held.by(pid)
                points[pid].append((total, held.rss))
                if round_ == 2:  # what is made once has been
                    before[pid] = held
        for pid in processes:
            held = Held.by(pid)
            assert held.files <= before[pid].files + 2
            # asyncio's pool of threads grows when it is needed, up to its bound.
            assert held.threads <= before[pid].threads + min(32, 4 + (os.cpu_count() or 1))
            if REQUESTS >= 10_000:
                assert slope(points[pid][ROUNDS // 2 :]) < BYTES_A_REQUEST
        assert total == REQUESTS
        assert server.workers() == [worker]
        print(f"{server.metric('vllm:num_preemptions_total'):.0f} preemptions")
        assert "failed" not in server.log
