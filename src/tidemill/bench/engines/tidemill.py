"""Tidemill, the one that this bench comes with; it gets no favours."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tidemill import __version__
from tidemill.bench.engines.base import MODEL_NAME, Engine, Launch, TargetError


class Tidemill(Engine):
    name = "tidemill"
    program = "tidemill"
    install = "`pip install tidemill`"
    takes = ("GGUF file", "Hugging Face folder")
    proof = "tested with the engine"
    default_model = "smollm2"
    tenants = True

    def find(self, binary: str | None) -> str:
        if binary is not None:
            raise TargetError("--binary is for other engines; Tidemill is this one")
        return sys.executable

    def version(self, binary: str | None) -> str:
        self.find(binary)
        return __version__

    def command(self, launch: Launch, port: int) -> list[str]:
        command = [
            self.find(launch.binary), "-m", "tidemill", "serve", str(launch.model),
            "--name", MODEL_NAME, "--port", str(port), "--threads", str(launch.threads),
            "--max-sequences", str(launch.sequences), "--context", str(launch.context),
            "--speculative", "off", "--log-level", "warning",
        ]  # fmt: skip
        if launch.keys:
            command += ["--api-key-file", str(_key_file(launch.keys, launch.folder))]
        return [*command, *launch.arguments]

    def files(self, launch: Launch) -> list[Path]:
        from tidemill.store.packed import is_source_in, list_packed

        return [file.path for file in list_packed() if is_source_in(file, launch.model)]


def _key_file(keys: Mapping[str, str], folder: Path) -> Path:
    lines = []
    for tenant, key in keys.items():
        name = msgspec.json.encode(tenant).decode()
        digest = hashlib.sha256(key.encode()).hexdigest()
        lines += ["[[tenants]]", f"name = {name}", f'sha256 = ["{digest}"]', ""]
    path = folder / "keys.toml"
    path.write_text("\n".join(lines), "utf-8")
    return path
