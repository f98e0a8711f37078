"""ik_llama.cpp, the fork for CPU speed, from the source that ik-llama-cpp-python carries on PyPI.

TIDEMILL_IK_SOURCE names a local copy of its source to be built instead.
"""

from __future__ import annotations

import os

from peers.ggml_tools import GgmlTools
from peers.llama_cpp import PROMPT
from peers.protocol import Model, Settings, Work, main


class IkLlamaCpp(GgmlTools):
    name = "ik_llama.cpp"
    package = "ik-llama-cpp-python"
    release = "0.1.5"
    source = "vendor/ik_llama.cpp"
    source_override = os.environ.get("TIDEMILL_IK_SOURCE")
    # The attention kernels for every pairing of KV types take most of an hour; f16 is used here.
    cmake = ("-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DGGML_IQK_FA_ALL_QUANTS=OFF")
    answers = "llama-cli"

    def variants(self, model: Model, work: Work) -> list[Settings]:
        # Its wide products repack weights on the fly; repacking them once, as the model is loaded,
        # helps some types and works. Flash attention is its default and always the faster.
        return [{"run-time repack": repack} for repack in ("off", "on", "on, huge pages")]

    def bench_options(self, settings: Settings) -> list[str]:
        on = settings["run-time repack"] != "off"
        huge = "huge pages" in settings["run-time repack"]
        return ["-fa", "1", "-rtr", str(int(on)), "-thp", str(int(huge)), "-mmp", str(int(not on))]

    def options(self, settings: Settings) -> list[str]:
        repack: str = settings["run-time repack"]
        return [
            "-fa", "on", *(["-rtr"] if repack != "off" else []),
            *(["-thp"] if "huge pages" in repack else []),
        ]  # fmt: skip

    def answer_options(self, work: Work, settings: Settings) -> list[str]:
        return [
            *self.options(settings), "-c", str(work.context), "-n", "2", "--temp", "0",
            "--no-display-prompt", "--no-warmup", "--ignore-eos", "-p", PROMPT,
        ]  # fmt: skip


if __name__ == "__main__":
    main(IkLlamaCpp())
