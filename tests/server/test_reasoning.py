"""Reasoning in OpenAI's APIs: told apart, and its tokens counted."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.serving import Server, serving
from support.tiny_chat_model import TEMPLATE, write_chat_model

THOUGHT = "Hm, the café in the hinterland.\n"
"""Of the tiny model's tokens: bytes, of which two are one character, and pairs of letters."""

MESSAGES = [{"role": "user", "content": "Is it open?"}]


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model whose prompts end with open reasoning."""
    template = TEMPLATE.replace("assistant\n", "assistant\n<think>\n")
    model = write_chat_model(tmp_path_factory.mktemp("thinker") / "m.gguf", template=template)
    with serving(str(model), "--name", "thinker", "--threads", "1") as found:
        yield found


def thinking(tokens: list[Any]) -> int:
    """Those of ``tokens`` that begin within the thought."""
    starts = itertools.accumulate((len(token["bytes"]) for token in tokens), initial=0)
    return sum(start < len(THOUGHT.encode()) for start in list(starts)[:-1])


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_reasoning_are_counted(thinker: Server, stream: bool) -> None:
    body: Any = {
        "model": "thinker", "messages": MESSAGES, "n": 2, "seed": 1, "logprobs": True,
        "guided_choice": [f"{THOUGHT}</think>\n\nYes, the café is."],
    }  # fmt: skip
    tokens: list[list[Any]] = [[], []]
    texts = [{"reasoning_content": "", "content": ""} for _ in range(2)]
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        _, _, data = thinker.request("POST", "/v1/chat/completions", body)
        events = [line[6:] for line in data.decode().splitlines() if line.startswith("data: ")]
        chunks: list[Any] = [json.loads(event) for event in events[:-1]]
        answer = chunks[-1]
        parts = [(choice, choice["delta"]) for chunk in chunks for choice in chunk["choices"]]
    else:
        _, answer = thinker.post("/v1/chat/completions", body)
        parts = [(choice, choice["message"]) for choice in answer["choices"]]
    for choice, part in parts:
        tokens[choice["index"]] += (choice["logprobs"] or {"content": []})["content"]
        for name in texts[0]:
            texts[choice["index"]][name] += part.get(name) or ""
    assert texts == [{"reasoning_content": THOUGHT.strip(), "content": "Yes, the café is."}] * 2
    counted = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert counted == sum(map(thinking, tokens))
    assert 0 < counted < answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_of_nothing_but_reasoning(thinker: Server, stream: bool) -> None:
    body: Any = {
        "model": "thinker", "input": "Is it open?", "temperature": 0, "max_output_tokens": 24,
        "ignore_eos": True, "stream": stream,
    }  # fmt: skip
    _, _, data = thinker.request("POST", "/v1/responses", body)
    text = data.decode()
    response = json.loads(text.rpartition("data: ")[2] if stream else text)
    response = response["response"] if stream else response
    assert [item["type"] for item in response["output"]] == ["reasoning"]
    assert response["usage"]["output_tokens"] == 24
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 24}


def test_where_nothing_is_reasoning_none_is_counted(server: Server) -> None:
    body = {"model": "tiny", "max_tokens": 8, "ignore_eos": True}
    _, chat = server.post("/v1/chat/completions", {**body, "messages": MESSAGES})
    assert chat["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
