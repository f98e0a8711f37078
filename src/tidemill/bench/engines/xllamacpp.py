"""llama.cpp's server in the xllamacpp wheel, for who has no ``llama-server``."""

from __future__ import annotations

from pathlib import Path

from tidemill.bench.engines.base import MODEL_NAME, Launch, Module

_SERVER = Path(__file__).parent / "standalone/xllamacpp_server.py"


class Xllamacpp(Module):
    """Its wheels for Linux and Windows without GPU do without newer instructions, as its README
    says: llama.cpp itself is faster there."""

    name = "xllamacpp"
    package = "xllamacpp"
    install = "`pip install xllamacpp`"
    takes = ("GGUF file",)
    proof = "tested with the engine"

    def command(self, launch: Launch, port: int) -> list[str]:
        return [
            self.find(launch.binary), str(_SERVER), str(launch.model), "--name", MODEL_NAME,
            "--port", str(port), "--threads", str(launch.threads),
            "--context", str(launch.sequences * launch.context),
            "--sequences", str(launch.sequences), *launch.arguments,
        ]  # fmt: skip
