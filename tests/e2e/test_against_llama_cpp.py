"""The two real models against llama.cpp on the same files (see oracles/make_llama_cpp.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemill import LLM, SamplingParams
from tidemill.llm.perplexity import model_perplexity
from tidemill.text import load_tokenizer
from tidemill.weights import open_checkpoint

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODELS = ["smollm2", "gemma3"]
NEAR_TIE = 0.05


def recorded(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FIXTURES / "llama_cpp" / f"{name}.json").read_text())
    return data


@pytest.mark.parametrize("name", MODELS)
def test_prompts_have_the_same_ids(name: str, real_model: Callable[[str], Path]) -> None:
    tokenizer = load_tokenizer(open_checkpoint(real_model(name)))
    for case in recorded(name)["greedy"]:
        assert tokenizer.encode(case["prompt"]) == case["prompt_ids"]


@pytest.mark.parametrize("name", MODELS)
def test_greedy_text_is_the_same(name: str, real_model: Callable[[str], Path]) -> None:
    """64 tokens on 20 prompts: at least 18 equal, the others parting where two tokens tie."""
    cases = recorded(name)["greedy"]
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, logprobs=2)
    with LLM(str(real_model(name)), max_context=256) as llm:
        outputs = llm.generate([{"prompt_token_ids": case["prompt_ids"]} for case in cases], params)
    different = []
    for case, output in zip(cases, outputs, strict=True):
        ours = output.outputs[0]
        if list(ours.token_ids) == case["ids"]:
            continue
        at = next(
            i for i, (a, b) in enumerate(zip(ours.token_ids, case["ids"], strict=True)) if a != b
        )
        assert ours.logprobs is not None
        best = sorted((entry.logprob for entry in ours.logprobs[at].values()), reverse=True)
        different.append((case["prompt"], at, best[0] - best[1], case["gaps"][at]))
    assert all(min(ours, theirs) < NEAR_TIE for _, _, ours, theirs in different), different
    assert len(different) <= 2, different


@pytest.mark.parametrize("name", MODELS)
def test_perplexity_is_the_same(name: str, real_model: Callable[[str], Path]) -> None:
    expected = recorded(name)["perplexity"]
    text = (FIXTURES / "prose.txt").read_text()
    result = model_perplexity(str(real_model(name)), text, context=expected["chunk"])
    assert result.text_tokens == expected["tokens"]
    assert result.perplexity == pytest.approx(expected["value"], rel=0.005)
