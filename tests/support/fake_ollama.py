"""A program that is called as ``ollama`` is: ``serve``, ``create`` and ``--version``.

``write(folder, how)`` makes it: ``how`` is "well", "cannot create" or "cannot load". It keeps what
was asked of it in ``folder / "told"``, a line each.
"""

from __future__ import annotations

import sys
from pathlib import Path

_PROGRAM = """#!{python}
import http.server, json, os, pathlib, sys

def tell(*words):
    with open({told!r}, "a") as file:
        print(*words, file=file)

command = sys.argv[1]
if command == "--version":
    print("Warning: could not connect to a running Ollama instance")
    print("Warning: client version is 0.21.2")
    sys.exit()
models = pathlib.Path(os.environ["OLLAMA_MODELS"])
if command == "create":
    name, flag, modelfile = sys.argv[2:]
    assert flag == "-f"
    tell("create", name, pathlib.Path(modelfile).read_text().strip(), os.environ["OLLAMA_HOST"])
    if {how!r} == "cannot create":
        sys.exit("Error: unsupported architecture")
    (models / "blobs").mkdir(parents=True)
    (models / "blobs/sha256-1").write_text("weights")
    sys.exit()

tell("serve", os.environ["OLLAMA_CONTEXT_LENGTH"], os.environ["OLLAMA_NUM_PARALLEL"])

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(200 if self.path == "/" else 404, "text/plain", b"Ollama is running")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tell(self.path, json.dumps(asked))
        if {how!r} == "cannot load":
            self.answer(500, "application/json", b'{{"error": "not enough memory"}}')
        else:
            self.answer(200, "application/json", b"{{}}")

    def log_message(self, *_):
        pass

host, port = os.environ["OLLAMA_HOST"].split(":")
http.server.ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
"""


def write(folder: Path, how: str = "well") -> Path:
    path = folder / "ollama"
    told = str(folder / "told")
    path.write_text(_PROGRAM.format(python=sys.executable, told=told, how=how))
    path.chmod(0o755)
    return path
