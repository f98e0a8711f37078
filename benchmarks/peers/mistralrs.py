"""mistral.rs: reads the GGUF; takes text, not token ids, so its prompts are made of words."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peers.environments import environment
from peers.protocol import ApiPeer, Limits, Model, Settings, main


class MistralRs(ApiPeer):
    name = "mistralrs"

    def __init__(self) -> None:
        super().__init__()
        self._runner: Any = None
        self._words: list[str] = []

    def install(self) -> Path:
        return environment("mistralrs", ["mistralrs==0.9.5"])

    def version(self) -> str:
        return f"mistralrs {version('mistralrs')}"

    def load(self, model: Model, threads: int, settings: Settings, limits: Limits) -> None:
        import os

        os.environ["RAYON_NUM_THREADS"] = str(threads)
        from mistralrs import Runner, Which

        path = Path(model.path)
        self._words = model.text.split()
        self._runner = None
        self._runner = Runner(
            which=Which.GGUF(
                quantized_model_id=str(path.parent), quantized_filename=path.name
            ),
            max_seqs=limits.streams, prefix_cache_n=0,
        )  # fmt: skip

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Sequence[int]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda ids: self._one(ids, new_tokens), prompts))

    def _one(self, ids: list[int], new_tokens: int) -> int:
        from mistralrs import CompletionRequest

        # Each of these words is one token with the space before it.
        words = [self._words[i % len(self._words)] for i in ids]
        usage = self._runner.send_completion_request(
            CompletionRequest(
                prompt=" " + " ".join(words), model="default", max_tokens=new_tokens,
                ignore_eos=True, top_k=1, temperature=0.0,
            )
        ).usage  # fmt: skip
        if abs(usage.prompt_tokens - len(ids)) > 2:
            raise RuntimeError(f"{len(ids)} words became {usage.prompt_tokens} tokens")
        return int(usage.completion_tokens)


if __name__ == "__main__":
    main(MistralRs())
