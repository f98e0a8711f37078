"""Hugging Face's Text Generation Inference, which is in maintenance mode."""

from __future__ import annotations

from typing import ClassVar

from tidemill.bench.engines.base import Engine, Launch
from tidemill.bench.processes import free_port

_MOST_REQUESTS = 128
"""It refuses what is beyond that by default; here they shall wait, as with the others."""


class Tgi(Engine):
    name = "tgi"
    program = "text-generation-launcher"
    install = (
        "it comes as the container ghcr.io/huggingface/text-generation-inference: start that by "
        "hand and give its URL, or build it from "
        "https://github.com/huggingface/text-generation-inference"
    )
    takes = ("Hugging Face folder",)
    # Its chat API has no field for it, and leaves unknown ones unread.
    full_length: ClassVar = {}

    def command(self, launch: Launch, port: int) -> list[str]:
        return [
            self.find(launch.binary), "--model-id", str(launch.model),
            "--hostname", "127.0.0.1", "--port", str(port),
            "--master-port", str(free_port()), "--shard-uds-path", str(launch.folder / "shard"),
            "--max-total-tokens", str(launch.context),
            "--max-concurrent-requests", str(max(_MOST_REQUESTS, 4 * launch.sequences)),
            "--usage-stats", "off", *launch.arguments,
        ]  # fmt: skip

    def environment(self, launch: Launch, port: int) -> dict[str, str]:
        return {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(launch.threads)}
