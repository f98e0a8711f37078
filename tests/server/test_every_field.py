"""No field is taken and ignored: each does what it says, or is refused by its name, or is known to
change nothing. Over real sockets; what sampling parameters do is what they do in Python."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.serving import Server, begin_request, paused, serving, until
from support.tiny_chat_model import IM_END, IM_START, TEMPLATE, write_chat_model
from tidemill import LLM, SamplingParams
from tidemill.server.anthropic import requests as anthropic
from tidemill.server.ollama import options as ollama_options
from tidemill.server.ollama import requests as ollama
from tidemill.server.openai import responses, sampling
from tidemill.server.openai.chat import ChatRequest
from tidemill.server.openai.completions import CompletionRequest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hello."}]
PROMPT = "The tide comes in"
BASE: dict[str, Any] = {"temperature": 1.0, "seed": 1, "max_tokens": 60, "ignore_eos": True}

# Each changes the answer to BASE, into that of the Python API.
CHANGES: dict[str, Any] = {
    "temperature": 0.3, "seed": 2, "max_tokens": 30, "top_p": 0.5, "top_k": 3, "min_p": 0.2,
    "typical_p": 0.3, "presence_penalty": 2.0, "frequency_penalty": 2.0,
    "repetition_penalty": 3.0, "logit_bias": {"65": 20.0}, "stop": ["e", "t", "a", "o", "n"],
}  # fmt: skip
NOTHING = {"user", "safety_identifier", "metadata", "prompt_cache_key", "prompt_cache_retention"}
HERE = {
    "best_of", "min_tokens", "stop_token_ids", "ignore_eos", "skip_special_tokens", "priority",
    "prompt_logprobs", "add_generation_prompt", "chat_template_kwargs",
}  # fmt: skip
ELSEWHERE = {  # what it does is what whole modules of tests are about
    "model", "messages", "prompt", "stream", "stream_options", "n", "echo", "logprobs",
    "top_logprobs", "max_completion_tokens", "cache_salt", "tools", "tool_choice",
    "parallel_tool_calls", "response_format", "structured_outputs", "guided_json",
    "guided_regex", "guided_choice", "guided_grammar",
}  # fmt: skip


def test_every_field_is_one_of_these() -> None:
    fields = {*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__}
    assert fields == {*CHANGES, *NOTHING, *HERE, *ELSEWHERE, *sampling._ONLY}


@pytest.fixture(scope="module")
def llm(tiny_chat_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_chat_model), threads=1) as found:
        yield found


def complete(server: Server, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": PROMPT, **BASE, **fields}
    status, answer = server.post(COMPLETIONS, body)
    assert status == 200, answer
    return dict(answer)


def text(server: Server, **fields: Any) -> str:
    return str(complete(server, **fields)["choices"][0]["text"])


@pytest.mark.parametrize("name", CHANGES)
def test_what_it_changes_is_what_it_changes_in_python(server: Server, llm: LLM, name: str) -> None:
    given = {**BASE, name: CHANGES[name]}
    bias = {int(token): value for token, value in given.pop("logit_bias", {}).items()}
    (wanted,) = llm.generate(PROMPT, SamplingParams(logit_bias=bias, **given))
    found = text(server, **{name: CHANGES[name]})
    assert found == wanted.outputs[0].text
    assert found != text(server)


def test_the_best_of_several(server: Server, llm: LLM) -> None:
    (wanted,) = llm.generate(PROMPT, SamplingParams(n=2, best_of=4, **BASE))
    choices = complete(server, n=2, best_of=4)["choices"]
    assert [choice["text"] for choice in choices] == [out.text for out in wanted.outputs]
    every = {choice["text"] for choice in complete(server, n=4)["choices"]}
    assert {choice["text"] for choice in choices} < every


def ends(answer: dict[str, Any]) -> tuple[int, str, Any]:
    """Tokens of the answer, and how it ended."""
    (choice,) = answer["choices"]
    tokens = answer["usage"]["completion_tokens"]
    return tokens, choice["finish_reason"], choice.get("stop_reason")


def test_what_ends_an_answer_and_what_does_not(server: Server) -> None:
    end = {"logit_bias": {IM_END: 100}}
    assert ends(complete(server, **end, ignore_eos=False)) == (1, "stop", None)
    assert ends(complete(server, **end, ignore_eos=True)) == (60, "length", None)
    letter = {"logit_bias": {65: 100}, "stop_token_ids": [65]}
    assert ends(complete(server, **letter)) == (1, "stop", 65)
    tokens, why, _ = ends(complete(server, **end, ignore_eos=False, min_tokens=5))
    assert (tokens, why) == (6, "stop")


def test_control_tokens_are_shown_where_that_is_asked_for(server: Server) -> None:
    always = {"logit_bias": {IM_START: 100}, "max_tokens": 2}
    assert text(server, **always) == ""
    assert text(server, **always, skip_special_tokens=False) == "<|im_start|>" * 2


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_scores_of_the_prompt(server: Server, llm: LLM, path: str) -> None:
    """In vLLM's form: with each choice of a completion, beside those of a chat."""
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 1, "prompt_logprobs": 2}
    params = SamplingParams(max_tokens=1, prompt_logprobs=2)
    if path == CHAT:
        status, answer = server.post(path, {**asked, "messages": MESSAGES})
        (output,) = llm.chat(MESSAGES, params)
        scores = [answer["prompt_logprobs"]]
    else:
        status, answer = server.post(path, {**asked, "prompt": PROMPT, "n": 2})
        (output,) = llm.generate(PROMPT, params)
        scores = [choice["prompt_logprobs"] for choice in answer["choices"]]
    assert status == 200
    assert output.prompt_logprobs is not None
    wanted = [
        entry and {
            str(token): {"logprob": pytest.approx(e.logprob, abs=1e-4), "rank": e.rank,
                         "decoded_token": e.decoded_token}
            for token, e in entry.items()
        }
        for entry in output.prompt_logprobs
    ]  # fmt: skip
    assert wanted[0] is None
    assert scores == [wanted] * len(scores)
    assert "prompt_logprobs" not in str(server.post(path, {**asked, "prompt_logprobs": None})[1])


