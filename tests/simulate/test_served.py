"""What the server adds, told apart from the steps."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from tidemill.bench.client import Endpoint
from tidemill.bench.stream import Answer
from tidemill.engine.step_time import attended
from tidemill.simulate import served
from tidemill.simulate.base import StepWork
from tidemill.simulate.served import Sent, mean_gap, served_costs
from tidemill.simulate.step_table import StepTable

STEPS = StepTable(
    [1e-3 * n for n in range(200)], [0.0, 1e-3], 1e-7, 1e-6, origin="measured", source="", band=0.0
)
REQUEST, PROMPT_TOKEN, STEP, TOKEN = 5e-3, 4e-6, 4e-4, 3e-5


def first(prompt: int, cached: int) -> Sent:
    """A request that was sent at 10 s."""
    new = prompt - cached
    step = STEPS.seconds(StepWork(new, attended(cached, new), 0, 0, 1)) + STEP + TOKEN
    before = REQUEST + PROMPT_TOKEN * prompt
    answer = Answer([10 + before + step], prompt_tokens=prompt, cached_tokens=cached)
    return 10.0, answer


def gap(n: int, context: int) -> tuple[float, float]:
    return STEPS.seconds(StepWork(0, 0, n, n * context, n)) + STEP + TOKEN * n, context


GAPS = {n: gap(n, 140) for n in (1, 2, 4, 8, 16)}


def test_known_costs_are_found_again() -> None:
    found = served_costs(
        STEPS,
        [first(40, 0), first(36, 16), first(44, 16)],
        [first(1520, 1504), first(1525, 1504), first(1530, 1520)],
        GAPS,
    )
    # What a median and a mean of three lengths differ by.
    assert found.per_request == pytest.approx(REQUEST, rel=0.01)
    assert found.per_prompt_token == pytest.approx(PROMPT_TOKEN, rel=0.01)
    assert found.per_step == pytest.approx(STEP)
    assert found.per_token == pytest.approx(TOKEN)


def test_a_server_that_seems_faster_than_its_engine_adds_nothing() -> None:
    sent, answer = first(100, 0)
    answer.times = [sent + 1e-4]
    quick = {n: (0.5 * gap(n, 140)[0], 140.0) for n in (1, 4)}
    found = served_costs(STEPS, [(sent, answer)] * 3, [(sent, answer)] * 3, quick)
    assert (found.per_request, found.per_step, found.per_token) == (0.0, 0.0, 0.0)
    assert found.per_prompt_token == 0.0


def test_a_model_of_a_short_context_has_no_long_prompts() -> None:
    short = [first(40, 16)] * 3
    found = served_costs(STEPS, short, short, GAPS)
    assert found.per_prompt_token == 0.0
    assert found.per_request == pytest.approx(REQUEST + 40 * PROMPT_TOKEN)


def test_requests_that_differ_show_as_spread() -> None:
    requests = [first(100, 0) for _ in range(4)]
    for i, (_, answer) in enumerate(requests):
        answer.times[0] += 0.02 * i
    assert served_costs(STEPS, requests, requests, {1: gap(1, 140)}).spread > 0.05


@pytest.mark.parametrize(("context", "words"), [(8192, 1500), (400, 100)])
def test_short_and_long_prompts_and_several_streams_are_asked(
    monkeypatch: pytest.MonkeyPatch, context: int, words: int
) -> None:
    """Of a server whose costs are known, with words of one token behind a template of 25."""
    asked: list[tuple[int, int]] = []

    class Server:
        """In the place of a client. Times are what they would be, and nothing takes any."""

        flying = 0

        def __init__(self, *_: object) -> None:
            pass

        async def send(self, body: bytes) -> SimpleNamespace:
            fields = json.loads(body)
            self.flying += 1
            await asyncio.sleep(0)  # until all that were asked at once are here
            streams = self.flying
            words = len(fields["messages"][0]["content"].split())
            asked.append((streams, words))
            sent, answer = first(25 + words, (25 + words - 6) // 16 * 16)
            seconds, _ = gap(streams, 25 + words + 24)
            answer.times = [answer.times[0] + i * seconds for i in range(fields["max_tokens"])]
            await asyncio.sleep(0)
            self.flying -= 1
            return SimpleNamespace(sent=sent, answer=answer)

        def close(self) -> None:
            pass

    monkeypatch.setattr(served, "Client", Server)
    monkeypatch.setattr(served, "read", lambda reply: reply.answer)
    monkeypatch.setattr(served, "wake_promptly", lambda: True)
    endpoint = Endpoint("http://127.0.0.1:1/v1", "m")
    found = asyncio.run(served._measure(endpoint, STEPS, context, 4, 5, 2, lambda _: None))
    assert found.per_request == pytest.approx(REQUEST)
    assert found.per_prompt_token == pytest.approx(PROMPT_TOKEN)
    assert found.per_step == pytest.approx(STEP, rel=0.01)
    assert found.per_token == pytest.approx(TOKEN, rel=0.01)
    assert asked.count((1, words + 6)) == 5
    assert [streams for streams, _ in asked[-14:]] == [1, 2, 2, 4, 4, 4, 4] * 2


def test_a_step_that_is_held_up_now_and_then_counts() -> None:
    """As it does in the time that an answer takes."""
    steady = Answer([0.0, 0.01, 0.02, 0.03, 0.04], prompt_tokens=30)
    held = Answer([0.0, 0.01, 0.02, 0.03, 0.06], prompt_tokens=40)
    assert mean_gap([(0.0, steady)])[0] == pytest.approx(0.01)
    assert mean_gap([(0.0, held)])[0] == pytest.approx(0.015)
    # While both were sending: until 0.04 s.
    assert mean_gap([(0.0, steady), (0.0, held)])[0] == pytest.approx(0.01)
