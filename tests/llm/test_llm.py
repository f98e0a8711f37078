"""LLM on a tiny random model: batches, samples, stops, logprobs, options, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm.helpers import GREEDY, PROMPTS, ids
from support.tiny_chat_model import CONTEXT, VOCAB
from tidemill import LLM, SamplingParams
from tidemill.llm import ContextLengthError, InsufficientMemoryError


def test_a_batch_gives_each_prompt_its_own_answer(llm: LLM) -> None:
    together = llm.generate(PROMPTS, GREEDY)
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in PROMPTS]
    assert ids(together) == ids(alone)
    assert len({tuple(i) for i in ids(together)}) == len(PROMPTS)
    for prompt, output in zip(PROMPTS, together, strict=True):
        assert output.prompt == prompt
        assert output.prompt_token_ids == llm.tokenizer.encode(prompt)
        assert output.finished
        assert output.error is None
        (sample,) = output.outputs
        assert (len(sample.token_ids), sample.finish_reason) == (12, "length")
        assert sample.text == llm.tokenizer.decode(sample.token_ids)
        assert output.metrics.time_to_first_token is not None
        assert output.metrics.finished_time is not None


def test_a_batch_runs_as_one_batch(llm: LLM) -> None:
    before = llm.core.driver.engine.stats.steps
    llm.generate(["a", "b", "c", "d"], GREEDY)
    steps = llm.core.driver.engine.stats.steps - before
    assert steps <= 12 + 4  # four prompts one after another would take 48


def test_prompts_in_every_form(llm: LLM) -> None:
    tokens = llm.tokenizer.encode("Hello")
    outputs = llm.generate(
        ["Hello", {"prompt": "Hello"}, {"prompt_token_ids": tokens},
         {"prompt_token_ids": np.array(tokens)}],
        GREEDY,
    )  # fmt: skip
    assert len({tuple(i) for i in ids(outputs)}) == 1
    assert [output.prompt for output in outputs] == ["Hello", "Hello", None, None]


def test_plain_prompts_load_no_template_engine(tiny_chat_model: Path) -> None:
    code = """
import sys
from tidemill import LLM, SamplingParams
with LLM(sys.argv[1], threads=1) as llm:
    llm.generate({"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=1))
    assert "jinja2" not in sys.modules
    llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=1))
