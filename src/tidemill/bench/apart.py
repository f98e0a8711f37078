"""A run in a process of its own: ``python -m tidemill.bench``, a plan in, a recording out.

So that what it costs is known, and that nothing else in the caller's process can make it late.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys

import msgspec

from tidemill.bench.records import Recording
from tidemill.bench.run import BenchError, Plan, run

_REFUSED = 3
"""Exit status of a run that ends with BenchError, whose message is on standard error."""


def run_apart(plan: Plan) -> Recording:
    """Carry out a plan in another process. Raises BenchError as ``run`` does, and if the process
    fails."""
    done = subprocess.run(
        [sys.executable, "-m", "tidemill.bench"], input=msgspec.msgpack.encode(plan),
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        if done.returncode != _REFUSED:
            said = f"the load generator failed with status {done.returncode}: {said[-2000:]}"
        raise BenchError(said)
    return msgspec.msgpack.decode(done.stdout, type=Recording)


def main() -> int:
    """What the other process does."""
    plan = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Plan)
    # An open loop has as many connections as the endpoint leaves requests unanswered.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        recording = asyncio.run(run(plan))
    except BenchError as error:
        print(error, file=sys.stderr)
        return _REFUSED
    sys.stdout.buffer.write(msgspec.msgpack.encode(recording))
    return 0
