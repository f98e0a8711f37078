"""Hugging Face transformers on PyTorch's CPU kernels, on the dequantised weights."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peers.environments import environment
from peers.protocol import ApiPeer, Limits, Model, Settings, Work, main
from peers.vllm import dtype


class Transformers(ApiPeer):
    """A loop of forward passes over a cache, which is what its ``generate`` is at its quickest."""

    name = "transformers"
    wants = "folder"

    def __init__(self) -> None:
        super().__init__()
        self._model: Any = None

    def install(self) -> Path:
        return environment(
            "transformers", ["torch==2.13.0", "transformers==5.24.0", "numpy", "safetensors"]
        )

    def version(self) -> str:
        return f"transformers {version('transformers')}, torch {version('torch')}"

    def variants(self, model: Model, work: Work) -> list[Settings]:
        return [{"dtype": dtype(), "attention": attention} for attention in ("sdpa", "eager")]

    def load(self, model: Model, threads: int, settings: Settings, limits: Limits) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self._model = None
        self._model = AutoModelForCausalLM.from_pretrained(
            model.folder, dtype=getattr(torch, settings["dtype"]),
            attn_implementation=settings["attention"],
        )  # fmt: skip
        self._model.eval()

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Sequence[int]:
        import torch
        from transformers import DynamicCache

        ids = torch.tensor(prompts)
        cache = DynamicCache(config=self._model.config)
        produced = 0
        with torch.inference_mode():
            while produced < new_tokens:
                logits = self._model(
                    ids, past_key_values=cache, use_cache=True, logits_to_keep=1
                ).logits
                ids = logits[:, -1].argmax(-1, keepdim=True)
                produced += 1
        return [produced] * len(ids)


if __name__ == "__main__":
    main(Transformers())
