"""ONNX Runtime GenAI: its model builder makes an int4 model of the dequantised weights, once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peers.environments import environment, root
from peers.protocol import ApiPeer, Limits, Model, Settings, Work, main, tail


class OnnxRuntimeGenAI(ApiPeer):
    name = "onnxruntime-genai"
    wants = "folder"

    def __init__(self) -> None:
        super().__init__()
        self._model: Any = None

    def install(self) -> Path:
        return environment(
            "onnxruntime-genai",
            ["onnxruntime-genai==0.18.0", "onnx==1.23.2", "onnx-ir==1.1.0", "torch==2.13.0",
             "transformers==5.24.0", "numpy", "safetensors"],
        )  # fmt: skip

    def version(self) -> str:
        return f"onnxruntime-genai {version('onnxruntime-genai')}"

    def variants(self, model: Model, work: Work) -> list[Settings]:
        return [{"weights": "its own int4"}]

    def load(self, model: Model, threads: int, settings: Settings, limits: Limits) -> None:
        import onnxruntime_genai

        assert model.folder is not None
        # int4 in blocks of 32 with int8 activations: its own round-to-nearest, of the same size.
        folder = root() / "onnxruntime-genai" / "built" / f"{Path(model.folder).name}-int4"
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            done = subprocess.run(
                [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", model.folder,
                 "-o", str(partial), "-p", "int4", "-e", "cpu", "-c", str(partial / "cache"),
                 "--extra_options", "int4_accuracy_level=4", "int4_block_size=32"],
                capture_output=True, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                raise RuntimeError(f"its model builder failed: {tail(done.stderr)}")
            partial.rename(folder)
        config = folder / "genai_config.json"
        settings_of_file = json.loads(config.read_text())
        session = settings_of_file["model"]["decoder"]["session_options"]
        session["intra_op_num_threads"] = threads
        config.write_text(json.dumps(settings_of_file, indent=1))
        self._model = None
        self._model = onnxruntime_genai.Model(str(folder))

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Sequence[int]:
        import numpy as np
        import onnxruntime_genai

        ids = np.asarray(prompts, np.int32)
        length = ids.shape[1] + new_tokens
        params = onnxruntime_genai.GeneratorParams(self._model)
        params.set_search_options(
            max_length=length, min_length=length, batch_size=len(prompts), do_sample=False
        )
        generator = onnxruntime_genai.Generator(self._model, params)
        generator.append_tokens(ids)
        produced = 0
        while produced < new_tokens:
            generator.generate_next_token()
            produced += 1
        return [len(generator.get_sequence(i)) - ids.shape[1] for i in range(len(prompts))]


if __name__ == "__main__":
    main(OnnxRuntimeGenAI())
