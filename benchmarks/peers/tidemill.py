"""Tidemill itself, through its public Python API and, for the start, its command.

Without speculation, as the peers: random prompts have repetitive answers, which it would guess.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from peers.llama_cpp import PROMPT
from peers.protocol import (
    ApiPeer,
    Figures,
    Limits,
    Model,
    Settings,
    Work,
    main,
    process_figures,
)


class Tidemill(ApiPeer):
    name = "tidemill"

    def __init__(self) -> None:
        super().__init__()
        self._llm: Any = None
        self._first: float | None = None

    def version(self) -> str:
        import tidemill
        from tidemill import _native

        return f"{tidemill.__version__}, {_native.isa_name()} kernels"

    def load(self, model: Model, threads: int, settings: Settings, limits: Limits) -> None:
        from tidemill import LLM

        if self._llm is not None:
            self._llm.close()
        self._llm = LLM(
            model.path, threads=threads, max_context=limits.context,
            max_sequences=limits.streams, prefix_caching=False, speculative="off",
        )  # fmt: skip

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Sequence[int]:
        from tidemill import SamplingParams

        outputs = self._llm.generate(
            [{"prompt_token_ids": ids} for ids in prompts],
            SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True),
        )
        for output in outputs:
            if output.error is not None:
                raise RuntimeError(output.error)
        self._first = outputs[0].metrics.time_to_first_token
        return [len(output.outputs[0].token_ids) for output in outputs]

    def first_token_seconds(self) -> float | None:
        return self._first

    def measure(
        self, model: Model, work: Work, threads: int, settings: Settings, limits: Limits
    ) -> Figures:
        if work.kind == "start":
            command = [
                sys.executable, "-m", "tidemill", "run", model.path, PROMPT,
                "--raw",
                "--max-tokens", "2", "--temperature", "0", "--threads", str(threads),
                "--context", str(work.context),
            ]  # fmt: skip
            # As installed: without this, every start would compile the package anew.
            env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
            return process_figures(work, command, {**env, "NO_COLOR": "1"})
        return super().measure(model, work, threads, settings, limits)


if __name__ == "__main__":
    main(Tidemill())
