"""The two real models against llama.cpp on the same files (see oracles/make_llama_cpp.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidemill import LLM, RequestOutput, SamplingParams
from tidemill.engine.base import ErrorEvent, Request, TokenEvent
from tidemill.llm.loading import compile_model, open_model, start_engine
from tidemill.llm.perplexity import model_perplexity
from tidemill.llm.prompts import TokensPrompt
from tidemill.models import load_model
from tidemill.weights.base import WeightTensor

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODELS = ["smollm2", "gemma3"]
NEAR_TIE = 0.05
# Two engines that quantise activations differ by up to about this much in the lead of one token
# over the next (docs/decisions/2026-11-30-agreement.md).
NOISE = 1.0
GREEDY = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, logprobs=2)


def recorded(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FIXTURES / "llama_cpp" / f"{name}.json").read_text())
    return data


@pytest.mark.parametrize("name", MODELS)
def test_prompts_have_the_same_ids(name: str, real_model: Callable[[str], Path]) -> None:
    tokenizer = open_model(str(real_model(name))).tokenizer
    for case in recorded(name)["quantised"]:
        assert tokenizer.encode(case["prompt"]) == case["prompt_ids"]


def partings(
    outputs: list[RequestOutput], cases: list[dict[str, Any]]
) -> list[tuple[str, int, float, float]]:
    """Where greedy answers leave the recorded ones: prompt, position, our lead, their lead."""
    found = []
    for case, output in zip(cases, outputs, strict=True):
        ours = output.outputs[0]
        pairs = zip(ours.token_ids, case["ids"], strict=True)
        at = next((i for i, (mine, theirs) in enumerate(pairs) if mine != theirs), None)
        if at is not None:
            assert ours.logprobs is not None
            best = sorted((e.logprob for e in ours.logprobs[at].values()), reverse=True)
            found.append((case["prompt"], at, best[0] - best[1], case["gaps"][at]))
    return found


def ids(cases: list[dict[str, Any]]) -> list[TokensPrompt]:
    return [{"prompt_token_ids": case["prompt_ids"]} for case in cases]


@pytest.mark.parametrize("name", MODELS)
def test_decided_continuations_are_the_same(name: str, real_model: Callable[[str], Path]) -> None:
    """64 tokens on the 20 prompts of the pool of which llama.cpp is surest."""
    cases = recorded(name)["decided"]
    with LLM(str(real_model(name)), max_context=256) as llm:
        different = partings(llm.generate(ids(cases), GREEDY), cases)
    assert all(min(ours, theirs) < NEAR_TIE for _, _, ours, theirs in different), different
    assert len(different) <= 2, different


@pytest.mark.parametrize("name", MODELS)
def test_float_weights_continue_any_prompt_alike(
    name: str, real_model: Callable[[str], Path]
) -> None:
    """The model's weights as F32: nothing is rounded to eight bits on either side, and 64 tokens
    on 20 ordinary prompts are equal for at least 18, the others parting at a near-tie."""
    cases = recorded(name)["float"]
    opened = open_model(str(real_model(name)), max_context=256)
    checkpoint = replace(
        opened.checkpoint,
        tensors={
            key: WeightTensor.from_array(key, tensor.dequantize())
            for key, tensor in opened.checkpoint.tensors.items()
        },
    )
    opened = replace(opened, checkpoint=checkpoint, model=load_model(checkpoint, max_context=256))
    compiled = compile_model(opened, max_sequences=len(cases))
    engine = start_engine(
        compiled, max_sequences=len(cases), max_waiting=len(cases), prefix_caching=True
    )
    for number, case in enumerate(cases):
        engine.add(Request(str(number), tuple(case["prompt_ids"]), GREEDY), 0.0)
    answers: list[list[TokenEvent]] = [[] for _ in cases]
    while engine.has_work:
        for event in engine.step(0.0):
            assert not isinstance(event, ErrorEvent), event
            if isinstance(event, TokenEvent):
                answers[int(event.request_id)].append(event)
    compiled.runner.close()
    different = []
    for case, answer in zip(cases, answers, strict=True):
        for at, (event, theirs) in enumerate(zip(answer, case["ids"], strict=True)):
            if event.token_id != theirs:
                assert event.logprobs is not None
                best = sorted((entry.logprob for entry in event.logprobs), reverse=True)
                different.append((case["prompt"], at, best[0] - best[1], case["gaps"][at]))
                break
    assert all(min(ours, theirs) < NEAR_TIE for _, _, ours, theirs in different), different
    assert len(different) <= 2, different


@pytest.mark.parametrize("name", MODELS)
def test_every_step_agrees_but_for_noise(name: str, real_model: Callable[[str], Path]) -> None:
    """On llama.cpp's own continuations of ordinary prompts, position by position: the same choice
    wherever its lead is more than noise, and the same logprob lead on average."""
    cases = recorded(name)["quantised"]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2)
    with LLM(str(real_model(name)), max_context=256) as llm:
        outputs = llm.generate(
            [{"prompt_token_ids": case["prompt_ids"] + case["ids"]} for case in cases], params
        )
    errors = []
    for case, output in zip(cases, outputs, strict=True):
        assert output.prompt_logprobs is not None
        steps = output.prompt_logprobs[len(case["prompt_ids"]) :]
        for token, gap, step in zip(case["ids"], case["gaps"], steps, strict=True):
            assert step is not None
            if gap > NOISE:
                assert step[token].rank == 1, (case["prompt"], token, gap)
            if step[token].rank == 1:
                second = max(e.logprob for key, e in step.items() if key != token)
                errors.append(abs(step[token].logprob - second - gap))
    assert len(errors) > 0.9 * 20 * 64
    assert sum(errors) / len(errors) < 0.25


@pytest.mark.parametrize("name", MODELS)
def test_perplexity_is_the_same(name: str, real_model: Callable[[str], Path]) -> None:
    expected = recorded(name)["perplexity"]
    text = (FIXTURES / "prose.txt").read_text()
    result = model_perplexity(str(real_model(name)), text, context=expected["chunk"])
    assert result.text_tokens == expected["tokens"]
    assert result.perplexity == pytest.approx(expected["value"], rel=0.005)
