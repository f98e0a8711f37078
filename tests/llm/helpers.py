"""What tests of ``LLM`` ask, and how they read the answers."""

from __future__ import annotations

from tidemill import SamplingParams
from tidemill.llm import RequestOutput

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = ["Hello", "The sky is", "One two three four five six seven eight nine ten", "x"]


def ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]
