"""vLLM."""

from __future__ import annotations

import os

from tidemill.bench.engines.base import MODEL_NAME, Engine, Launch


class Vllm(Engine):
    name = "vllm"
    program = "vllm"
    install = "`pip install vllm`"
    takes = ("Hugging Face folder",)

    def command(self, launch: Launch, port: int) -> list[str]:
        return [
            self.find(launch.binary), "serve", str(launch.model),
            "--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(port),
            "--max-model-len", str(launch.context), "--max-num-seqs", str(launch.sequences),
            *launch.arguments,
        ]  # fmt: skip

    def environment(self, launch: Launch, port: int) -> dict[str, str]:
        # Without GPU it binds a thread to each of these cores.
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        bound = ",".join(map(str, cores[: launch.threads]))
        return {
            "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(launch.threads), "VLLM_CPU_OMP_THREADS_BIND": bound or "auto",
        }  # fmt: skip
