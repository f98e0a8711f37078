"""The rest of the SDKs: asynchronous clients, parsing helpers, raw answers, time-outs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import ollama
import openai
import pytest
from pydantic import BaseModel

from support.serving import Server, paused, until

MESSAGES: Any = [{"role": "user", "content": "Tell me of the sea."}]
LONG: Any = {"max_tokens": 900, "temperature": 0, "extra_body": {"ignore_eos": True}}


class Sea(BaseModel):
    name: Literal["Baltic", "Adriatic"]
    depth: Literal[1, 2]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_parsed_answers(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=Sea, max_tokens=100
    )
    assert isinstance(answer.choices[0].message.parsed, Sea)
    response = client.responses.parse(
        model="tiny", input="Go.", text_format=Sea, max_output_tokens=100
    )
    assert isinstance(response.output_parsed, Sea)


def test_parsed_tools(client: openai.OpenAI) -> None:
    """Which the SDK sends as strict."""
    options: Any = {
        "model": "tiny", "messages": MESSAGES, "max_tokens": 160,
        "tools": [openai.pydantic_function_tool(Sea)],
    }  # fmt: skip
    named = {"type": "function", "function": {"name": "Sea"}}
    answer: Any = client.chat.completions.parse(**options, tool_choice=named)
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Sea)
    free: Any = client.chat.completions.create(**{**options, "max_tokens": 8})
    assert free.choices[0].finish_reason == "length"


def test_the_stream_helpers(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=MESSAGES, response_format=Sea, max_tokens=100
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(final.choices[0].message.parsed, Sea)
    with client.responses.stream(
        model="tiny", input="Go.", text_format=Sea, max_output_tokens=100
    ) as events:
        kinds = {event.type for event in events}
        response = events.get_final_response()
    assert {"response.created", "response.output_text.delta", "response.completed"} <= kinds
    assert isinstance(response.output_parsed, Sea)


def test_raw_and_streaming_responses(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=MESSAGES, max_tokens=4, extra_headers={"X-Request-Id": "raw-1"}
    )
    assert raw.headers["x-request-id"] == "raw-1"
    assert raw.parse()._request_id == "raw-1"
    with client.chat.completions.with_streaming_response.create(
        model="tiny", messages=MESSAGES, max_tokens=4, stream=True
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


def test_a_time_out_and_a_closed_stream_end_the_request(
    client: openai.OpenAI, server: Server
) -> None:
    with paused(server), pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).chat.completions.create(
            model="tiny", messages=MESSAGES, n=8, **LONG
        )
    until(server.idle)
    with client.chat.completions.create(
        model="tiny", messages=MESSAGES, n=8, stream=True, **LONG
    ) as stream:
        assert next(iter(stream)).choices
    until(server.idle)


def test_a_full_answer_after_retries_of_the_sdk(server: Server) -> None:
    """The SDK tries 503 and 429 again by itself, but never what is the request's own fault."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=3) as client:
        before = server.metric(
            "tidemill:http_requests_total", route="/v1/chat/completions", status="400"
        )
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
        after = server.metric(
            "tidemill:http_requests_total", route="/v1/chat/completions", status="400"
        )
    assert after == before + 1


def test_the_asynchronous_clients(server: Server) -> None:
    """All at once, in one loop; each stream is the whole in pieces; one of them is cancelled."""

    async def openai_(options: Any) -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
            chat = client.chat.completions
            whole = await chat.create(model="tiny", messages=MESSAGES, **options)
            text = ""
            async for chunk in await chat.create(
                model="tiny", messages=MESSAGES, stream=True, **options
            ):
                text += chunk.choices[0].delta.content or ""
            assert text == whole.choices[0].message.content
            legacy = [
                part.choices[0].text
                async for part in await client.completions.create(
                    model="tiny", prompt="Once", stream=True, **options
                )
            ]
            assert "".join(legacy)
            models = [model.id async for model in client.models.list()]
            assert models == ["tiny"]

    async def anthropic_() -> None:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="x") as client:
            whole: Any = await client.messages.create(
                model="tiny", messages=MESSAGES, max_tokens=20,
                extra_body={"temperature": 0},
            )  # fmt: skip
            async with client.messages.stream(
                model="tiny", messages=MESSAGES, max_tokens=20, extra_body={"temperature": 0}
            ) as stream:
                text = "".join([part async for part in stream.text_stream])
            assert text == whole.content[0].text

    async def ollama_() -> None:
        client = ollama.AsyncClient(host=server.url)
        options: Any = {"num_predict": 20, "temperature": 0}
        whole = await client.chat("tiny", MESSAGES, options=options)
        text = ""
        async for part in await client.chat("tiny", MESSAGES, options=options, stream=True):
            text += part.message.content or ""
        assert text == whole.message.content

    async def cancelled() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
            task = asyncio.ensure_future(
                client.chat.completions.create(model="tiny", messages=MESSAGES, n=8, **LONG)
            )
            await asyncio.sleep(0.05)
            task.cancel()
            (end,) = await asyncio.gather(task, return_exceptions=True)
            if not isinstance(end, asyncio.CancelledError):  # it was over before
                assert len(end.choices) == 8

    async def all_of_them() -> None:
        options: Any = {"temperature": 0, "max_tokens": 20, "extra_body": {"ignore_eos": True}}
        await asyncio.gather(openai_(options), anthropic_(), ollama_(), cancelled())

    asyncio.run(all_of_them())
    until(server.idle)


def test_a_parsed_anthropic_message(server: Server) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0) as client:
        message: Any = client.messages.parse(
            model="tiny", max_tokens=100, messages=MESSAGES, output_format=Sea
        )
        assert isinstance(message.parsed_output, Sea)
        assert Sea.model_validate(json.loads(message.content[0].text)) == message.parsed_output
