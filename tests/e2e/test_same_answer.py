"""Greedy answers of a real model do not depend on caching, chunking or company."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidemill import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=0)
SYSTEM = "You are a careful assistant who answers briefly. " * 12
QUESTIONS = ["Name a river in Egypt.", "What is two plus two?", "Who wrote Hamlet?"]


def answer(llm: LLM, prompts: list[str]) -> list[tuple[tuple[int, ...], float | None]]:
    """Ids and the exact sum of their logprobs: equal bits, not only equal choices."""
    return [
        (tuple(o.outputs[0].token_ids), o.outputs[0].cumulative_logprob)
        for o in llm.generate(prompts, GREEDY)
    ]


@pytest.fixture(scope="module")
def model(real_model: Callable[[str], Path]) -> str:
    return str(real_model("smollm2"))


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    return [SYSTEM + question for question in QUESTIONS]


@pytest.fixture(scope="module")
def cold(model: str, prompts: list[str]) -> list[tuple[tuple[int, ...], float | None]]:
    """Each prompt alone, nothing cached."""
    with LLM(model, max_context=512, prefix_caching=False) as llm:
        return [answer(llm, [prompt])[0] for prompt in prompts]


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    with LLM(model, max_context=512, max_sequences=17) as llm:
        yield llm


def test_warm_and_partial_hits(llm: LLM, prompts: list[str], cold: object) -> None:
    assert answer(llm, prompts[:1]) + answer(llm, prompts[1:2]) + answer(llm, prompts[2:]) == cold
    again = llm.generate(prompts, GREEDY)
    assert all(output.num_cached_tokens > 64 for output in again)
    assert answer(llm, prompts) == cold


def test_with_sixteen_others(llm: LLM, prompts: list[str], cold: object) -> None:
    others = [f"{n} is a number that" for n in range(16)]
    mixed = [answer(llm, [*others[:8], prompt, *others[8:]])[8] for prompt in prompts]
    assert mixed == cold


@pytest.mark.parametrize("budget", [7, 16, 33, 100])
def test_chunked(model: str, prompts: list[str], cold: object, budget: int) -> None:
    with LLM(model, max_context=512, max_batch_tokens=budget, max_sequences=4) as llm:
        assert answer(llm, prompts) == cold


def test_after_eviction(model: str, prompts: list[str], cold: object) -> None:
    """A KV cache of one context: each prompt pushes the others out, or preempts them."""
    with LLM(model, max_context=256, kv_memory=12 << 20, max_sequences=4) as llm:
        for _ in range(2):
            assert answer(llm, prompts) == cold
        assert answer(llm, prompts[::-1]) == cold[::-1]  # type: ignore[index]
