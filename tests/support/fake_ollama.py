"""A program that is called as ``ollama`` is: ``serve``, ``create`` and ``--version``.

``write(folder, how)`` makes it: ``how`` is "well", "cannot create" or "cannot load". It keeps what
was asked of it in ``folder / "told"``, a line each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from support import fake_programs


def write(folder: Path, how: str = "well") -> Path:
    return fake_programs.write(folder / "ollama", "fake_ollama", str(folder / "told"), how)


def main(told: str, how: str) -> None:
    def tell(*words: str) -> None:
        with open(told, "a") as file:
            print(*words, file=file)

    match sys.argv[1:]:
        case ["--version"]:
            print("Warning: could not connect to a running Ollama instance")
            print("Warning: client version is 0.21.2")
        case ["create", name, "-f", modelfile]:
            tell("create", name, Path(modelfile).read_text().strip(), os.environ["OLLAMA_HOST"])
            if how == "cannot create":
                sys.exit("Error: unsupported architecture")
            blobs = Path(os.environ["OLLAMA_MODELS"]) / "blobs"
            blobs.mkdir(parents=True)
            (blobs / "sha256-1").write_text("weights")
        case ["serve", *_]:
            tell("serve", os.environ["OLLAMA_CONTEXT_LENGTH"], os.environ["OLLAMA_NUM_PARALLEL"])
            serve(tell, can_load=how != "cannot load")
        case other:
            sys.exit(f"Error: unknown command {other}")


def serve(tell: Callable[..., None], *, can_load: bool) -> None:
    class Handler(fake_programs.Handler):
        def do_GET(self) -> None:
            self.answer(200 if self.path == "/" else 404, "text/plain", b"Ollama is running")

        def do_POST(self) -> None:
            tell(self.path, json.dumps(self.asked()))
            if can_load:
                self.answer(200, "application/json", b"{}")
            else:
                self.answer(500, "application/json", b'{"error": "not enough memory"}')

    host, port = os.environ["OLLAMA_HOST"].split(":")
    fake_programs.serve(host, int(port), Handler)
