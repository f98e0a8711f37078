"""The measure of the engine's own time: what it counts, on a runner that is given no memory."""

from __future__ import annotations

import pytest

import engine_overhead as overhead
from tidemill import SamplingParams


@pytest.mark.parametrize("case", sorted(overhead.CASES))
def test_every_case_has_a_time(case: str) -> None:
    params = overhead.CASES[case]
    assert overhead.seconds_between_steps(300, 20, 2, 3, 8, **params) > 0


def test_only_time_between_decodes_of_all_sequences_counts() -> None:
    llm = overhead.IdleLLM(300, 40, 3, 8)
    prompts = [{"prompt_token_ids": list(range(20))} for _ in range(3)]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=6, temperature=0.0))
    assert [len(output.outputs[0].token_ids) for output in outputs] == [6, 6, 6]
    assert len(llm.runner.gaps) == 4  # one step has the prompts, then there are five decodes
