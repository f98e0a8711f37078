"""LangChain's chat models as clients of all three APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

from support.serving import Server, serving
from support.tiny_chat_model import write_chat_model

QUESTION = "Tell me of the sea."


class Sea(BaseModel):
    name: Literal["Baltic", "Adriatic"]
    depth: Literal[1, 2]


class Voyage(BaseModel):
    """Its schema refers to that of a sea."""

    sea: Sea


@tool
def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Tells the weather."""
    return f"mild in {city}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With room for the long descriptions of tools, a byte a token."""
    path = write_chat_model(tmp_path_factory.mktemp("long") / "tiny.gguf", context=4096)
    with serving(str(path), "--name", "tiny", "--threads", "1") as found:
        yield found


def openai_chat(server: Server, **options: Any) -> ChatOpenAI:
    values: dict[str, Any] = {
        "model": "tiny", "base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0,
        "max_tokens": 100, "temperature": 0, "stream_usage": True, **options,
    }  # fmt: skip
    return ChatOpenAI(**values)


CALLING = ("chat", "responses", "anthropic")  # Ollama's API has no way to ask for a call
KINDS = (*CALLING, "ollama")
METHODS = [
    *((kind, "json_schema") for kind in KINDS),
    *((kind, "function_calling") for kind in CALLING),
]


def chat_of(kind: str, server: Server) -> BaseChatModel:
    match kind:
        case "anthropic":
            values: Any = {"model": "tiny", "base_url": server.url, "api_key": "none"}
            return ChatAnthropic(max_tokens=100, max_retries=0, temperature=0, **values)
        case "ollama":
            return ChatOllama(model="tiny", base_url=server.url, num_predict=100, temperature=0)
        case "responses":
            return openai_chat(server, use_responses_api=True)
    return openai_chat(server)


@pytest.fixture(params=KINDS)
def chat(request: pytest.FixtureRequest, server: Server) -> BaseChatModel:
    return chat_of(request.param, server)


def text_of(message: Any) -> str:
    return str(message.text)


def test_an_answer_and_its_stream(chat: BaseChatModel) -> None:
    whole: Any = chat.invoke(QUESTION)
    assert text_of(whole)
    assert whole.usage_metadata["output_tokens"] > 0
    parts = list(chat.stream(QUESTION))
    assert "".join(map(text_of, parts)) == text_of(whole)
    streamed: Any = parts[0]
    for part in parts[1:]:
        streamed += part
    assert streamed.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


@pytest.mark.parametrize("kind", [Sea, Voyage])
@pytest.mark.parametrize(("chat", "method"), METHODS, indirect=["chat"])
def test_structured_output(chat: BaseChatModel, method: str, kind: type[BaseModel]) -> None:
    found = chat.with_structured_output(kind, method=method).invoke(QUESTION)
    assert isinstance(found, kind)


@pytest.mark.parametrize("choice", ["weather", "any"])
@pytest.mark.parametrize("chat", CALLING, indirect=True)
def test_a_tool_and_its_answer(chat: BaseChatModel, choice: str) -> None:
    bound = chat.bind_tools([weather, Voyage], tool_choice=choice, strict=True)
    called: Any = bound.invoke(QUESTION)
    assert called.tool_calls
    assert all(call["name"] in ("weather", "Voyage") for call in called.tool_calls)
    streamed: Any = None
    for part in bound.stream(QUESTION):
        streamed = part if streamed is None else streamed + part
    assert [c["name"] for c in streamed.tool_calls] == [c["name"] for c in called.tool_calls]
    assert [c["args"] for c in streamed.tool_calls] == [c["args"] for c in called.tool_calls]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "mild"}
        for call in called.tool_calls
    ]
    last: Any = chat.bind_tools([weather, Voyage]).invoke(
        [("user", QUESTION), called, *results], **_short(chat)
    )
    assert last.usage_metadata["output_tokens"] > 0


def _short(chat: BaseChatModel) -> dict[str, Any]:
    return {"max_tokens": 8}


def test_tools_that_the_model_may_leave(chat: BaseChatModel) -> None:
    strict = {} if isinstance(chat, ChatOllama) else {"strict": True}
    message: Any = chat.bind_tools([weather], **strict).invoke(QUESTION)
    assert message.tool_calls == []
    assert text_of(message)


def test_several_at_once_and_logprobs(server: Server) -> None:
    chat = openai_chat(server, max_tokens=8)
    texts = [text_of(answer) for answer in chat.batch([QUESTION, "Go.", "Stop."])]
    assert texts[1] == text_of(chat.invoke("Go."))
    scored: Any = chat.bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    scores = scored.response_metadata["logprobs"]["content"]
    assert len(scores) == scored.usage_metadata["output_tokens"]
    assert all(len(score["top_logprobs"]) == 2 for score in scores)


def test_plain_completions(server: Server) -> None:
    values: Any = {"model": "tiny", "base_url": f"{server.url}/v1", "api_key": "x"}
    model = OpenAI(max_tokens=9, temperature=0, max_retries=0, **values)
    assert "".join(model.stream("Once")) == model.invoke("Once")


def test_the_asynchronous_way(server: Server) -> None:
    """In one loop, as LangChain keeps its connections."""

    async def ask(chat: BaseChatModel) -> None:
        whole = text_of(await chat.ainvoke(QUESTION))
        parts = [text_of(part) async for part in chat.astream(QUESTION)]
        assert "".join(parts) == whole

    async def ask_all() -> None:
        await asyncio.gather(*(ask(chat_of(kind, server)) for kind in KINDS))

    asyncio.run(ask_all())
