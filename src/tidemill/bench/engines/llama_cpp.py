"""llama.cpp's own server."""

from __future__ import annotations

from tidemill.bench.engines.base import MODEL_NAME, Engine, Launch


class LlamaCpp(Engine):
    name = "llama.cpp"
    program = "llama-server"
    install = (
        "`brew install llama.cpp`, `winget install llama.cpp`, or a build from "
        "https://github.com/ggml-org/llama.cpp/releases"
    )
    takes = ("GGUF file",)
    proof = "tested with the engine"

    _version = r"version: *(.+)"

    def command(self, launch: Launch, port: int) -> list[str]:
        # Its context is that of all sequences together.
        return [
            self.find(launch.binary), "-m", str(launch.model), "--alias", MODEL_NAME,
            "--host", "127.0.0.1", "--port", str(port), "-t", str(launch.threads),
            "-np", str(launch.sequences), "-c", str(launch.sequences * launch.context),
            "--jinja", *launch.arguments,
        ]  # fmt: skip
