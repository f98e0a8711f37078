"""A run in a process of its own: ``python -m tidemill.bench``, a plan in, a recording out.

So that what it costs is known, and that nothing else in the caller's process can make it late.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from tidemill.bench.processes import end_with_parent
from tidemill.bench.records import Recording
from tidemill.bench.run import BenchError, Plan, Progress, run
from tidemill.hardware.scheduling import wake_promptly

_REFUSED = 3
"""Exit status of a run that ends with BenchError, whose message is on standard error."""

_PROGRESS = "\x1e"
"""What a line on standard error begins with that tells of progress, in JSON."""


def run_apart(plan: Plan, on_progress: Callable[[Progress], None] | None = None) -> Recording:
    """Carry out a plan in another process. Raises BenchError as ``run`` does, and if the process
    fails."""
    command = [sys.executable, "-m", "tidemill.bench"]
    if on_progress is not None:
        command.append("--progress")
    written: list[bytes] = []
    said: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=end_with_parent(),
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        reader = threading.Thread(target=lambda pipe: written.append(pipe.read()),
                                  args=(process.stdout,), daemon=True)  # fmt: skip
        reader.start()
        try:
            with suppress(BrokenPipeError):  # it has ended already, and says why
                process.stdin.write(msgspec.msgpack.encode(plan))
                process.stdin.close()
            for data in process.stderr:
                line = data.decode(errors="replace")
                if on_progress is not None and line.startswith(_PROGRESS):
                    on_progress(msgspec.json.decode(line[1:], type=Progress))
                else:
                    said.append(line)
            process.wait()
            reader.join()
        finally:
            process.kill()  # if it has not ended
            reader.join()  # before the pipe that it reads is closed
    if process.returncode != 0:
        why = "".join(said).strip()
        if process.returncode != _REFUSED:
            why = f"the load generator failed with status {process.returncode}: {why[-2000:]}"
        raise BenchError(why)
    return msgspec.msgpack.decode(written[0], type=Recording)


def main() -> int:
    """What the other process does."""
    plan = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Plan)
    # An open loop has as many connections as the endpoint leaves requests unanswered.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    wake_promptly()  # the engine under measurement may have every core
    try:
        recording = asyncio.run(run(plan, _tell if "--progress" in sys.argv else None))
    except BenchError as error:
        print(error, file=sys.stderr)
        return _REFUSED
    sys.stdout.buffer.write(msgspec.msgpack.encode(recording))
    return 0


def _tell(progress: Progress) -> None:
    print(_PROGRESS + msgspec.json.encode(progress).decode(), file=sys.stderr, flush=True)
