"""OpenVINO GenAI: reads the GGUF, paged attention with continuous batching."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peers.environments import environment
from peers.protocol import ApiPeer, Limits, Model, NotApplicable, Settings, Work, main

# What its GGUF reader knows.
TYPES = {"F16", "Q4_0", "Q4_1", "Q4_K_M", "Q6_K", "Q8_0"}
ARCHITECTURES = {"llama", "qwen2", "qwen3"}


class OpenVino(ApiPeer):
    name = "openvino"

    def __init__(self) -> None:
        super().__init__()
        self._pipe: Any = None

    def install(self) -> Path:
        return environment("openvino", ["openvino-genai==2026.4.1.0"])

    def version(self) -> str:
        return f"openvino-genai {version('openvino-genai')}"

    def variants(self, model: Model, work: Work) -> list[Settings]:
        if model.architecture not in ARCHITECTURES or model.file_type not in TYPES:
            raise NotApplicable(
                f"its GGUF reader does not take {model.architecture} in {model.file_type}"
            )
        # The KV cache is u8 by default; f16 is what the others have. Whichever is faster.
        if work.kind == "memory":
            return [{"attention": "paged", "KV": "u8"}]
        kinds: list[Settings] = [
            {"attention": "paged", "KV": "u8"}, {"attention": "paged", "KV": "f16"}
        ]  # fmt: skip
        if work.streams == 1:
            kinds.append({"attention": "stateful", "KV": "u8"})
        return kinds

    def load(self, model: Model, threads: int, settings: Settings, limits: Limits) -> None:
        import openvino_genai

        self._pipe = None
        options: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "KV_CACHE_PRECISION": settings["KV"],
        }
        if settings["attention"] == "paged":
            scheduler = openvino_genai.SchedulerConfig()
            scheduler.enable_prefix_caching = False
            scheduler.max_num_seqs = limits.streams
            scheduler.max_num_batched_tokens = max(512, limits.streams)
            # Blocks hold 32 tokens. Every sequence of these works is far below the full context,
            # but for the one that needs it all.
            tokens = max(limits.context, limits.streams * 512)
            scheduler.num_kv_blocks = -(-tokens // 32) + limits.streams
            options["scheduler_config"] = scheduler
            options["ATTENTION_BACKEND"] = "PA"
        else:
            options["ATTENTION_BACKEND"] = "SDPA"
        self._pipe = openvino_genai.LLMPipeline(model.path, "CPU", **options)

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Sequence[int]:
        import numpy as np
        import openvino
        import openvino_genai

        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = new_tokens
        config.ignore_eos = True
        config.do_sample = False
        ids = np.asarray(prompts, np.int64)
        inputs = openvino_genai.TokenizedInputs(
            openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids))
        )
        result = self._pipe.generate(inputs, config)
        return [len(tokens) for tokens in result.tokens]


if __name__ == "__main__":
    main(OpenVino())
