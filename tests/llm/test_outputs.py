"""Events become outputs: whole, cumulative and as deltas."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tidemill.engine.base import (
    ErrorEvent,
    Event,
    FinishEvent,
    PromptEvent,
    TokenEvent,
    TokenLogprob,
)
from tidemill.engine.params import SamplingParams
from tidemill.llm.outputs import Logprob, OutputBuilder


class Letters:
    """Token n is the n-th letter, token 26 a byte that is no character."""

    vocab_size = 27

    def token_bytes(self, token_id: int) -> bytes:
        return b"\xe2" if token_id == 26 else bytes([97 + token_id])


def builder(**params: object) -> OutputBuilder:
    return OutputBuilder("r", "p", [1, 2], SamplingParams(**params), Letters(), 10.0)  # type: ignore[arg-type]


def token(index: int, token_id: int, text: str, logprob: float | None = None) -> TokenEvent:
    logprobs = None if logprob is None else (TokenLogprob(token_id, logprob, 1),)
    return TokenEvent("r", index, token_id, text, logprobs)


def test_tokens_and_held_back_text_are_joined() -> None:
    b = builder()
    b.push([PromptEvent("r", 2, 1), token(0, 0, "a")], now=11.0)
    b.push([token(0, 1, "")], now=12.0)
    b.push([token(0, 2, "bc"), FinishEvent("r", 0, "stop", "!", stop_reason="x")], now=13.0)
    out = b.snapshot()
    assert out.finished
    assert out.num_cached_tokens == 1
    (sample,) = out.outputs
    assert (sample.text, sample.token_ids) == ("abc!", [0, 1, 2])
    assert (sample.finish_reason, sample.stop_reason) == ("stop", "x")
    assert (sample.logprobs, sample.cumulative_logprob) == (None, None)
    m = out.metrics
    assert (m.arrival_time, m.first_token_time, m.last_token_time) == (10.0, 11.0, 13.0)
    assert (m.prompt_done_time, m.finished_time, m.time_to_first_token) == (11.0, 13.0, 1.0)


def test_several_samples_finish_apart() -> None:
    b = builder(n=2)
    b.push([token(0, 0, "a"), token(1, 1, "b"), FinishEvent("r", 1, "length")], now=1.0)
    assert not b.finished
    b.push([FinishEvent("r", 0, "stop")], now=2.0)
    assert b.finished
    assert [o.finish_reason for o in b.snapshot().outputs] == ["stop", "length"]


def test_logprobs_are_by_id_with_their_text() -> None:
    b = builder(logprobs=1)
    entries = (TokenLogprob(26, -2.0, 3), TokenLogprob(0, -0.5, 1))
    b.push([TokenEvent("r", 0, 26, "", entries), token(0, 1, "b", -1.0)], now=1.0)
    (sample,) = b.snapshot().outputs
    assert sample.logprobs == [
        {26: Logprob(-2.0, 3, "�"), 0: Logprob(-0.5, 1, "a")},
        {1: Logprob(-1.0, 1, "b")},
    ]
    assert sample.cumulative_logprob == -3.0


def test_prompt_logprobs() -> None:
    b = builder(prompt_logprobs=0)
    b.push([PromptEvent("r", 2, 0, (None, (TokenLogprob(2, -1.5, 4),)))], now=1.0)
    assert b.snapshot().prompt_logprobs == [None, {2: Logprob(-1.5, 4, "c")}]


def test_an_error_keeps_what_was_reached() -> None:
    b = builder(n=2)
    b.push([token(0, 0, "a"), FinishEvent("r", 0, "stop"), token(1, 1, "b")], now=1.0)
    b.push([ErrorEvent("r", "broken")], now=2.0)
    out = b.snapshot()
    assert (out.finished, out.error) == (True, "broken")
    assert [(o.text, o.finish_reason) for o in out.outputs] == [("a", "stop"), ("b", "error")]


EVENTS: list[Event] = [
    PromptEvent("r", 2, 0),
    token(0, 0, "a", -1.0),
    token(1, 1, "", -1.0),
    token(1, 2, "bc", -1.0),
    FinishEvent("r", 1, "length"),
    token(0, 3, "", -1.0),
    FinishEvent("r", 0, "stop", "d"),
]


@pytest.mark.parametrize("chunk", range(1, len(EVENTS) + 1))
def test_deltas_add_up_to_the_whole(chunk: int) -> None:
    b = builder(n=2, logprobs=0)
    texts, ids, logprobs = ["", ""], [[], []], [[], []]
    for start in range(0, len(EVENTS), chunk):
        b.push(EVENTS[start : start + chunk], now=1.0)
        delta = b.delta()
        for out in delta.outputs:
            texts[out.index] += out.text
            ids[out.index] += out.token_ids
            logprobs[out.index] += out.logprobs
    assert delta.finished
    whole = b.snapshot()
    assert texts == [o.text for o in whole.outputs] == ["ad", "bc"]
    assert ids == [o.token_ids for o in whole.outputs]
    assert logprobs == [o.logprobs for o in whole.outputs]
    assert b.delta().outputs == []


def test_a_snapshot_has_every_field() -> None:
    b = builder(logprobs=1)
    (out,) = b.output.outputs
    for record in (b.output, b.output.metrics, out):
        for field in fields(record):
            if field.name not in ("outputs", "metrics", "index", "text"):
                setattr(record, field.name, [f"some {field.name}"])
    shown = b.snapshot()
    assert shown.metrics == b.output.metrics
    assert shown.metrics is not b.output.metrics
    assert shown.outputs == [out]
    assert replace(shown, outputs=[out]) == b.output


def test_a_snapshot_does_not_change_later() -> None:
    b = builder()
    b.push([token(0, 0, "a")], now=1.0)
    early = b.snapshot()
    b.push([token(0, 1, "b"), FinishEvent("r", 0, "stop")], now=2.0)
    assert (early.outputs[0].text, early.outputs[0].token_ids, early.finished) == ("a", [0], False)
    assert early.metrics.last_token_time == 1.0