"""
    subprocess.run([sys.executable, "-c", code, str(tiny_chat_model)], check=True, timeout=60)


def test_one_params_each(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (1, 2, 3, 4)]
    assert [len(i) for i in ids(llm.generate(PROMPTS, params))] == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="3 sampling_params for 4 prompts"):
        llm.generate(PROMPTS, params[:3])


def test_more_prompts_than_run_at_once(llm: LLM) -> None:
    prompts = [f"prompt number {n}" for n in range(30)]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    assert [output.prompt for output in outputs] == prompts
    assert all(len(i) == 3 for i in ids(outputs))


def test_n_samples(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=8, ignore_eos=True)
    (output,) = llm.generate("Hello", params)
    assert [sample.index for sample in output.outputs] == [0, 1, 2]
    assert len({tuple(sample.token_ids) for sample in output.outputs}) == 3
    (again,) = llm.generate("Hello", params)
    assert [s.token_ids for s in again.outputs] == [s.token_ids for s in output.outputs]


def test_best_of_returns_the_likeliest(llm: LLM) -> None:
    params = SamplingParams(n=2, best_of=4, seed=1, max_tokens=6, ignore_eos=True, logprobs=0)
    (output,) = llm.generate("Hello", params)
    scores = [sample.cumulative_logprob for sample in output.outputs]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)  # type: ignore[type-var]


def test_seeds(llm: LLM) -> None:
    def sampled(seed: int | None, others: int = 0) -> list[int]:
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=10, ignore_eos=True)
        return ids(llm.generate(["Hello"] + ["other"] * others, params))[0]

    assert sampled(7) == sampled(7) == sampled(7, others=3)
    assert sampled(7) != sampled(8)
    assert sampled(None) != sampled(None)


def test_a_seed_of_the_model_repeats_requests_without_one(tiny_chat_model: Path) -> None:
    def sampled(seed: int) -> list[list[int]]:
        params = SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True)
        with LLM(str(tiny_chat_model), threads=1, seed=seed) as model:
            return ids(model.generate(["Hello", "Hello"], params))

    one = sampled(1)
    assert one[0] != one[1]
    assert sampled(1) == one != sampled(2)


def test_stop_strings_and_ids(llm: LLM) -> None:
    (free,) = llm.generate("Hello", GREEDY)
    text, tokens = free.outputs[0].text, free.outputs[0].token_ids
    stop = text[4:6]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=(stop,))
    (output,) = llm.generate("Hello", params)
    assert output.outputs[0].text == text[: text.index(stop)]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", stop)
    params = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=(tokens[3],))
    (output,) = llm.generate("Hello", params)
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].stop_reason == tokens[3]
    assert len(output.outputs[0].token_ids) == tokens.index(tokens[3]) + 1


def test_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=3,
                            prompt_logprobs=2)  # fmt: skip
    (output,) = llm.generate("Hello", params)
    (sample,) = output.outputs
    assert sample.logprobs is not None
    assert len(sample.logprobs) == 4
    for token, entries in zip(sample.token_ids, sample.logprobs, strict=True):
        assert len(entries) == 3
        assert entries[token].rank == 1
        assert entries[token].logprob == max(entry.logprob for entry in entries.values())
        assert entries[token].decoded_token
    total = sum(e[t].logprob for t, e in zip(sample.token_ids, sample.logprobs, strict=True))
    assert sample.cumulative_logprob == pytest.approx(total)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    for token, entries in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert entries is not None
        assert token in entries
        assert len(entries) in (2, 3)


def test_prefix_cache_is_reported_and_changes_nothing(llm: LLM) -> None:
    prompt = "a long enough beginning that fills several blocks of the cache, and then "
    first, second = llm.generate(prompt, GREEDY)[0], llm.generate(prompt, GREEDY)[0]
    assert second.num_cached_tokens > 0
    assert ids([first]) == ids([second])


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        {"prompt_token_ids": []},
        {"prompt_token_ids": [VOCAB]},
        {"prompt_token_ids": [-1]},
        {"prompt_token_ids": [1.5]},
        {"prompt_token_ids": ["1"]},
        {"prompt_token_ids": [True]},
        {"prompt_token_ids": [1, False]},
        {"prompt_token_ids": np.array([True])},
        {"prompt_token_ids": "12"},
        {"prompt_token_ids": 3},
        {"text": "Hello"},
        {"prompt": "a", "prompt_token_ids": [1]},
        17,
        None,
        [1, 2, 3],
    ],
)
def test_invalid_prompts_are_refused_before_anything_runs(llm: LLM, prompt: Any) -> None:
    steps = llm.core.driver.engine.stats.steps
    with pytest.raises(ValueError):
        llm.generate(["Hello", prompt, "Hello"], GREEDY)
    assert llm.core.driver.engine.stats.steps == steps
    assert not llm.core.driver.busy
    assert len(ids(llm.generate("Hello", GREEDY))[0]) == 12


def test_a_prompt_over_the_context_is_refused_and_nothing_is_cut(llm: LLM) -> None:
    with pytest.raises(ContextLengthError, match=str(CONTEXT)):
        llm.generate("xyz" * CONTEXT, GREEDY)
    fits = {"prompt_token_ids": [120] * (CONTEXT - 2)}
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    (output,) = llm.generate(fits, params)
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (2, "length")


def test_a_failing_request_does_not_take_the_others_with_it(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ids(llm.generate(["good one", "good two"], GREEDY))
    runner = llm.core.compiled.runner
    bad = llm.tokenizer.encode("~")[0]
    forward = runner.forward

    class Failing:
        """The runner, but a batch with the bad token in it cannot be computed."""

        def __getattr__(self, name: str) -> Any:
            return getattr(runner, name)

        def forward(self, batch: Any) -> Any:
            if (batch.tokens == bad).any():  # no other prompt has it
                raise RuntimeError("bad token")
            return forward(batch)

    monkeypatch.setattr(llm.core.driver.engine, "_runner", Failing())
    outputs = llm.generate(["good one", "bad ~", "good two"], GREEDY)
    assert ids([outputs[0], outputs[2]]) == expected
    assert outputs[1].error is not None
    assert "bad token" in outputs[1].error
    assert outputs[1].outputs[0].finish_reason == "error"
    assert outputs[0].error is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_context": CONTEXT + 1}, f"trained for {CONTEXT}"),
        ({"max_context": 1}, "context of 1"),
        ({"threads": 0}, "threads"),
        ({"max_sequences": 0}, "max_sequences"),
        ({"max_batch_tokens": 0}, "max_batch_tokens"),
        ({"backend": "tpu"}, "'tpu'"),
        ({"kv_dtype": "f8"}, "f8"),
        ({"max_context": "64"}, "max_context must be an integer"),
        ({"max_context": True}, "max_context must be an integer"),
        ({"threads": 1.5}, "threads must be an integer"),
        ({"threads": 1025}, "threads must be at most 1024"),
        ({"max_sequences": "8"}, "max_sequences must be an integer"),
        ({"max_sequences": 10**12}, "max_sequences must be at most"),
        ({"max_batch_tokens": 10**12}, "max_batch_tokens must be at most"),
        ({"kv_memory": float("nan")}, "kv_memory must be an integer"),
        ({"kv_memory": -1}, "kv_memory must be at least 1"),
        ({"max_waiting": "x"}, "max_waiting must be an integer"),
        ({"seed": "x"}, "seed must be an integer"),
        ({"prefix_caching": "x"}, "prefix_caching must be true or false, not 'x'"),
        ({"prefix_caching": None}, "prefix_caching must be true or false"),
        ({"progress": 3}, "progress must be a function, not 3"),
        ({"on_stage": 3}, "on_stage must be a function, not 3"),
        ({"offline": "no"}, "offline must be true, false or None"),
        ({"pre_tokenizer": 1}, "pre_tokenizer must be a name"),
        ({"max_waiting": None}, "max_waiting must be an integer"),
        ({"max_waiting": 0}, "max_waiting must be at least 1"),
    ],
)
def test_bad_options_are_refused(
    tiny_chat_model: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(str(tiny_chat_model), **options)


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"x"


@pytest.mark.parametrize("name", [None, 3, b"x", ["smollm2"], BytesPath(), ""])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="model name"):
        LLM(name)


def test_a_path_is_a_name(tiny_chat_model: Path) -> None:
    with LLM(tiny_chat_model, threads=1) as llm:
        assert llm.core.compiled.opened.name == str(tiny_chat_model)


def test_default_parameters_fit_a_small_context(tiny_chat_model: Path) -> None:
    with LLM(tiny_chat_model, threads=1, max_context=256) as llm:
        for params in (None, SamplingParams(ignore_eos=True)):
            (output,) = llm.generate("Hello", params)
            assert output.outputs[0].finish_reason in ("stop", "length")
        assert len(output.outputs[0].token_ids) == 256 - len(output.prompt_token_ids)
        with pytest.raises(ContextLengthError, match="up to 256 are to be generated"):
            llm.generate("Hello", SamplingParams(max_tokens=256))


@pytest.mark.parametrize("prompts", [3, None, b"text", {"prompt_token_ids": b"text"}])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(ValueError, match="prompt"):
        llm.generate(prompts, GREEDY)


def test_what_is_no_list_of_parameters_is_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match="sampling_params must be"):
        llm.generate(["a", "b"], 3)  # type: ignore[arg-type]


def test_unknown_options_are_refused(tiny_chat_model: Path) -> None:
    with pytest.raises(TypeError, match="'max_contxt'; there are max_context"):
        LLM(str(tiny_chat_model), max_contxt=64)  # type: ignore[call-arg]


def test_a_model_that_does_not_fit_is_refused_before_allocating(
    tiny_chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidemill.backends import cpu
    from tidemill.llm import loading

    monkeypatch.setattr(loading, "available_memory", lambda: 1 << 16)
    monkeypatch.setattr(cpu, "compile", lambda *_, **__: pytest.fail("was compiled"))
    with pytest.raises(InsufficientMemoryError, match=r"weights .* KV cache .* scratch"):
        LLM(str(tiny_chat_model))


def test_the_context_can_be_limited(tiny_chat_model: Path) -> None:
    with LLM(str(tiny_chat_model), max_context=64, threads=1) as small:
        with pytest.raises(ContextLengthError, match="64"):
            small.generate("x" * 64, GREEDY)
        params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        (output,) = small.generate("x" * 50, params)
        assert len(output.outputs[0].token_ids) == 14


def test_the_reference_backend_agrees(tiny_chat_model: Path, llm: LLM) -> None:
    with LLM(str(tiny_chat_model), backend="reference", kv_dtype="f32") as reference:
        assert ids(reference.generate(PROMPTS, GREEDY)) == ids(llm.generate(PROMPTS, GREEDY))


def test_pre_tokenizer_override(tiny_chat_model: Path) -> None:
    with pytest.raises(ValueError, match="unknown pre-tokenizer 'nonsense'"):
        LLM(str(tiny_chat_model), pre_tokenizer="nonsense")
    with LLM(str(tiny_chat_model), pre_tokenizer="llama-bpe") as llm:
        assert llm.generate("hello", SamplingParams(max_tokens=1))[0].finished
