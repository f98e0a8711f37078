"""Hugging Face transformers' own server."""

from __future__ import annotations

import json
from typing import ClassVar

from tidemill.bench.engines.base import Engine, Launch


class Transformers(Engine):
    """It answers one request after the other, unless ``--engine-args --continuous-batching``; it
    has no limits of context and sequences to be told."""

    name = "transformers"
    program = "transformers"
    install = "`pip install 'transformers[serving]' torch accelerate`"
    takes = ("Hugging Face folder",)
    proof = "tested with the engine"
    # A token that there is not ends no answer; it knows no ignore_eos, and refuses unknown fields.
    full_length: ClassVar = {
        "generation_config": json.dumps({"eos_token_id": -1, "pad_token_id": 0, "do_sample": False})
    }

    def _version_arguments(self) -> tuple[str, ...]:
        return ("version",)

    def command(self, launch: Launch, port: int) -> list[str]:
        return [
            self.find(launch.binary), "serve", self.model_name(launch),
            "--host", "127.0.0.1", "--port", str(port), *launch.arguments,
        ]  # fmt: skip

    def model_name(self, launch: Launch) -> str:
        return str(launch.model)

    def environment(self, launch: Launch, port: int) -> dict[str, str]:
        return {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(launch.threads)}
