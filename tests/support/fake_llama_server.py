"""A program that is called as ``llama-server`` is, answers as it does, and keeps what it was told.

``write(folder, how)`` makes it: ``how`` is "well", "dies", "hangs" (is never ready), "maps its
model" or "has a stubborn child".
"""

from __future__ import annotations

import sys
from pathlib import Path

_PROGRAM = """#!{python}
import http.server, json, sys, time
if "--version" in sys.argv:
    print("version: 4711 (abcdef)", file=sys.stderr)
    sys.exit()
with open({told!r}, "w") as file:
    json.dump(sys.argv[1:], file)
if {how!r} == "dies":
    print("error: the file is no model")
    sys.exit(1)
if {how!r} == "maps its model":
    import mmap
    with open(sys.argv[sys.argv.index("-m") + 1], "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
if {how!r} == "has a stubborn child":
    import signal, subprocess
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which its child inherits
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
ready = time.monotonic() + 0.1

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        loading = time.monotonic() < ready or {how!r} == "hangs"
        self.answer(503 if loading else 200, "application/json", b"{{}}")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        events = [{{"choices": [{{"delta": {{"content": "a "}}}}]}}] * asked["max_tokens"]
        usage = {{"prompt_tokens": 3, "completion_tokens": asked["max_tokens"]}}
        events.append({{"choices": [], "usage": usage}})
        body = b"".join(b"data: " + json.dumps(e).encode() + b"\\n\\n" for e in events)
        self.answer(200, "text/event-stream", body + b"data: [DONE]\\n\\n")

    def log_message(self, *_):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def write(folder: Path, how: str = "well") -> Path:
    """The program; what it was told is then in ``folder / "told.json"``."""
    path = folder / "llama-server"
    told = str(folder / "told.json")
    path.write_text(_PROGRAM.format(python=sys.executable, told=told, how=how))
    path.chmod(0o755)
    return path
