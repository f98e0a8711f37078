"""A peer that measures nothing: run as a process by the tests of the harness.

    python fake_peer.py BEHAVIOUR STATE

STATE is a file that counts processes, so that behaviour can depend on it and tests can see it.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

behaviour, state = sys.argv[1], Path(sys.argv[2])
with state.open("a") as log:
    log.write(f"start {os.getpid()}\n")
    if behaviour == "hangs":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        log.write(f"child {child.pid}\n")


def answer(request):
    if request["op"] == "hello":
        slow = behaviour in ("slow start", "hangs")
        return {"name": "fake", "version": "1", "timed": "nothing", "wants": "gguf",
                "slow_start": slow}  # fmt: skip
    if request["op"] == "variants":
        if behaviour == "refuses":
            raise ValueError("does not take such models")
        return [{"speed": s} for s in (2, 9, 4)] if behaviour == "settings" else [{}]
    with state.open("a") as log:
        log.write(f"measure {request['work']['name']}\n")
    if behaviour == "hangs":
        time.sleep(600)
    if behaviour == "dies":
        print("out of memory, says the engine", file=sys.stderr, flush=True)
        os._exit(7)
    if behaviour == "breaks on decode" and "decode" in request["work"]["figures"]:
        raise ValueError("no decoding today")
    if behaviour == "zero":
        return dict.fromkeys(request["work"]["figures"], 0.0)
    speed = request["settings"].get("speed", 10)
    return dict.fromkeys(request["work"]["figures"], speed * 10.0)


for line in sys.stdin:
    try:
        reply = {"ok": answer(json.loads(line))}
    except ValueError as error:
        reply = {"error": str(error)}
    if behaviour == "babbles":
        print("loading weights ...", flush=True)
    print(json.dumps(reply), flush=True)
