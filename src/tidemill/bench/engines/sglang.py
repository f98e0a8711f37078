"""SGLang."""

from __future__ import annotations

from tidemill.bench.engines.base import MODEL_NAME, Launch, Module


class Sglang(Module):
    name = "sglang"
    package = "sglang"
    install = "`uv pip install --prerelease=allow sglang`"
    takes = ("Hugging Face folder",)

    def command(self, launch: Launch, port: int) -> list[str]:
        return [
            self.find(launch.binary), "-m", "sglang.launch_server",
            "--model-path", str(launch.model), "--served-model-name", MODEL_NAME,
            "--host", "127.0.0.1", "--port", str(port), "--context-length", str(launch.context),
            "--max-running-requests", str(launch.sequences), *launch.arguments,
        ]  # fmt: skip

    def environment(self, launch: Launch, port: int) -> dict[str, str]:
        return {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(launch.threads)}
