"""OpenVINO GenAI, behind a thin server of ours: its package brings none along."""

from __future__ import annotations

from pathlib import Path

from tidemill.bench.engines.base import MODEL_NAME, Launch, Module

_SERVER = Path(__file__).parent / "standalone/openvino_server.py"


class OpenVino(Module):
    """It reads GGUF files of some architectures and types only, and says so itself."""

    name = "openvino"
    package = "openvino-genai"
    install = "`pip install openvino-genai`"
    takes = ("GGUF file", "OpenVINO folder")
    proof = "tested with the engine"

    def command(self, launch: Launch, port: int) -> list[str]:
        return [
            self.find(launch.binary), str(_SERVER), str(launch.model), "--name", MODEL_NAME,
            "--port", str(port), "--threads", str(launch.threads),
            "--context", str(launch.context), "--sequences", str(launch.sequences),
            *launch.arguments,
        ]  # fmt: skip
