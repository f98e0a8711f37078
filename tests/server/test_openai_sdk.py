"""The official SDK as a client: what it sends is understood, what it gets is what LLM gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from support.serving import Server
from tidemill import LLM, SamplingParams

MESSAGES: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the sea?"},
]
GREEDY: Any = {"temperature": 0, "max_tokens": 24, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def llm(tiny_chat_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_chat_model), threads=1) as found:
        yield found


def test_a_chat_answer_is_that_of_the_python_api(client: openai.OpenAI, llm: LLM) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, **GREEDY)
    (expected,) = llm.chat(MESSAGES, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
    (choice,) = answer.choices
    assert choice.message.content == expected.outputs[0].text
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24
    assert answer.model == "tiny"
    assert answer.id.startswith("chatcmpl-")


def test_a_stream_is_the_whole_in_pieces(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, **GREEDY)
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
    )
    *parts, last = chunks
    assert len(parts) > 1  # how many depends on how fast they are read
    assert parts[0].choices[0].delta.role == "assistant"
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    assert [p.choices[0].finish_reason for p in parts if p.choices[0].finish_reason] == ["length"]
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert all(part.usage is None for part in parts)
    assert len({chunk.id for chunk in chunks}) == 1


def test_several_samples_with_a_seed_come_again(client: openai.OpenAI) -> None:
    def texts(seed: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model="tiny", messages=MESSAGES, n=3, seed=seed, temperature=1.0, max_tokens=12
        )
        assert [c.index for c in answer.choices] == [0, 1, 2]
        return [c.message.content for c in answer.choices]

    first = texts(7)
    assert texts(7) == first
    assert texts(8) != first
    assert len(set(first)) == 3


def test_several_samples_in_one_stream(client: openai.OpenAI) -> None:
    texts = ["", ""]
    ends = []
    for chunk in client.chat.completions.create(
        model="tiny", messages=MESSAGES, n=2, seed=7, max_tokens=12, stream=True
    ):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            ends.append(choice.index)
    whole = client.chat.completions.create(
        model="tiny", messages=MESSAGES, n=2, seed=7, max_tokens=12
    )
    assert texts == [c.message.content for c in whole.choices]
    assert sorted(ends) == [0, 1]


def test_logprobs_of_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=3, **GREEDY
    )
    scores = answer.choices[0].logprobs
    assert scores is not None
    assert scores.content is not None
    assert len(scores.content) == 24
    for entry in scores.content:
        assert entry.bytes is not None
        assert len(entry.top_logprobs) == 3
        # Greedy: the token is the most probable one.
        assert entry.top_logprobs[0].token == entry.token
        assert [t.logprob for t in entry.top_logprobs] == sorted(
            (t.logprob for t in entry.top_logprobs), reverse=True
        )
    written = b"".join(bytes(entry.bytes or ()) for entry in scores.content)
    assert written.decode("utf-8", "replace") == answer.choices[0].message.content


def test_streamed_logprobs_are_those_of_the_whole(client: openai.OpenAI) -> None:
    def content(choice: Any) -> list[Any]:
        return choice.logprobs.content if choice.logprobs and choice.logprobs.content else []

    whole = client.chat.completions.create(
        model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=1, **GREEDY
    )
    streamed = [
        entry
        for chunk in client.chat.completions.create(
            model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=1, stream=True, **GREEDY
        )
        for entry in content(chunk.choices[0])
    ]
    assert [e.token for e in streamed] == [e.token for e in content(whole.choices[0])]


def test_completions_of_texts_and_of_token_ids(client: openai.OpenAI, llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    prompts = ["Once upon", "The end"]
    expected = [o.outputs[0].text for o in llm.generate(prompts, params)]
    options: Any = {"temperature": 0, "max_tokens": 8, "extra_body": {"ignore_eos": True}}
    answer = client.completions.create(model="tiny", prompt=prompts, **options)
    assert [c.text for c in answer.choices] == expected
    assert [c.index for c in answer.choices] == [0, 1]
    ids = [llm.tokenizer.encode(prompt) for prompt in prompts]
    assert (
        client.completions.create(model="tiny", prompt=ids[0], **options).choices[0].text
        == (expected[0])
    )
    several = client.completions.create(model="tiny", prompt=ids, **options)
    assert [c.text for c in several.choices] == expected


def test_streamed_completions_of_several_prompts(client: openai.OpenAI) -> None:
    options: Any = {
        "model": "tiny", "prompt": ["a", "b", "c"], "n": 2, "seed": 3, "max_tokens": 9,
    }  # fmt: skip
    whole = client.completions.create(**options)
    texts = [""] * 6
    for chunk in client.completions.create(stream=True, **options):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [c.text for c in whole.choices]


def test_echo_with_logprobs(client: openai.OpenAI, llm: LLM) -> None:
    prompt = "Hello there"
    answer = client.completions.create(
        model="tiny", prompt=prompt, echo=True, logprobs=2, max_tokens=4, temperature=0,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    (choice,) = answer.choices
    n_prompt = len(llm.tokenizer.encode(prompt))
    assert choice.text.startswith(prompt)
    scores = choice.logprobs
    assert scores is not None
    assert scores.tokens is not None
    assert scores.token_logprobs is not None
    assert len(scores.tokens) == n_prompt + 4
    assert scores.token_logprobs[0] is None
    assert all(value is not None and value <= 0 for value in scores.token_logprobs[1:])
    assert scores.text_offset is not None
    assert scores.text_offset[0] == 0
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (n_prompt, 4)


def test_prompt_only(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="Hello there", echo=True, logprobs=0, max_tokens=0
    )
    assert answer.choices[0].text == "Hello there"


def test_stop_strings_are_not_part_of_the_text(client: openai.OpenAI) -> None:
    options: Any = {
        "model": "tiny", "prompt": "Once", "temperature": 0, "max_tokens": 24,
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    whole = client.completions.create(**options).choices[0].text
    stop = whole[5:8]
    choice = client.completions.create(stop=[stop], **options).choices[0]
    assert choice.text == whole[: whole.index(stop)]
    assert choice.finish_reason == "stop"
    streamed = "".join(
        chunk.choices[0].text
        for chunk in client.completions.create(stop=stop, stream=True, **options)
    )
    assert streamed == choice.text


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nobody")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"n": 5_000_000}, "n"),
        ({"logprobs": True, "top_logprobs": 10**9}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"999999999": 1}}, "logit_bias"),
        ({"stop": ["x"] * 1000}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"store": True}, "store"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"functions": [{"name": "f", "parameters": {}}]}, "functions"),
        ({"extra_body": {"no_such_thing": 1}}, "no_such_thing"),
        ({"extra_body": {"top_k": "many"}}, "top_k"),
        ({"extra_body": {"min_p": 1e400}}, "min_p"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    client: openai.OpenAI, options: dict[str, Any], param: str
) -> None:
    with pytest.raises((openai.BadRequestError, ValueError)) as caught:
        client.chat.completions.create(model="tiny", messages=MESSAGES, **options)
    if isinstance(caught.value, openai.BadRequestError):
        assert caught.value.param == param
        assert param in str(caught.value)
        assert isinstance(caught.value.code, str)


def test_there_is_no_filling_in_between(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="suffix") as caught:
        client.completions.create(model="tiny", prompt="def f(", suffix="return x")
    assert caught.value.param == "suffix"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user"}],
        [{"content": "x"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    ],
)
def test_messages_that_are_none_are_refused(client: openai.OpenAI, messages: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model="tiny", messages=messages, max_tokens=1)


def test_more_than_the_context_is_refused_before_anything_runs(client: openai.OpenAI) -> None:
    for options in ({"max_tokens": 10**6}, {"max_completion_tokens": 10**6}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="tiny", messages=MESSAGES, **options)  # type: ignore[call-overload]
        assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="word " * 5000, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"


def test_the_context_that_is_told_is_the_one_there_is(client: openai.OpenAI) -> None:
    told: Any = client.models.retrieve("tiny")
    length = told.max_model_len
    options: Any = {"model": "tiny", "extra_body": {"ignore_eos": True}}
    for prompt, output in ((length - 1, 1), (10, length - 10)):
        answer = client.completions.create(prompt=[65] * prompt, max_tokens=output, **options)
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, output)
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(prompt=[65] * prompt, max_tokens=output + 1, **options)
        assert caught.value.code == "context_length_exceeded"


def test_an_unknown_model_is_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-none", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert "tiny" in str(caught.value)
