"""llama.cpp, built for this machine from the source that llama-cpp-python carries on PyPI."""

from __future__ import annotations

import os

from peers.ggml_tools import GgmlTools
from peers.protocol import Model, Settings, Work, main


class LlamaCpp(GgmlTools):
    name = "llama.cpp"
    package = "llama-cpp-python"
    release = "0.3.36"
    source = "vendor/llama.cpp"
    source_override = os.environ.get("TIDEMILL_LLAMA_CPP_SOURCE")
    cmake = (
        "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
    )  # fmt: skip
    answers = "llama-completion"

    @property
    def targets(self) -> tuple[str, ...]:
        return (*super().targets, "llama-server")

    def variants(self, model: Model, work: Work) -> list[Settings]:
        # Weights are repacked for the machine as they are loaded (the default), the KV cache is
        # f16 (the default); what pays is not the same for every work and model.
        if work.kind != "speed":
            return [{"flash attention": "on"}, {"flash attention": "off"}]
        ubatches = (512, 128) if "prefill" in work.figures and work.prompt <= 1024 else (512,)
        return [
            {"flash attention": flash, "ubatch": ubatch}
            for flash in ("on", "off")
            for ubatch in ubatches
        ]

    def options(self, settings: Settings) -> list[str]:
        return ["-fa", str(settings["flash attention"]), "-b", "2048",
                "-ub", str(settings.get("ubatch", 512))]  # fmt: skip

    def answer_options(self, work: Work, settings: Settings) -> list[str]:
        return [
            "-fa", str(settings["flash attention"]), "-c", str(work.context), "-n", "2",
            "--temp", "0", "-no-cnv", "--no-display-prompt", "--no-warmup", "--ignore-eos",
            "-p", PROMPT,
        ]  # fmt: skip


# As `tidemill run` is asked in the same comparison.
PROMPT = "The capital of France is"

if __name__ == "__main__":
    main(LlamaCpp())
