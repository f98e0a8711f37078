"""Programs that stand for others in tests: a script that calls ``main`` of a module beside this."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_SCRIPT = """#!{python}
import sys
sys.path.append({tests!r})
from support.{module} import main
main(*{arguments!r})
"""


def write(path: Path, module: str, *arguments: str) -> Path:
    """The program; its own command line is in ``sys.argv``, as of any."""
    tests = str(Path(__file__).parents[1])
    path.write_text(
        _SCRIPT.format(python=sys.executable, tests=tests, module=module, arguments=arguments)
    )
    path.chmod(0o755)
    return path


class Handler(BaseHTTPRequestHandler):
    """Reads JSON, answers whole bodies, and logs nothing."""

    protocol_version = "HTTP/1.1"

    def asked(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve(host: str, port: int, handler: type[Handler]) -> None:
    ThreadingHTTPServer((host, port), handler).serve_forever()
