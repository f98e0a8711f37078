"""ik_llama.cpp, the fork for CPU speed, from the source that ik-llama-cpp-python carries on PyPI.

TIDEMILL_IK_SOURCE names a local copy of its source to be built instead.
"""

from __future__ import annotations

import os
from pathlib import Path

from peers.ggml_tools import GgmlTools
from peers.llama_cpp import PROMPT
from peers.protocol import Model, Settings, Work, main

# Its build runs a script that makes common/build-info.cpp of build-info.cpp.in, which declares four
# constants; the package has the template and what finds their values, but not the script.
BUILD_INFO = """\
set(common ${CMAKE_CURRENT_LIST_DIR}/..)
include(${common}/../cmake/build-info.cmake)
configure_file(${common}/build-info.cpp.in ${common}/build-info.cpp @ONLY)
"""


class IkLlamaCpp(GgmlTools):
    name = "ik_llama.cpp"
    package = "ik-llama-cpp-python"
    release = "0.1.5"
    source = "vendor/ik_llama.cpp"
    source_override = os.environ.get("TIDEMILL_IK_SOURCE")
    # The attention kernels for every pairing of KV types take most of an hour; f16 is used here.
    cmake = ("-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DGGML_IQK_FA_ALL_QUANTS=OFF")
    answers = "llama-cli"

    def complete(self, source: Path) -> None:
        script = source / "common" / "cmake" / "build-info-gen-cpp.cmake"
        script.parent.mkdir(exist_ok=True)
        script.write_text(BUILD_INFO)

    def variants(self, model: Model, work: Work) -> list[Settings]:
        # Its wide products repack weights on the fly; repacking them once, as the model is loaded,
        # helps some types and works. Its flash attention is the faster wherever it works, which for
        # several sequences it does not in this release (an assertion fails).
        if work.streams > 1:
            kinds = [("on", "on"), ("off", "off"), ("off", "on")]
        elif work.kind == "speed" and work.prompt <= 1024:
            kinds = [("on", "off"), ("on", "on"), ("on", "on, huge pages"), ("off", "on")]
        else:
            kinds = [("on", "off"), ("on", "on")]
        return [{"flash attention": flash, "run-time repack": repack} for flash, repack in kinds]

    def bench_options(self, settings: Settings) -> list[str]:
        on = settings["run-time repack"] != "off"
        huge = "huge pages" in settings["run-time repack"]
        flash = settings["flash attention"] == "on"
        return ["-fa", str(int(flash)), "-rtr", str(int(on)), "-thp", str(int(huge)),
                "-mmp", str(int(not on))]  # fmt: skip

    def options(self, settings: Settings) -> list[str]:
        repack: str = settings["run-time repack"]
        return [
            "-fa", str(settings["flash attention"]), *(["-rtr"] if repack != "off" else []),
            *(["-thp"] if "huge pages" in repack else []),
        ]  # fmt: skip

    def answer_options(self, work: Work, settings: Settings) -> list[str]:
        return [
            *self.options(settings), "-c", str(work.context), "-n", "2", "--temp", "0",
            "--no-display-prompt", "--no-warmup", "--ignore-eos", "-p", PROMPT,
        ]  # fmt: skip


if __name__ == "__main__":
    main(IkLlamaCpp())
