"""Answers that are large are made beside the event loop, which goes on with others' meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from support.serving import Server
from tidemill.engine.base import Event, FinishEvent, PromptEvent, Request, TokenLogprob
from tidemill.engine.params import SamplingParams
from tidemill.llm.mailbox import Mailbox
from tidemill.llm.outputs import CompletionOutput, Logprob, OutputBuilder, RequestOutput
from tidemill.server.config import ServerConfig
from tidemill.server.generation import Generation
from tidemill.server.http import Exchange
from tidemill.server.keys import ANYBODY
from tidemill.server.openai import completions
from tidemill.server.openai.answers import prompt_logprobs
from tidemill.server.service import Service
from tidemill.server.worker_process import WorkerProcess
from tidemill.text.base import Tokenizer


class Names:
    """A tokenizer that notes on which threads it is asked."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def token_bytes(self, token: int) -> bytes:
        self.threads.add(threading.get_ident())
        return b"<%d>" % token

    def decode(self, ids: Any, *, skip_special: bool = True) -> str:
        return "".join(f"<{i}>" for i in ids)


async def _generation(names: Names, params: SamplingParams, *batches: list[Event]) -> Generation:
    builder = OutputBuilder("r", None, range(100), params, cast("Tokenizer", names), 0.0)
    meter = SimpleNamespace(prompt=lambda n: None, output=lambda *_: None)
    mailbox = Mailbox(params.n)
    for i, batch in enumerate(batches):
        mailbox.post(batch, float(i))
    return Generation(
        WorkerProcess(None), Request("r", (1,), params), mailbox, builder, seconds=60, meter=meter
    )


def _scored() -> list[Event]:
    scores = [None, *((TokenLogprob(i, -1.0, 1), TokenLogprob(0, -2.0, 2)) for i in range(1, 100))]
    return [PromptEvent("r", 100, 0, scores, 0.0), FinishEvent("r", 0, "length")]


@pytest.mark.parametrize("asked", [{"prompt_logprobs": 1}, {"logprobs": 1, "echo": True}])
def test_a_prompts_scores_are_read_beside_the_event_loop(asked: dict[str, Any]) -> None:
    names = Names()

    async def whole() -> RequestOutput:
        generation = await _generation(names, SamplingParams(max_tokens=1, **asked), _scored())
        output = await generation.whole()
        generation.close()
        return output

    output = asyncio.run(whole())
    scores = output.prompt_logprobs or output.outputs[0].logprobs
    assert scores is not None
    assert scores[7] == {7: Logprob(-1.0, 1, "<7>"), 0: Logprob(-2.0, 2, "<0>")}
    assert names.threads
    assert threading.get_ident() not in names.threads


def _exchange(tokens: int, sent: list[Any]) -> Exchange:
    """One whose answer is to have so many tokens."""

    async def send(message: Any) -> None:
        sent.append(message)

    exchange = Exchange(
        {"headers": []}, cast("Any", None), send, id="x", tenant=ANYBODY, max_body=1,
        stall_seconds=1,
    )  # fmt: skip
    params = SamplingParams()
    builder = OutputBuilder("r", None, [1], params, cast("Tokenizer", Names()), 0.0)
    builder.output.outputs[0].token_ids = [1] * tokens
    exchange.account.params, exchange.account.builders = params, [builder]
    return exchange


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service(ServerConfig(), cast("Any", None), cast("Any", None))
    yield found
    found.close()


@pytest.mark.parametrize(("tokens", "aside"), [(100_000, True), (10, False)])
def test_an_answer_is_built_beside_the_event_loop(
    service: Service, tokens: int, aside: bool
) -> None:
    """If it is a large one; others would wait for the large ones' thread."""
    sent: list[Any] = []
    threads: list[int] = []

    def make(value: int) -> dict[str, int]:
        threads.append(threading.get_ident())
        return {"value": value}

    asyncio.run(service.answer(_exchange(tokens, sent), make, 5))
    assert sent[0]["status"] == 200
    assert json.loads(sent[1]["body"]) == {"value": 5}
    assert (threading.get_ident() not in threads) is aside


def test_large_answers_are_built_one_after_the_other(service: Service) -> None:
    """Also where nobody waits for the first one any more: threads are left for what is small."""
    go_on = threading.Event()
    made: list[str] = []

    def first() -> str:
        made.append("begun")
        go_on.wait(60)
        made.append("first")
        return ""

    async def main() -> None:
        leaving = asyncio.ensure_future(service.large(first))
        while not made:
            await asyncio.sleep(0.001)
        never = asyncio.ensure_future(service.large(made.append, "never"))
        await asyncio.sleep(0)
        leaving.cancel()
        never.cancel()
        last = asyncio.ensure_future(service.large(made.append, "last"))
        made.append(await service.aside(_exchange(0, []), lambda: "small"))
        go_on.set()
        await last

    asyncio.run(main())
    assert made == ["begun", "small", "first", "last"]


def test_more_scores_of_prompts_than_fit_into_memory_are_refused(server: Server) -> None:
    body = {"model": "tiny", "prompt": [[65] * 1000] * 256, "max_tokens": 0, "echo": True}
    status, answer = server.post("/v1/completions", {**body, "logprobs": 20})
    assert (status, answer["error"]["param"]) == (400, "logprobs")
    assert "5376000 log-probabilities" in answer["error"]["message"]
    body = {**body, "echo": False, "max_tokens": 1, "prompt_logprobs": 20}
    assert server.post("/v1/completions", body)[1]["error"]["param"] == "prompt_logprobs"


@pytest.mark.parametrize(("tokens", "aside"), [(100, True), (1, False)])
def test_a_chunk_of_many_tokens_is_written_beside_the_event_loop(
    service: Service, tokens: int, aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_tokens=1, logprobs=1, echo=True)
    threads: list[int] = []
    encode = completions.encoded

    def noted(value: Any) -> msgspec.Raw:
        threads.append(threading.get_ident())
        return encode(value)

    monkeypatch.setattr(completions, "encoded", noted)
    model = SimpleNamespace(
        config=SimpleNamespace(name="m"), opened=SimpleNamespace(tokenizer=Names())
    )
    out = CompletionOutput(
        0, "text", list(range(tokens)), None, [{i: Logprob(-1.0, 1, "t")} for i in range(tokens)],
        "length",
    )  # fmt: skip

    async def deltas() -> Any:
        yield SimpleNamespace(outputs=[out])

    async def chunks() -> list[bytes]:
        generation = cast("Any", SimpleNamespace(deltas=deltas, failure=None))
        answer = completions._Answer("i", cast("Any", model), params)
        return [chunk async for chunk in answer.chunks(service, [generation], False)]

    first, done = asyncio.run(chunks())
    assert done == b"data: [DONE]\n\n"
    scores = json.loads(first.removeprefix(b"data: "))["choices"][0]["logprobs"]
    assert scores["top_logprobs"] == [{"t": -1.0}] * tokens
    assert len(threads) == tokens
    assert (threading.get_ident() not in threads) is aside


def test_large_answers_are_encoded_in_parts() -> None:
    """While one value is being encoded, no thread runs, the event loop's neither."""
    output = RequestOutput("r", None, [1, 2], [], True, cast("Any", None))
    output.prompt_logprobs = [None, {2: Logprob(-0.5, 1, "b")}]
    first, second = prompt_logprobs(output)["prompt_logprobs"]
    assert first is None
    assert isinstance(second, msgspec.Raw)
    assert json.loads(bytes(second)) == {"2": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}