def test_the_less_urgent_waits(endless: tuple[str, ...]) -> None:
    """Of two that wait, whichever came first. They have the same prompt: the second one finds it
    in the cache."""
    arguments = (*endless, "--name", "tiny", "--threads", "1", "--max-sequences", "1")
    with serving(*arguments) as server, ThreadPoolExecutor(2) as pool:

        def cached(priority: int) -> int:
            answer = complete(server, priority=priority, prompt="It goes out again. " * 8)
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        long = {"model": "tiny", "prompt": PROMPT, **BASE, "max_tokens": 60_000, "n": 8}
        with begin_request(server, COMPLETIONS, {**long, "priority": -9}):
            until(lambda: server.metric("vllm:num_requests_running") == 1)
            with paused(server):
                found, before = [], server.waiting()
                for n, priority in enumerate((5, 0), 1):
                    found.append(pool.submit(cached, priority))
                    until(lambda n=n: server.waiting() == before + n)
        later, sooner = (future.result(60) for future in found)
        assert sooner == 0 < later


def test_variables_of_the_template(tmp_path: Path) -> None:
    path = write_chat_model(tmp_path / "tiny.gguf", template="{{ word }}" + TEMPLATE)
    with serving(str(path), "--name", "tiny", "--threads", "1") as server:

        def length(**fields: Any) -> int:
            body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 1, **fields}
            status, answer = server.post(CHAT, body)
            assert status == 200, answer
            return int(answer["usage"]["prompt_tokens"])

        plain = length()
        assert length(chat_template_kwargs={"word": "xyz"}) == plain + 3
        assert length(add_generation_prompt=False) < plain  # nothing opens the answer


@pytest.mark.parametrize("name", sorted(NOTHING))
def test_what_changes_nothing(server: Server, name: str) -> None:
    value: Any = {"a": "b"} if name == "metadata" else "somebody"
    assert text(server, **{name: value}) == text(server)


# ---- known, and not served


def known(only: Any, path: str, body: dict[str, Any], where: str = "") -> list[Any]:
    return [pytest.param(path, body, where, name, id=f"{path} {where}{name}") for name in only]


ASKED: dict[str, Any] = {"model": "tiny", "messages": MESSAGES}
GENERATE = {
    name: values for name, values in ollama._ONLY.items()
    if name in ollama.GenerateRequest.__struct_fields__
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "where", "name"),
    [
        *known(sampling._ONLY, CHAT, ASKED),
        *known(sampling._ONLY, COMPLETIONS, {"model": "tiny", "prompt": "x"}),
        *known(sampling._ONLY_OF_STREAMS, CHAT, {**ASKED, "stream": True}, "stream_options."),
        *known(responses._ONLY, "/v1/responses", {"model": "tiny", "input": "x"}),
        *known(anthropic._ONLY, "/v1/messages", {**ASKED, "max_tokens": 4}),
        *known(GENERATE, "/api/generate", {"model": "tiny", "prompt": "x"}),
        *known(ollama_options._ONLY, "/api/chat", ASKED, "options."),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    server: Server, path: str, body: dict[str, Any], where: str, name: str
) -> None:
    value: Any = True if where == "stream_options." else "x"
    outer = where.removesuffix(".")
    more = {outer: {name: value}} if outer else {name: value}
    status, answer = server.post(path, {**body, **more})
    assert status == 400, answer
    error = answer["error"]
    told = error["message"] if isinstance(error, dict) else error
    assert f"{where}{name} is not supported here" in told
    if path.startswith("/v1") and path != "/v1/messages":
        assert error["param"] == f"{where}{name}"


def test_what_streams_have_only_and_what_they_have_not(server: Server) -> None:
    for more, param in (
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
    ):
        status, answer = server.post(CHAT, {**ASKED, **more})
        assert (status, answer["error"]["param"]) == (400, param)
