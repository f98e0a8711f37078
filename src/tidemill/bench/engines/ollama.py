"""Ollama: a server that is told of the model once it runs, and loads it when it is first asked."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tidemill.bench.engines.base import MODEL_NAME, Engine, Launch, TargetError

if TYPE_CHECKING:
    from tidemill.bench.engines.process import EngineProcess


class Ollama(Engine):
    """Its models are in a folder of their own, deleted with the bench's other files: the model is
    copied there once, which takes its size on the disk that temporary files are on."""

    name = "ollama"
    program = "ollama"
    install = "`curl -fsSL https://ollama.com/install.sh | sh`, or https://ollama.com/download"
    takes = ("GGUF file", "Hugging Face folder")
    takes_threads = False
    health = "/"
    full_length: ClassVar = {}

    _version = r"version is (\S+)"

    def command(self, launch: Launch, port: int) -> list[str]:
        return [self.find(launch.binary), "serve", *launch.arguments]

    def environment(self, launch: Launch, port: int) -> dict[str, str]:
        return {
            "OLLAMA_HOST": f"127.0.0.1:{port}",
            "OLLAMA_MODELS": str(_models(launch)),
            "OLLAMA_CONTEXT_LENGTH": str(launch.context),
            "OLLAMA_NUM_PARALLEL": str(launch.sequences),
            "OLLAMA_KEEP_ALIVE": "-1",
            "OLLAMA_NO_CLOUD": "1",
        }

    def prepare(self, process: EngineProcess, launch: Launch, seconds: float) -> None:
        """Make the model known, if it is not from an earlier start, and have it loaded."""
        modelfile = launch.folder / "Modelfile"
        if not modelfile.exists():
            modelfile.write_text(f"FROM {launch.model.absolute()}\n", "utf-8")
            try:
                self._create(process, launch, modelfile, seconds)
            except TargetError:
                modelfile.unlink()
                raise
        # An empty request loads the model.
        connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=seconds)
        try:
            connection.request("POST", "/api/generate", json.dumps({"model": MODEL_NAME}))
            answer = connection.getresponse()
            said = answer.read(4096)
        except (OSError, http.client.HTTPException) as error:
            raise TargetError(
                f"ollama does not load the model: {error}: {process.last_words()}"
            ) from None
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise TargetError(f"ollama does not load the model: {said.decode(errors='replace')}")

    def _create(
        self, process: EngineProcess, launch: Launch, modelfile: Path, seconds: float
    ) -> None:
        try:
            done = subprocess.run(
                [self.find(launch.binary), "create", MODEL_NAME, "-f", str(modelfile)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", timeout=seconds, check=False,
                env=os.environ | self.environment(launch, process.port),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise TargetError(f"`ollama create` did not end within {seconds:g} s") from None
        if done.returncode != 0:
            raise TargetError(f"`ollama create` failed: {done.stdout.strip()[-1000:]}")

    def files(self, launch: Launch) -> list[Path]:
        return [path for path in (_models(launch) / "blobs").glob("*") if path.is_file()]


def _models(launch: Launch) -> Path:
    return launch.folder / "models"
