"""A program that is called as ``llama-server`` is, answers as it does, and keeps what it was told.

``write(folder, how)`` makes it: ``how`` is "well", "dies", "hangs" (is never ready), "maps its
model", "has a stubborn child" or "prints without end" (once it is ready).
"""

from __future__ import annotations

import itertools
import json
import mmap
import signal
import subprocess
import sys
import time
from pathlib import Path

from support import fake_programs


def write(folder: Path, how: str = "well") -> Path:
    """The program; what it was told is then in ``folder / "told.json"``."""
    told = str(folder / "told.json")
    return fake_programs.write(folder / "llama-server", "fake_llama_server", told, how)


def main(told: str, how: str) -> None:
    if "--version" in sys.argv:
        print("version: 4711 (abcdef)", file=sys.stderr)
        return
    Path(told).write_text(json.dumps(sys.argv[1:]))
    if how == "dies":
        print("error: the file is no model")
        sys.exit(1)
    held: list[object] = []  # for as long as it runs
    if how == "maps its model":
        with open(option("-m"), "rb") as file:
            held.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    if how == "has a stubborn child":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which its child inherits
        held.append(subprocess.Popen(["sleep", "60"], start_new_session=True))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print("here I am", flush=True)
    ready = time.monotonic() + 0.1

    class Handler(fake_programs.Handler):
        def do_GET(self) -> None:
            loading = time.monotonic() < ready or how == "hangs"
            self.answer(503 if loading else 200, "application/json", b"{}")
            if not loading and how == "prints without end":
                for i in itertools.count():
                    print("line", i)

        def do_POST(self) -> None:
            n = self.asked()["max_tokens"]
            usage = {"prompt_tokens": 3, "completion_tokens": n}
            events = [
                *[{"choices": [{"delta": {"content": "a "}}]}] * n,
                {"choices": [], "usage": usage},
            ]
            body = b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events)
            self.answer(200, "text/event-stream", body + b"data: [DONE]\n\n")

    fake_programs.serve("127.0.0.1", int(option("--port")), Handler)


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]
