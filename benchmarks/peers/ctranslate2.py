"""CTranslate2: converts the dequantised weights to its own int8 format, once per model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peers.environments import environment, root
from peers.protocol import ApiPeer, Limits, Model, Settings, Work, main


class CTranslate2(ApiPeer):
    name = "ctranslate2"
    wants = "folder"

    def __init__(self) -> None:
        super().__init__()
        self._generator: Any = None
        self._vocabulary: list[str] = []

    def install(self) -> Path:
        return environment(
            "ctranslate2",
            ["ctranslate2==4.8.5", "torch==2.13.0", "transformers==4.57.6", "numpy", "safetensors"],
        )

    def version(self) -> str:
        return f"ctranslate2 {version('ctranslate2')}"

    def variants(self, model: Model, work: Work) -> list[Settings]:
        return [{"weights": "int8"}]

    def load(self, model: Model, threads: int, settings: Settings, limits: Limits) -> None:
        import ctranslate2

        assert model.folder is not None
        folder = root() / "ctranslate2" / "converted" / f"{Path(model.folder).name}-int8"
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.parent.mkdir(parents=True, exist_ok=True)
            ctranslate2.converters.TransformersConverter(model.folder).convert(
                str(partial), quantization="int8"
            )
            partial.rename(folder)
        self._vocabulary = json.loads((folder / "vocabulary.json").read_text())
        self._generator = None
        self._generator = ctranslate2.Generator(
            str(folder), device="cpu", compute_type=settings["weights"],
            intra_threads=threads, inter_threads=1,
        )  # fmt: skip

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Sequence[int]:
        results = self._generator.generate_batch(
            [[self._vocabulary[i] for i in ids] for ids in prompts],
            max_length=new_tokens, min_length=new_tokens, beam_size=1, sampling_topk=1,
            include_prompt_in_result=False, max_batch_size=0,
        )  # fmt: skip
        return [len(result.sequences_ids[0]) for result in results]


if __name__ == "__main__":
    main(CTranslate2())
