"""``echo``: outputs that begin with their prompt, whole and streamed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.tiny_chat_model import END_OF_TEXT
from tidemill import LLM, AsyncLLM, SamplingParams
from tidemill.llm import CompletionOutput, RequestOutput

PROMPT = "The sky is"
BASE: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


def both(llm: LLM, prompt: Any = PROMPT, **params: Any) -> tuple[RequestOutput, RequestOutput]:
    """The answer without echo, and the one with it."""
    plain = SamplingParams(**{**BASE, **params})
    echoed = SamplingParams(**{**BASE, **params}, echo=True)
    return llm.generate(prompt, plain)[0], llm.generate(prompt, echoed)[0]


def test_text_and_ids_begin_with_the_prompt(llm: LLM) -> None:
    plain, echoed = both(llm)
    (a,), (b,) = plain.outputs, echoed.outputs
    assert b.text == PROMPT + a.text
    assert b.token_ids == plain.prompt_token_ids + a.token_ids
    assert (b.finish_reason, b.logprobs, echoed.prompt_logprobs) == ("length", None, None)
    assert echoed.prompt_token_ids == plain.prompt_token_ids


def test_logprobs_begin_with_the_prompts(llm: LLM) -> None:
    plain, echoed = both(llm, logprobs=2, prompt_logprobs=2)
    (a,), (b,) = plain.outputs, echoed.outputs
    assert plain.prompt_logprobs is not None
    assert a.logprobs is not None
    assert b.logprobs == plain.prompt_logprobs + a.logprobs
    assert b.logprobs[0] is None
    assert b.cumulative_logprob == a.cumulative_logprob  # of what was generated
    assert echoed.prompt_logprobs == plain.prompt_logprobs


@pytest.mark.parametrize(("logprobs", "prompt_logprobs"), [(0, 3), (3, 0), (None, 1), (1, None)])
def test_each_list_has_as_many_top_tokens_as_asked_for(
    llm: LLM, logprobs: int | None, prompt_logprobs: int | None
) -> None:
    _, output = both(llm, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    for entries, n_top in ((output.outputs[0].logprobs, logprobs),
                           (output.prompt_logprobs, prompt_logprobs)):  # fmt: skip
        assert (entries is None) == (n_top is None)
        if entries is not None and n_top is not None:
            assert entries[0] is None
            assert all(e is not None and n_top <= len(e) <= n_top + 1 for e in entries[1:])
            assert all(e is not None and len(e) >= 1 for e in entries[1:])


def test_scoring_a_prompt_alone(llm: LLM) -> None:
    generated = llm.generate(PROMPT, SamplingParams(**BASE, logprobs=0))[0].outputs[0]
    text = {"prompt_token_ids": llm.tokenizer.encode(PROMPT) + generated.token_ids}
    params = SamplingParams(echo=True, logprobs=0, max_tokens=0)
    (output,) = llm.generate(text, params)
    (scored,) = output.outputs
    assert (scored.finish_reason, scored.token_ids) == ("length", text["prompt_token_ids"])
    assert scored.text == PROMPT + generated.text
    assert scored.logprobs is not None
    assert generated.logprobs is not None
    for mine, theirs in zip(scored.logprobs[-8:], generated.logprobs, strict=True):
        assert mine is not None
        assert theirs is not None
        assert mine.keys() == theirs.keys()
        for token in mine:
            assert mine[token].logprob == pytest.approx(theirs[token].logprob, abs=1e-5)
    assert scored.cumulative_logprob == 0.0  # nothing was generated


def test_every_sample_and_ranked_ones(llm: LLM) -> None:
    for params in ({"n": 3, "seed": 2}, {"n": 2, "best_of": 4, "seed": 2}):
        plain, echoed = both(llm, **params, temperature=1.0, logprobs=1)
        assert len(plain.outputs) == params["n"]
        for a, b in zip(plain.outputs, echoed.outputs, strict=True):
            assert b.text == PROMPT + a.text
            assert b.token_ids == plain.prompt_token_ids + a.token_ids
            assert b.cumulative_logprob == a.cumulative_logprob
            assert b.logprobs is not None
            assert len(b.logprobs) == len(b.token_ids)


def test_stop_strings_are_not_looked_for_in_the_prompt(llm: LLM) -> None:
    plain, _ = both(llm)
    text = plain.outputs[0].text
    for stop in ("sky", PROMPT, PROMPT[-1] + text[:2]):  # the last one only across the border
        assert stop not in text
        _, echoed = both(llm, stop=[stop])
        assert echoed.outputs[0].text == PROMPT + text
        assert echoed.outputs[0].finish_reason == "length"
    _, echoed = both(llm, stop=[text[3:5]])
    assert echoed.outputs[0].text == PROMPT + text[: text.index(text[3:5])]
    assert echoed.outputs[0].stop_reason == text[3:5]


def test_a_prompt_given_as_ids_is_decoded(llm: LLM) -> None:
    ids = [END_OF_TEXT, *llm.tokenizer.encode(PROMPT)]
    plain, echoed = both(llm, {"prompt_token_ids": ids})
    assert echoed.outputs[0].text == PROMPT + plain.outputs[0].text
    assert echoed.outputs[0].token_ids[: len(ids)] == ids
    plain, echoed = both(llm, {"prompt_token_ids": ids}, skip_special_tokens=False)
    assert echoed.outputs[0].text == "<|endoftext|>" + PROMPT + plain.outputs[0].text


def test_a_chat_is_echoed_as_the_template_wrote_it(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    (output,) = llm.chat(messages, SamplingParams(**BASE, echo=True))
    assert output.prompt is not None
    assert output.outputs[0].text.startswith(output.prompt)


def joined(deltas: list[RequestOutput], index: int = 0) -> CompletionOutput:
    whole = CompletionOutput(index, logprobs=[])
    for piece in (o for d in deltas for o in d.outputs if o.index == index):
        whole.text += piece.text
        whole.token_ids += piece.token_ids
        assert whole.logprobs is not None
        whole.logprobs += piece.logprobs or []
        whole.finish_reason = piece.finish_reason
    return whole


@pytest.mark.parametrize("max_tokens", [0, 1, 8])
@pytest.mark.parametrize("n", [1, 2])
def test_streams_begin_with_the_prompt(llm: LLM, max_tokens: int, n: int) -> None:
    params = SamplingParams(**{**BASE, "max_tokens": max_tokens}, echo=True, logprobs=1, n=n)
    (whole,) = llm.generate(PROMPT, params)
    deltas = list(llm.stream(PROMPT, params))
    assert deltas[0].outputs[0].text.startswith(PROMPT)
    for expected in whole.outputs:
        found = joined(deltas, expected.index)
        assert (found.text, found.token_ids) == (expected.text, expected.token_ids)
        assert found.logprobs == expected.logprobs
        assert found.finish_reason == "length"


def test_asynchronous_streams_begin_with_the_prompt(tiny_chat_model: Path, llm: LLM) -> None:
    params = SamplingParams(**BASE, echo=True, logprobs=1)
    (expected,) = llm.generate(PROMPT, params)[0].outputs

    async def main() -> None:
        async with await asyncio.to_thread(AsyncLLM, str(tiny_chat_model), threads=1) as model:
            deltas = [o async for o in model.generate(PROMPT, params, output="delta")]
            assert deltas[0].outputs[0].text.startswith(PROMPT)
            assert joined(deltas).text == expected.text
            assert joined(deltas).logprobs == expected.logprobs
            cumulative = [o async for o in model.generate(PROMPT, params)]
            shown = [o for o in cumulative if o.outputs[0].text]
            assert all(o.outputs[0].text.startswith(PROMPT) for o in shown)
            (final,) = [o async for o in model.generate(PROMPT, params, output="final")]
            assert final.outputs[0].text == cumulative[-1].outputs[0].text == expected.text

    asyncio.run(asyncio.wait_for(main(), 60))
